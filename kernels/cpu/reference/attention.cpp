// Reference of the KV cache and of attention: rounding to the pool's type, and a softmax in two passes over the visible positions.
#include "reference.h"

#include "../../common/dequant.h"

namespace bao::reference {
namespace {

// Page of a position, or -1: nothing is stored or read there. The checks at submit leave no such row.
int32_t page_of(const StepRef& step, const PoolRef& pool, int32_t sequence, int32_t position) {
  int32_t index = position / BAO_KV_PAGE_TOKENS;
  return position < 0 || index >= step.pages[pool.table] ? -1 : step.page(pool.table, sequence, index);
}

struct Place {
  int32_t sequence, position;
};

Place place_of(const StepRef& step, int32_t rows_of, int32_t r) {
  int32_t row = step.step_row(rows_of, r);
  return {step.row_sequence[row], step.row_position[row]};
}

void append(const PoolRef& pool, int32_t layer, const StepRef& step, Place at, int32_t head, bool v, const float* x) {
  int32_t page = page_of(step, pool, at.sequence, at.position);
  if (page >= 0) kv_write(pool, layer, page, head, v, at.position % BAO_KV_PAGE_TOKENS, x);
}

void kv_append_one(const KvAppendArgs& a, const Run& run, int32_t r) {
  Place at = place_of(*run.step, a.k.rows_of, r);
  for (int32_t h = 0; h < a.pool.kv_heads; h++) {
    append(a.pool, a.layer, *run.step, at, h, false, a.k.f32(r) + int64_t(h) * a.k.d2);
    append(a.pool, a.layer, *run.step, at, h, true, a.v.f32(r) + int64_t(h) * a.v.d2);
  }
}

void norm_head(float* x, const float* w, int32_t n, float eps) {
  double factor = rms_factor(x, n, eps);
  for (int32_t i = 0; i < n; i++) x[i] = normed(x[i], factor, 1.0f, w, i);
}

void head_norm_rope_append_one(const HeadNormRopeAppendArgs& a, const Run& run, int32_t r) {
  Place at = place_of(*run.step, a.q.rows_of, r);
  int32_t n = a.q.d2, half = a.table.d2;
  const float *cos = a.table.f32(r), *sin = cos + half;
  for (int32_t h = 0; h < a.q.d1; h++) {
    float* q = a.q.f32(r) + int64_t(h) * n;
    if (a.wq) norm_head(q, a.wq, n, a.eps);
    rotate(q, q, cos, sin, half, n, a.mode);
  }
  if (!a.k.present()) return;
  for (int32_t h = 0; h < a.pool.kv_heads; h++) {
    float* k = a.k.f32(r) + int64_t(h) * n;
    float* value = reinterpret_cast<float*>(run.worker_scratch);  // a copy: without a v of its own it is the raw k
    const float* v = a.v.present() ? a.v.f32(r) + int64_t(h) * n : k;
    for (int32_t i = 0; i < n; i++) value[i] = v[i];
    if (a.norm_v) norm_head(value, nullptr, n, a.eps);
    append(a.pool, a.layer, *run.step, at, h, true, value);
    if (a.wk) norm_head(k, a.wk, n, a.eps);
    rotate(k, k, cos, sin, half, n, a.mode);
    append(a.pool, a.layer, *run.step, at, h, false, k);
  }
}

int32_t attention_pieces(const void* args, const Run& run) {
  const AttentionArgs& a = *static_cast<const AttentionArgs*>(args);
  return run.step->count(a.dst) * a.dst.d1;
}

// One head of one row. Scores are computed in both passes instead of being stored: any context length, no memory.
void attention_head(const void* args, const Run& run, int32_t piece) {
  const AttentionArgs& a = *static_cast<const AttentionArgs*>(args);
  int32_t r = piece / a.dst.d1, head = piece % a.dst.d1, n = a.dst.d2;
  int32_t kv_head = head / (a.dst.d1 / a.pool.kv_heads);
  Place at = place_of(*run.step, a.dst.rows_of, r);
  const float* q = a.q.f32(r) + int64_t(head) * n;
  double* sum = reinterpret_cast<double*>(run.worker_scratch);
  float* kv = reinterpret_cast<float*>(run.worker_scratch + int64_t(n) * sizeof(double));
  int32_t first = a.window > 0 && at.position >= a.window ? at.position - a.window + 1 : 0;

  auto score = [&](int32_t page, int32_t slot) {
    kv_read(a.pool, a.layer, page, kv_head, false, slot, kv);
    double dot = 0;
    for (int32_t i = 0; i < n; i++) dot += double(q[i]) * kv[i];
    return dot * a.scale;
  };
  double max = -INFINITY;
  for (int32_t j = first; j <= at.position; j++) {
    int32_t page = page_of(*run.step, a.pool, at.sequence, j);
    if (page < 0) continue;
    double s = score(page, j % BAO_KV_PAGE_TOKENS);
    if (s > max) max = s;
  }
  double total = 0;
  for (int32_t i = 0; i < n; i++) sum[i] = 0;
  for (int32_t j = first; j <= at.position; j++) {
    int32_t page = page_of(*run.step, a.pool, at.sequence, j);
    if (page < 0) continue;
    double p = std::exp(score(page, j % BAO_KV_PAGE_TOKENS) - max);
    total += p;
    kv_read(a.pool, a.layer, page, kv_head, true, j % BAO_KV_PAGE_TOKENS, kv);
    for (int32_t i = 0; i < n; i++) sum[i] += p * kv[i];
  }
  float* dst = a.dst.f32(r) + int64_t(head) * n;
  for (int32_t i = 0; i < n; i++) dst[i] = total == 0 ? 0.0f : float(sum[i] / total);
}

}  // namespace

void kv_write(const PoolRef& pool, int64_t layer, int64_t page, int64_t head, bool v, int32_t slot, const float* x) {
  char* plane = pool.plane(layer, page, head, v);
  int64_t n = pool.head_dim;
  if (pool.dtype == BAO_F32) {
    float* dst = reinterpret_cast<float*>(plane) + slot * n;
    for (int64_t i = 0; i < n; i++) dst[i] = x[i];
  } else if (pool.dtype == BAO_F16) {
    uint16_t* dst = reinterpret_cast<uint16_t*>(plane) + slot * n;
    for (int64_t i = 0; i < n; i++) dst[i] = f32_to_f16(x[i]);
  } else {
    int8_t* dst = reinterpret_cast<int8_t*>(plane) + slot * n;
    float* scales = reinterpret_cast<float*>(plane + pool.scales_offset) + slot * (n / 32);
    for (int64_t block = 0; block < n / 32; block++) {
      const float* in = x + block * 32;
      float max = 0;
      bool finite = true;
      for (int i = 0; i < 32; i++) {
        finite = finite && std::isfinite(in[i]);
        if (std::fabs(in[i]) > max) max = std::fabs(in[i]);
      }
      float d = max / 127.0f;
      scales[block] = finite ? d : NAN;  // the whole block reads as NaN
      for (int i = 0; i < 32; i++) {
        float q = finite && d > 0 ? std::nearbyint(in[i] / d) : 0.0f;
        dst[block * 32 + i] = int8_t(q > 127 ? 127 : q < -127 ? -127 : q);  // a subnormal d may be far from max / 127
      }
    }
  }
}

void kv_read(const PoolRef& pool, int64_t layer, int64_t page, int64_t head, bool v, int32_t slot, float* x) {
  const char* plane = pool.plane(layer, page, head, v);
  int64_t n = pool.head_dim;
  if (pool.dtype == BAO_F32) {
    const float* src = reinterpret_cast<const float*>(plane) + slot * n;
    for (int64_t i = 0; i < n; i++) x[i] = src[i];
  } else if (pool.dtype == BAO_F16) {
    const uint16_t* src = reinterpret_cast<const uint16_t*>(plane) + slot * n;
    for (int64_t i = 0; i < n; i++) x[i] = f16_to_f32(src[i]);
  } else {
    const int8_t* src = reinterpret_cast<const int8_t*>(plane) + slot * n;
    const float* scales = reinterpret_cast<const float*>(plane + pool.scales_offset) + slot * (n / 32);
    for (int64_t i = 0; i < n; i++) x[i] = scales[i / 32] * float(src[i]);
  }
}

void kv_append(Builder& b, const KvAppendArgs& a) { by_row<KvAppendArgs, &KvAppendArgs::k, kv_append_one>(b, a); }
void head_norm_rope_append(Builder& b, const HeadNormRopeAppendArgs& a) {
  by_row<HeadNormRopeAppendArgs, &HeadNormRopeAppendArgs::q, head_norm_rope_append_one>(b, a);
}
void attention(Builder& b, const AttentionArgs& a) { b.add(&a, sizeof a, attention_pieces, attention_head); }

}  // namespace bao::reference
