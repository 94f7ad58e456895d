// Decode products on the host's side: which weights they serve, how a launch is cut into blocks, and rows of x rounded beforehand.
#include "few_kernel.cuh"

namespace bao {
namespace {

// Rows of x to int8, a thread four values. Grid: columns / 4, rows * slots.
__global__ void __launch_bounds__(256) round_kernel(const StepRef* step, Tensor x, int32_t columns, int32_t most, int8_t* q, GroupOfX* groups) {
  await_previous();
  let_next_start();
  int32_t rows = min(count_of(step, x), most), i = blockIdx.x * 256 + threadIdx.x;
  if (i - int32_t(threadIdx.x & 31) >= columns / 4) return;
  for (int32_t r = blockIdx.y; r < rows * x.d1; r += gridDim.y) {
    const float* row = x.f32(r / x.d1) + int64_t(r % x.d1) * columns;
    GroupOfX group;
    uint32_t bytes = few::round_group(4 * i < columns ? few::four_of(row + 4 * i) : make_float4(0, 0, 0, 0), group);
    if (4 * i >= columns) continue;
    reinterpret_cast<uint32_t*>(q + int64_t(r) * columns)[i] = bytes;
    if ((i & 7) == 0) groups[(int64_t(r) * columns + 4 * i) / 32] = group;
  }
}

// Shared memory that a block may have on the current device, its static part taken off.
int32_t most_shared() {
  int device = 0, bytes = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  return bytes - 1024;
}

}  // namespace

FewArgs few_args(FewKind kind, const Tensor& x, int32_t columns) {
  FewArgs a{};
  a.kind = kind;
  a.x = x;
  if (x.columns() == columns) a.x.d1 = 1, a.x.d2 = columns;
  a.columns = columns;
  a.steps = (columns + step_columns - 1) / step_columns;
  a.cells = (columns + cell_columns - 1) / cell_columns;
  return a;
}

bool few_member(FewArgs& a, const Tensor& dst, const WeightRef& w, int32_t first, int32_t outputs) {
  if (is_plain(w.dtype) || w.columns != a.columns || first % tile_rows != 0) return false;
  TileShape shape = tile_shape(w.dtype, w.columns);
  FewMember& m = a.member[a.members++];
  m = FewMember{dst, w, outputs, first / tile_rows, shape.cell_bytes, int32_t(shape.bytes - int64_t(shape.cells - 1) * shape.cell_bytes), a.items};
  // Tiles of all members; of gate and up, those of one.
  if (a.kind == FewKind::plain || a.members == 1) a.items += (outputs + tile_rows - 1) / tile_rows;
  if (m.cell_bytes > a.stage_bytes) a.stage_bytes = m.cell_bytes;
  return a.kind != FewKind::glu || a.member[0].w.dtype == w.dtype;
}

int64_t reserve_few(Builder& b, const Tensor& x) {
  int64_t rows = x.d0 < few_rows ? x.d0 : few_rows;
  return b.reserve_scratch(rows * x.columns() + 128 + rows * x.columns() / 32 * int64_t(sizeof(GroupOfX)));
}

bool launch_few(FewArgs& a, int64_t scratch, const Run& run) {
  int32_t rows = run.bound(a.member[0].dst);
  if (rows <= 0) return true;
  const int64_t limit = most_shared();
  if (rows > few_rows) return false;
  if (a.ids.present()) return (rows > 1 && launch_few_pairs(a, limit, run)) || launch_few_1(a, limit, run);
  if (rows == 1) return launch_few_1(a, limit, run);
  if (a.halves && launch_few_rows(a, limit, run)) return true;

  // How many rows of x a block holds: as many as fit beside the rings.
  int32_t n = rows <= 8 ? 1 : 2;
  int64_t ring = int64_t(few_warps) * few_stages * a.stage_bytes, row_bytes = int64_t(a.cells) * (cell_columns + 8 * int64_t(sizeof(GroupOfX)));
  auto partial = [&](int32_t columns) { return int64_t(few_warps) * 2 * columns * tile_rows * 4; };
  if (n == 2 && ring + 16 * row_bytes + partial(16) > limit) n = 1;
  a.x_rows = 8 * n;
  if (n == 1 && ring + 8 * row_bytes + partial(8) > limit) a.x_rows = 4;
  int64_t shared = ring + a.x_rows * row_bytes + partial(8 * n);
  if (shared > limit) return false;

  // Warps share an item where there are few items, so that all multiprocessors have about 12 at work, each with at least a cell.
  int32_t units = a.cells * (a.kind == FewKind::glu ? 2 : 1);
  int32_t copies = (rows + a.x_rows - 1) / a.x_rows;
  int64_t wanted = int64_t(run.multiprocessors) * 12;
  a.split = 1;
  while (a.split < few_warps && int64_t(a.items) * copies * a.split < wanted && units >= 2 * a.split) a.split *= 2;
  bool one_type = true;
  for (int32_t m = 1; m < a.members; m++) one_type = one_type && a.member[m].w.dtype == a.member[0].w.dtype;
  int32_t blocks = int32_t(blocks_of(a.items, few_warps / a.split));
  if (a.split == 1 && one_type) {
    // Blocks that stay: as many as there is room for.
    int32_t room = int32_t((limit + 1024) / (shared + 1024)), most = n == 1 ? 2 : 1, resident = run.multiprocessors * (room < 1 ? 1 : room > most ? most : room);
    if (blocks > resident) blocks = resident;
  }

  // Rounded once for all blocks: a launch of its own, so this one is not beside the launch before.
  a.apart = false;
  int64_t total = int64_t(a.x.d0 < few_rows ? a.x.d0 : few_rows) * a.x.columns();
  int8_t* q = reinterpret_cast<int8_t*>(run.scratch + scratch);
  GroupOfX* groups = reinterpret_cast<GroupOfX*>(run.scratch + scratch + (total + 127) / 128 * 128);
  launch(run, round_kernel, dim3(blocks_of(a.columns / 4, 256), unsigned(rows * a.x.d1)), dim3(256), 0, run.step, a.x, a.columns, few_rows, q, groups);
  a.q = q, a.groups = groups;
  dim3 grid{unsigned(blocks), unsigned(copies)};
  if (n == 1) launch_few_8(a, grid, size_t(shared), int(limit), run);
  else launch_few_16(a, grid, size_t(shared), int(limit), run);
  return true;
}

}  // namespace bao
