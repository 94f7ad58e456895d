// RMS norms and what Gemma and Llama do around them: one threadgroup a (head, row), sums of squares in f32 in an order that depends on the length.
#include "kernel.h"

#define NORM_PARAMS                                                                                                                    \
  constant NormParams &p [[buffer(24)]], STEP_PARAMS, uint2 at [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]], \
      uint threads [[dispatch_threads_per_threadgroup]], uint lane [[thread_index_in_simdgroup]], uint warp [[simdgroup_index_in_threadgroup]], \
      uint warps [[simdgroups_per_threadgroup]]
// Where this threadgroup's head lies in rows of view i; leaves when its row does not count.
#define ROW_OF_GROUP                               \
  const Step step = STEP;                          \
  const int32_t r = int32_t(at.y), n = p.v[0].d2;  \
  const int64_t head = int64_t(at.x) * n;          \
  if (r >= step.count(p.v[0])) return;             \
  threadgroup float shared[32]
#define HEAD(pointer, i) (row_of(pointer, p.v[i], r) + head)
#define GIVEN(i) ((p.present >> (i) & 1) != 0)

// 1 / sqrt(mean of squares + eps); `squares` is this thread's part of their sum.
#define FACTOR(squares) (1.0f / sqrt(group_sum(squares, shared, lane, warp, warps) / float(n) + p.eps))
#define EACH(i) for (int32_t i = int32_t(tid); i < n; i += int32_t(threads))

inline float weighted(float x, float factor, float scale, bool given, device const float *w, int32_t i) { return x * factor * scale * (given ? w[i] : 1.0f); }

kernel void rms_norm(device float *dst_ [[buffer(0)]], device const float *x_ [[buffer(1)]], device const float *w [[buffer(2)]], NORM_PARAMS) {
  ROW_OF_GROUP;
  device float *dst = HEAD(dst_, 0);
  device const float *x = HEAD(x_, 1);
  float squares = 0.0f;
  EACH(i) squares += x[i] * x[i];
  const float factor = FACTOR(squares);
  EACH(i) dst[i] = weighted(x[i], factor, p.scale, GIVEN(2), w, i);
}

kernel void norm_add(device float *dst_ [[buffer(0)]], device const float *residual_ [[buffer(1)]], device const float *x_ [[buffer(2)]],
                     device const float *w [[buffer(3)]], NORM_PARAMS) {
  ROW_OF_GROUP;
  device float *dst = HEAD(dst_, 0);
  device const float *residual = HEAD(residual_, 1), *x = HEAD(x_, 2);
  float squares = 0.0f;
  EACH(i) squares += x[i] * x[i];
  const float factor = FACTOR(squares);
  EACH(i) dst[i] = (residual[i] + weighted(x[i], factor, 1.0f, GIVEN(3), w, i)) * p.scale;
}

// Each thread reads again only what it wrote itself.
kernel void add_norm(device float *sum_ [[buffer(0)]], device float *dst_ [[buffer(1)]], device const float *residual_ [[buffer(2)]],
                     device const float *x_ [[buffer(3)]], device const float *w [[buffer(4)]], NORM_PARAMS) {
  ROW_OF_GROUP;
  device float *sum = HEAD(sum_, 0), *dst = HEAD(dst_, 1);
  device const float *residual = HEAD(residual_, 2), *x = HEAD(x_, 3);
  float squares = 0.0f;
  EACH(i) {
    const float s = residual[i] + x[i];
    sum[i] = s;
    squares += s * s;
  }
  const float factor = FACTOR(squares);
  EACH(i) dst[i] = weighted(sum[i], factor, 1.0f, GIVEN(4), w, i);
}

kernel void norm_add_norms(device float *sum_ [[buffer(0)]], device float *y0_ [[buffer(1)]], device float *y1_ [[buffer(2)]], device float *y2_ [[buffer(3)]],
                           device const float *residual_ [[buffer(4)]], device const float *x_ [[buffer(5)]], device const float *w [[buffer(6)]],
                           device const float *w0 [[buffer(7)]], device const float *w1 [[buffer(8)]], device const float *w2 [[buffer(9)]], NORM_PARAMS) {
  ROW_OF_GROUP;
  device float *sum = HEAD(sum_, 0);
  device const float *residual = HEAD(residual_, 4), *x = HEAD(x_, 5);
  float squares = 0.0f;
  EACH(i) squares += x[i] * x[i];
  const float factor = FACTOR(squares);
  squares = 0.0f;
  EACH(i) {
    const float s = (residual[i] + weighted(x[i], factor, 1.0f, GIVEN(6), w, i)) * p.scale;
    sum[i] = s;
    squares += s * s;
  }
  const float again = FACTOR(squares);
  EACH(i) {
    const float s = sum[i];
    HEAD(y0_, 1)[i] = weighted(s, again, 1.0f, GIVEN(7), w0, i);
    if (GIVEN(2)) HEAD(y1_, 2)[i] = weighted(s, again, p.scale1, GIVEN(8), w1, i);
    if (GIVEN(3)) HEAD(y2_, 3)[i] = weighted(s, again, 1.0f, GIVEN(9), w2, i);
  }
}

kernel void moe_merge(device float *sum_ [[buffer(0)]], device float *y_ [[buffer(1)]], device const float *residual_ [[buffer(2)]], device const float *a_ [[buffer(3)]],
                      device const float *b_ [[buffer(4)]], device const float *wa [[buffer(5)]], device const float *wb [[buffer(6)]], device const float *w [[buffer(7)]],
                      device const float *wy [[buffer(8)]], NORM_PARAMS) {
  ROW_OF_GROUP;
  device float *sum = HEAD(sum_, 0);
  device const float *residual = HEAD(residual_, 2), *a = HEAD(a_, 3), *b = HEAD(b_, 4);
  float squares = 0.0f;
  EACH(i) squares += a[i] * a[i];
  const float factor_a = FACTOR(squares);
  squares = 0.0f;
  EACH(i) squares += b[i] * b[i];
  const float factor_b = FACTOR(squares);
  // m is needed twice: computed twice rather than stored.
#define MERGED(i) (weighted(a[i], factor_a, 1.0f, GIVEN(5), wa, i) + weighted(b[i], factor_b, 1.0f, GIVEN(6), wb, i))
  squares = 0.0f;
  EACH(i) {
    const float m = MERGED(i);
    squares += m * m;
  }
  const float factor = FACTOR(squares);
  squares = 0.0f;
  EACH(i) {
    const float s = (residual[i] + weighted(MERGED(i), factor, 1.0f, GIVEN(7), w, i)) * p.scale;
    sum[i] = s;
    squares += s * s;
  }
  if (!GIVEN(1)) return;
  const float again = FACTOR(squares);
  EACH(i) HEAD(y_, 1)[i] = weighted(sum[i], again, 1.0f, GIVEN(8), wy, i);
}

kernel void ple_combine(device float *dst_ [[buffer(0)]], device const float *projected_ [[buffer(1)]], device const float *token_ [[buffer(2)]],
                        device const float *w [[buffer(3)]], NORM_PARAMS) {
  ROW_OF_GROUP;
  device float *dst = HEAD(dst_, 0);
  device const float *projected = HEAD(projected_, 1), *token = HEAD(token_, 2);
  float squares = 0.0f;
  EACH(i) {
    const float x = projected[i] * p.scale1;
    squares += x * x;
  }
  const float factor = FACTOR(squares);
  EACH(i) dst[i] = (weighted(projected[i] * p.scale1, factor, 1.0f, GIVEN(3), w, i) + token[i]) * p.scale;
}
