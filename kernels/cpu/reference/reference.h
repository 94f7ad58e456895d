// The plain reference of every op: simple loops, the oracle for fast CPU kernels and for all other backends. Long sums are taken in double
// and rounded once. Shares no code with fast/; the one exception is common/sample_mass.h, which defines integers, not speed.
#pragma once
#include <cmath>
#include <cstdint>

#include "../../bao.h"
#include "../ops.h"

namespace bao::reference {

// Records one stage with a piece for each row of the operand `Leader`; row(args, run, r) does the work of row r.
template <class Args, Tensor Args::*Leader, void (*Row)(const Args&, const Run&, int32_t)>
void by_row(Builder& builder, const Args& args) {
  builder.add(
      &args, sizeof args, [](const void* a, const Run& run) -> int32_t { return run.step->count(static_cast<const Args*>(a)->*Leader); },
      [](const void* a, const Run& run, int32_t piece) { Row(*static_cast<const Args*>(a), run, piece); });
}

// ---- the arithmetic that plain and fused ops share, so that both give the same bits

// 1 / sqrt(mean(x^2) + eps), unrounded.
inline double rms_factor(const float* x, int64_t n, float eps) {
  double sum = 0;
  for (int64_t i = 0; i < n; i++) sum += double(x[i]) * x[i];
  return 1.0 / std::sqrt(sum / double(n) + double(eps));
}

// x * factor * scale * w, rounded once. w = null: no weight.
inline float normed(float x, double factor, float scale, const float* w, int64_t i) {
  return float(double(x) * factor * scale * (w ? w[i] : 1.0f));
}

float activate(float x, int32_t activation);  // glu.cpp

// One row of the weight times one row of x, times the expert's factor.
float weight_dot(const WeightRef& w, int64_t expert, int64_t row, const float* x);

// How the activations of a matmul with w are rounded on a device whose ops carry `fast` (ops.h): 0 not, 1 to int8, 2 to bf16. int8 is for
// quantised weights only, and F32 weights always meet f32 activations.
int32_t rounding(const WeightRef& w, int32_t fast);

// To int8 and back, per 32: id = 127 / max|x| in f32, q = x * id to nearest (ties to even), result q * d with d = max|x| / 127 in f32.
// A block with a NaN or an infinity becomes all NaN. A block whose id overflows (max|x| below 4e-37) becomes 0.
void round_to_int8(float* dst, const float* x, int64_t n);

// Records the stage that rounds all rows of x into scratch, and gives x as the following stages are to read it.
struct Activations {
  Tensor x;
  int64_t scratch;  // byte offset of the rounded rows, packed; -1: read x itself
  const float* row(const Run& run, int64_t r) const {
    return scratch < 0 ? x.f32(r) : reinterpret_cast<const float*>(run.scratch + scratch) + r * x.columns();
  }
};
Activations activations(Builder& builder, const Tensor& x, int32_t rounding);

// Rotates the first 2 * half values of one head; cos and sin hold `half` values each.
void rotate(float* dst, const float* x, const float* cos, const float* sin, int32_t half, int32_t head_dim, int32_t mode);

// Writes one head's K or V at token `slot` of a page, rounded to the pool's type; reads it back as f32.
void kv_write(const PoolRef& pool, int64_t layer, int64_t page, int64_t head, bool v, int32_t slot, const float* x);
void kv_read(const PoolRef& pool, int64_t layer, int64_t page, int64_t head, bool v, int32_t slot, float* x);

// The k largest logits of a row, largest first, ties to the lower id, NaN last; and their probabilities.
void topk_row(int32_t* ids, float* weights, const float* logits, int32_t experts, int32_t k, int32_t renormalise);

// ---- record functions, one for each row of OpTable

void embed(Builder&, const EmbedArgs&);
void rms_norm(Builder&, const RmsNormArgs&);
void norm_add(Builder&, const NormAddArgs&);
void add_norm(Builder&, const AddNormArgs&);
void norm_add_norms(Builder&, const NormAddNormsArgs&);
void moe_merge(Builder&, const MoeMergeArgs&);
void rope_table(Builder&, const RopeTableArgs&);
void rope(Builder&, const RopeArgs&);
void kv_append(Builder&, const KvAppendArgs&);
void head_norm_rope_append(Builder&, const HeadNormRopeAppendArgs&);
void attention(Builder&, const AttentionArgs&);
void matmul(Builder&, const MatmulArgs&);
void matmul_group(Builder&, const MatmulGroupArgs&);
void glu(Builder&, const GluArgs&);
void matmul_glu(Builder&, const MatmulGluArgs&);
void topk_softmax(Builder&, const TopkSoftmaxArgs&);
void router(Builder&, const RouterArgs&);
void moe_matmul(Builder&, const MoeMatmulArgs&);
void moe_matmul_glu(Builder&, const MoeMatmulGluArgs&);
void moe_sum(Builder&, const MoeSumArgs&);
void moe_matmul_sum(Builder&, const MoeMatmulSumArgs&);
void add(Builder&, const AddArgs&);
void scale(Builder&, const ScaleArgs&);
void softcap(Builder&, const ScaleArgs&);
void copy(Builder&, const CopyArgs&);
void gather_rows(Builder&, const CopyArgs&);
void ple_combine(Builder&, const PleCombineArgs&);
void pool_rows(Builder&, const CopyArgs&);
void argmax(Builder&, const CopyArgs&);
void logits_process(Builder&, const LogitsArgs&);
void logprobs(Builder&, const SampleArgs&);
void sample(Builder&, const SampleArgs&);

}  // namespace bao::reference
