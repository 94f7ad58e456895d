// Decode products for one row: all quantised types, and how a launch is cut into blocks.
#include "few_one.cuh"

namespace bao {
namespace {

using namespace few;

template <FewKind kind>
void launch_one(const FewArgs& a, dim3 grid, int32_t warps, int64_t shared, int64_t limit, const Run& run) {
  // Asked for again at every launch: it is cheap, and true for whichever device is current.
  cudaFuncSetAttribute(one_kernel<kind>, cudaFuncAttributeMaxDynamicSharedMemorySize, int(limit));
  launch(run, one_kernel<kind>, grid, dim3(unsigned(warps * 32)), size_t(shared), run.step, a);
}

}  // namespace

bool launch_few_1(FewArgs& a, int64_t limit, const Run& run) {
  int32_t slots = a.ids.present() ? a.ids.d2 : 1, parts = a.kind == FewKind::glu ? 2 : 1, units = a.kind == FewKind::sum ? a.cells * slots : a.cells;
  int32_t rows = run.bound(a.member[0].dst), copies = !a.ids.present() ? 1 : a.kind == FewKind::sum ? rows : rows * slots;
  // As many warps for a tile as give all multiprocessors about 24, at least 8; a warp's lanes know its units.
  int32_t warps = 0;
  auto cut = [&](int32_t each) { a.each = each, warps = int32_t(blocks_of(units, each)); };
  cut(int32_t(blocks_of(units, one_warps)));
  while (warps > 8 && int64_t(a.items) * copies * warps > int64_t(run.multiprocessors) * 24) cut(a.each + 1);
  if (a.each * parts > 32) return false;

  // Blocks stay where all items are of one weight (or a pair): of a group's weights a block knows that of its only item.
  bool stays = a.members == 1 || a.kind == FewKind::glu;
  // Blocks beside each other on a multiprocessor: as many as there is work and room for, each with up to three cells a warp on their way.
  int64_t all = int64_t(a.items) * copies, resident = blocks_of(all, run.multiprocessors);
  int64_t most = 32 / warps;
  if (resident > most) resident = most;
  for (;; resident--) {
    if (resident < 1) return false;
    int64_t room = (limit + 1024) / resident - 1024, fixed = one_shared(a, warps, parts, 0);
    a.stages = int32_t((room - fixed) / (warps * (int64_t(a.stage_bytes) + 8)));
    int64_t work = a.each * parts * (stays ? int64_t(blocks_of(all, resident * run.multiprocessors)) : 1);
    if (room > fixed && a.stages >= (resident == 1 ? 1 : work < 3 ? work : 3)) break;
  }
  int32_t blocks = a.items;
  int64_t stay = resident * run.multiprocessors / copies;
  if (stays && blocks > stay) blocks = stay < 1 ? 1 : int32_t(stay);
  int32_t total = a.each * parts * int32_t(blocks_of(a.items, blocks));
  if (a.stages > total) a.stages = total;
  if (a.stages > 16) a.stages = 16;

  int64_t shared = one_shared(a, warps, parts, a.stages);
  dim3 grid{unsigned(blocks), unsigned(copies)};
  if (a.kind == FewKind::plain) launch_one<FewKind::plain>(a, grid, warps, shared, limit, run);
  else if (a.kind == FewKind::glu) launch_one<FewKind::glu>(a, grid, warps, shared, limit, run);
  else launch_one<FewKind::sum>(a, grid, warps, shared, limit, run);
  return true;
}

}  // namespace bao
