// Decode products for one row: all quantised types, and how a launch is cut into blocks.
#include "few_one.cuh"

namespace bao {
namespace {

using namespace few;

// A way to cut a launch: warps of a block and their units, blocks beside each other on a multiprocessor, cells a warp has on their way.
struct Cut { int32_t each, warps, resident, stages, blocks, rounds; };

template <FewKind kind>
void launch_one(const FewArgs& a, dim3 grid, int32_t warps, int64_t shared, int64_t limit, const Run& run) {
  // Asked for again at every launch: it is cheap, and true for whichever device is current.
  cudaFuncSetAttribute(one_kernel<kind>, cudaFuncAttributeMaxDynamicSharedMemorySize, int(limit));
  launch(run, one_kernel<kind>, grid, dim3(unsigned(warps * 32)), size_t(shared), run.step, a);
}

}  // namespace

bool launch_few_1(FewArgs& a, int64_t limit, const Run& run) {
  const int32_t slots = a.ids.present() ? a.ids.d2 : 1, parts = a.kind == FewKind::glu ? 2 : 1, units = a.kind == FewKind::sum ? a.cells * slots : a.cells;
  const int32_t rows = run.bound(a.member[0].dst), copies = !a.ids.present() ? 1 : a.kind == FewKind::sum ? rows : rows * slots;
  const int32_t most_warps = parts == 2 ? 24 : 32;  // of a multiprocessor, by registers

  // A warp goes through its cells one after the other, for as many rounds as its block has items; before that, two at a time, it rounds its part of x.
  // The fewest of these steps win, and of equals the fewest rounds. Two cells on their way are few where a warp has many.
  Cut best{};
  double least = 0;
  for (int32_t each = int32_t(blocks_of(units, one_warps)); each <= units && each * parts <= 32; each++) {
    const int32_t warps = int32_t(blocks_of(units, each));
    const int64_t stage = int64_t(warps) * (a.stage_bytes + 8), fixed = one_shared(a, warps, parts, each, 0);
    for (int32_t resident = most_warps / warps; resident >= 1; resident--) {
      const int64_t room = (limit + 1024) / resident - 1024;
      if (room < fixed + parts * stage) continue;
      Cut cut{each, warps, resident, int32_t((room - fixed) / stage), a.items, 1};
      const int64_t stay = int64_t(resident) * run.multiprocessors / copies;
      if (cut.blocks > stay) cut.blocks = stay < 1 ? 1 : int32_t(stay);
      cut.rounds = int32_t(blocks_of(a.items, cut.blocks));
      const int32_t work = each * parts * cut.rounds;
      const double waves = double(blocks_of(int64_t(cut.blocks) * copies, resident * run.multiprocessors));
      const double few = cut.stages >= 3 * parts - (parts == 2 ? 2 : 0) || cut.stages >= work ? 1.0 : cut.stages == 1 ? 2.0 : work < 8 ? 1.15 : 1.4;
      const double steps = waves * (cut.rounds * each * few + (each + 1) / 2);
      if (cut.stages > work) cut.stages = work;
      if (cut.stages > 16) cut.stages = 16;
      if (!best.each || steps <= least) best = cut, least = steps;
    }
  }
  if (!best.each) return false;
  a.each = best.each, a.stages = best.stages;

  // Members have blocks of their own, each about as many items.
  int32_t blocks = 0;
  for (int32_t m = 0; m < (a.kind == FewKind::plain ? a.members : 1); m++) {
    FewMember& member = a.member[m];
    member.end = m + 1 < a.members && a.kind == FewKind::plain ? a.member[m + 1].start : a.items;
    member.first_block = blocks, member.blocks = int32_t(blocks_of(member.end - member.start, best.rounds));
    blocks += member.blocks;
  }

  // As much shared memory as keeps a multiprocessor from taking more than its share of the blocks while others are still busy with the launch before.
  int64_t shared = one_shared(a, best.warps, parts, best.each, best.stages);
  const int64_t share = blocks_of(int64_t(blocks) * copies, run.multiprocessors), apart = (limit + 1024) / (share + 1) - 1024 + 16;
  if (!a.apart && share <= best.resident && shared < apart) shared = apart;
  dim3 grid{unsigned(blocks), unsigned(copies)};
  if (a.kind == FewKind::plain) launch_one<FewKind::plain>(a, grid, best.warps, shared, limit, run);
  else if (a.kind == FewKind::glu) launch_one<FewKind::glu>(a, grid, best.warps, shared, limit, run);
  else launch_one<FewKind::sum>(a, grid, best.warps, shared, limit, run);
  return true;
}

}  // namespace bao
