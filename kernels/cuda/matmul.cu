// Matmuls with one weight for all rows: plain, grouped, gate/up with its activation. Few rows of int8 activations are one launch (few.h), many go to
// tensor cores (mma.cuh); what neither serves (exact and plain types, odd shapes) is a sequence of launches here.
#include "few.h"
#include "mma.cuh"

namespace bao {
namespace {

// A warp a block of 32 values: int8 with one scale, or bf16 kept as f32.
__global__ void __launch_bounds__(256) round_kernel(const StepRef* step, Tensor x, int8_t* q, float* d, float* bf16) {
  let_next_start();
  await_previous();
  int32_t rows = count_of(step, x);
  int64_t columns = x.columns(), c = int64_t(blockIdx.x) * 256 + threadIdx.x;
  for (int32_t r = blockIdx.y; r < rows; r += gridDim.y) {
    float v = c < columns ? x.f32(r)[c] : 0.0f;
    if (bf16) {
      if (c < columns) bf16[r * columns + c] = bf16_to_f32(f32_to_bf16(v));
      continue;
    }
    bool finite = __all_sync(0xffffffffu, isfinite(v));
    float max = warp_max(fabsf(v)), scale = max / 127.0f, inverse = max > 0 ? 127.0f / max : 0.0f;
    if (!isfinite(inverse)) inverse = 0;
    if (c >= columns) continue;  // whole warps: columns is a multiple of 32
    q[r * columns + c] = finite ? int8_t(rintf(v * inverse)) : int8_t(0);
    if ((threadIdx.x & 31) == 0) d[(r * columns + c) / 32] = finite ? scale : __int_as_float(0x7fc00000);
  }
}

}  // namespace

int32_t rounding_of(const WeightRef& w, int32_t fast) {
  if (fast & 1) return is_plain(w.dtype) ? 0 : 1;  // 1 int8, 3 the device's choice
  return fast == 2 && w.dtype != BAO_F32 ? 2 : 0;
}

Rounded reserve_rounded(Builder& b, const Tensor& x, int32_t rounding) {
  int64_t values = int64_t(x.d0) * x.columns();
  Rounded r{0, 0, rounding};
  if (rounding == 1) r.at = b.reserve_scratch(values), r.scales = b.reserve_scratch(values / 32 * 4);
  if (rounding == 2) r.at = b.reserve_scratch(values * 4);
  return r;
}

Activations launch_round(const Tensor& x, const Rounded& rounded, const Run& run) {
  Activations a{x.data, x.stride, nullptr, nullptr, x.d1, x.d2};
  if (rounded.rounding == 0) return a;
  int8_t* q = reinterpret_cast<int8_t*>(run.scratch + rounded.at);
  float *d = run.scratch_f32(rounded.scales), *bf16 = rounded.rounding == 2 ? run.scratch_f32(rounded.at) : nullptr;
  int32_t rows = run.bound(x);
  if (rows > 0) launch(run, round_kernel, dim3(blocks_of(x.columns(), 256), grid_rows(rows)), dim3(256), 0, run.step, x, q, d, bf16);
  if (bf16) {
    a.f32 = reinterpret_cast<const char*>(bf16);
    a.stride = x.columns() * 4;
  } else {
    a.q = q;
    a.d = d;
  }
  return a;
}

void launch_product(const Product& p, const Run& run) {
  if (run.bound(p.dst) <= 0) return;
  if (p.x.q) launch_int8(p, run);
  else launch_exact(p, run);
}

namespace {

// dst = rows [first, first + count) of w times x, all of x's columns as one row.
void multiply(const Tensor& dst, const WeightRef& w, int32_t first, int32_t count, Activations x, const Run& run) {
  x.slots = 1;
  x.columns = w.columns;
  Tensor out = dst;
  out.d1 = 1;
  out.d2 = count;
  launch_product(Product{out, w, x, first, count, Tensor{}, nullptr, 0}, run);
}

struct Matmul { MatmulArgs a; Rounded x; Few few; Many many; };
void launch_matmul(const Matmul& m, const Run& run) {
  if (!launch_few(m.a, m.few, run) && !launch_many(m.a, m.many, run)) multiply(m.a.dst, m.a.w, 0, m.a.w.rows, launch_round(m.a.x, m.x, run), run);
}

// At most two roundings of one x among the members: one each.
struct Roundings { Rounded by[3]; };

Roundings reserve_roundings(Builder& b, const Tensor& x, const WeightRef* const* w, int n, int32_t fast) {
  Roundings r{{{0, 0, -1}, {0, 0, -1}, {0, 0, -1}}};
  for (int i = 0; i < n; i++) {
    if (!w[i] || !w[i]->present()) continue;
    int32_t rounding = rounding_of(*w[i], fast);
    if (r.by[rounding].rounding < 0) r.by[rounding] = reserve_rounded(b, x, rounding);
  }
  return r;
}

struct Rounders {
  Activations by[3];
  Rounders(const Tensor& x, const Roundings& r, const Run& run) : by{} {
    for (int i = 0; i < 3; i++) {
      if (r.by[i].rounding >= 0) by[i] = launch_round(x, r.by[i], run);
    }
  }
};

struct Group { MatmulGroupArgs a; Roundings x; Few few; Many many; };
void launch_grouped(const Group& g, const Run& run) {
  if (launch_few(g.a, g.few, run) || launch_many(g.a, g.many, run)) return;
  Rounders x(g.a.x, g.x, run);
  for (int i = 0; i < 3; i++) {
    if (g.a.w[i].present()) multiply(g.a.dst[i], g.a.w[i], 0, g.a.w[i].rows, x.by[rounding_of(g.a.w[i], g.a.fast)], run);
  }
}

struct Glu { MatmulGluArgs a; Roundings x; int64_t gate, up; Few few; Many many; };
void launch_matmul_glu(const Glu& g, const Run& run) {
  if (launch_few(g.a, g.few, run) || launch_many(g.a, g.many, run)) return;
  Rounders x(g.a.x, g.x, run);
  int32_t n = int32_t(g.a.dst.columns());
  Tensor gate = run.scratch_tensor(g.gate, g.a.dst, 1, n), up = run.scratch_tensor(g.up, g.a.dst, 1, n), dst = g.a.dst;
  dst.d1 = 1, dst.d2 = n;
  const WeightRef& w = g.a.up.present() ? g.a.up : g.a.gate;
  multiply(gate, g.a.gate, 0, n, x.by[rounding_of(g.a.gate, g.a.fast)], run);
  multiply(up, w, g.a.up.present() ? 0 : n, n, x.by[rounding_of(w, g.a.fast)], run);
  launch_glu(GluArgs{dst, gate, up, g.a.activation}, run);
}

}  // namespace

namespace cuda {

void matmul(Builder& b, const MatmulArgs& a) { stage<Matmul, launch_matmul>(b, Matmul{a, reserve_rounded(b, a.x, rounding_of(a.w, a.fast)), record_few(b, a), record_many(b, a)}); }

void matmul_group(Builder& b, const MatmulGroupArgs& a) {
  const WeightRef* w[3] = {&a.w[0], &a.w[1], &a.w[2]};
  stage<Group, launch_grouped>(b, Group{a, reserve_roundings(b, a.x, w, 3, a.fast), record_few(b, a), record_many(b, a)});
}

void matmul_glu(Builder& b, const MatmulGluArgs& a) {
  const WeightRef* w[2] = {&a.gate, &a.up};
  Glu g{a, reserve_roundings(b, a.x, w, 2, a.fast), 0, 0, record_few(b, a), record_many(b, a)};
  int64_t bytes = int64_t(a.dst.d0) * a.dst.columns() * 4;
  g.gate = b.reserve_scratch(bytes);
  g.up = b.reserve_scratch(bytes);
  stage<Glu, launch_matmul_glu>(b, g);
}

}  // namespace cuda
}  // namespace bao
