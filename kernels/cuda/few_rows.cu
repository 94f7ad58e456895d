// Decode products of up to 32 rows in f16: all quantised types, and how a launch is cut into blocks.
#include "few_rows.cuh"

namespace bao {
namespace {

using namespace few;

template <FewKind kind, int N>
void launch_rows(const FewArgs& a, const RowsCut& cut, dim3 grid, int32_t warps, int64_t shared, int64_t limit, const Run& run) {
  // Asked for again at every launch: it is cheap, and true for whichever device is current.
  cudaFuncSetAttribute(rows_kernel<kind, N>, cudaFuncAttributeMaxDynamicSharedMemorySize, int(limit));
  launch(run, rows_kernel<kind, N>, grid, dim3(unsigned(warps * 32)), size_t(shared), run.step, a, cut);
}

}  // namespace

bool launch_few_rows(FewArgs& a, int64_t limit, const Run& run) {
  int32_t rows = run.bound(a.member[0].dst), warps = a.cells, parts = a.kind == FewKind::glu ? 2 : 1, n = rows <= 8 ? 1 : 2;
  if (a.kind == FewKind::sum || a.ids.present() || warps > rows_warps || a.x.d1 != 1) return false;
  int32_t copies = int32_t(blocks_of(rows, 8 * n)), resident = run.multiprocessors / copies;
  for (a.stages = 4; a.stages > 0; a.stages--) {
    if (rows_shared(a, n, parts, warps) <= limit) break;
  }
  if (a.stages == 0 || resident < a.members) return false;

  // Blocks stay with one member; each has its share of them, by the bytes of its tiles.
  int32_t members = a.kind == FewKind::glu ? 1 : a.members;
  int64_t bytes[3], all = 0;
  for (int32_t m = 0; m < members; m++) all += bytes[m] = int64_t(blocks_of(a.member[m].outputs, tile_rows)) * a.member[m].w.row_bytes;
  RowsCut cut{};
  for (int32_t m = 0; m < members; m++) {
    int64_t tiles = blocks_of(a.member[m].outputs, tile_rows), share = m + 1 == members ? resident - cut.first[m] : resident * bytes[m] / all;
    if (share > tiles) share = tiles;
    cut.first[m + 1] = cut.first[m] + (share < 1 ? 1 : int32_t(share));
  }
  dim3 grid{unsigned(cut.first[members]), unsigned(copies)};
  int64_t shared = rows_shared(a, n, parts, warps);
  if (a.kind == FewKind::plain && n == 1) launch_rows<FewKind::plain, 1>(a, cut, grid, warps, shared, limit, run);
  else if (a.kind == FewKind::plain) launch_rows<FewKind::plain, 2>(a, cut, grid, warps, shared, limit, run);
  else if (n == 1) launch_rows<FewKind::glu, 1>(a, cut, grid, warps, shared, limit, run);
  else launch_rows<FewKind::glu, 2>(a, cut, grid, warps, shared, limit, run);
  return true;
}

}  // namespace bao
