// Decode products of (row, expert) pairs that share experts: all quantised types, and how a launch is cut into blocks.
#include "few_pairs.cuh"

namespace bao {
namespace {

using namespace few;

template <FewKind kind>
void launch_pairs(const FewArgs& a, dim3 grid, int32_t warps, int64_t shared, int64_t limit, int32_t pairs, const Run& run) {
  // Asked for again at every launch: it is cheap, and true for whichever device is current.
  cudaFuncSetAttribute(pairs_kernel<kind>, cudaFuncAttributeMaxDynamicSharedMemorySize, int(limit));
  launch(run, pairs_kernel<kind>, grid, dim3(unsigned(warps * 32)), size_t(shared), run.step, a, pairs);
}

}  // namespace

bool few_shares(int32_t rows, const Tensor& ids, int32_t experts) {
  int64_t pairs = int64_t(rows) * ids.d2;
  return pairs <= most_pairs && experts <= most_experts && 2 * pairs > experts;
}

bool launch_few_pairs(FewArgs& a, int64_t limit, const Run& run) {
  int32_t rows = run.bound(a.member[0].dst), experts = a.member[0].w.experts, pairs = rows * a.ids.d2, parts = a.kind == FewKind::glu ? 2 : 1;
  if (a.kind == FewKind::sum || !few_shares(rows, a.ids, experts)) return false;
  a.each = int32_t(blocks_of(a.cells, pairs_warps));
  int32_t warps = int32_t(blocks_of(a.cells, a.each));
  if (a.each * parts > 32) return false;
  // As many blocks beside each other as registers and shared memory have room for, each with two cells a warp on their way or more.
  a.stages = 0;
  int64_t fixed = pairs_shared(a, parts, pairs, experts, warps), resident = 2 * pairs_warps / warps;
  for (; resident > 0; resident--) {
    int64_t room = (limit + 1024) / resident - 1024;
    a.stages = room < fixed ? 0 : int32_t((room - fixed) / (warps * (int64_t(a.stage_bytes) + 8)));
    if (a.stages >= 2) break;
  }
  if (resident < 1) return false;
  if (a.stages > 4) a.stages = 4;
  int64_t shared = pairs_shared(a, parts, pairs, experts, warps);
  dim3 grid{unsigned(resident * run.multiprocessors)};
  if (a.kind == FewKind::plain) launch_pairs<FewKind::plain>(a, grid, warps, shared, limit, pairs, run);
  else launch_pairs<FewKind::glu>(a, grid, warps, shared, limit, pairs, run);
  return true;
}

}  // namespace bao
