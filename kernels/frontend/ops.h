// What an op is: its arguments as plain structs, and the table of record functions that a set of kernels fills. All pointers are the device's own.
// Included by files compiled for one instruction set each, and by device code: plain data and always-inlined accessors only, nothing of the
// standard library.
#pragma once
#include <stdint.h>

#if defined(__CUDACC__)
#define BAO_INLINE __host__ __device__ __forceinline__
#else
#define BAO_INLINE inline __attribute__((always_inline))
#endif

namespace bao {

// ---------------------------------------------------------------- operands

// A view: rows of d1 * d2 contiguous elements, `stride` bytes apart.
struct Tensor {
  char* data;
  int64_t stride;
  int32_t rows_of;  // BAO_ROWS_*
  int32_t dtype;    // BAO_F32 or BAO_I32
  int32_t d0, d1, d2;
  BAO_INLINE bool present() const { return data != nullptr; }
  BAO_INLINE int64_t columns() const { return int64_t(d1) * d2; }
  BAO_INLINE float* f32(int64_t row) const { return reinterpret_cast<float*>(data + row * stride); }
  BAO_INLINE int32_t* i32(int64_t row) const { return reinterpret_cast<int32_t*>(data + row * stride); }
};

// A weight [experts][rows][columns]; `factors` (1 or `experts` of them) multiply the output when not null.
struct WeightRef {
  const uint8_t* data;
  int32_t dtype, rows, columns, experts;
  int64_t row_bytes, expert_bytes;
  const float* factors;
  int32_t factor_count;
  BAO_INLINE bool present() const { return data != nullptr; }
  BAO_INLINE const uint8_t* row(int64_t expert, int64_t r) const { return data + expert * expert_bytes + r * row_bytes; }
  BAO_INLINE float factor(int64_t expert) const { return !factors ? 1.0f : factors[factor_count == 1 ? 0 : expert]; }
};

// A KV pool. Layer l, page p starts at base + l * layer_stride + p * page_stride; in it K planes, then V planes of one KV head each:
// [64][head_dim] of F32 or F16; Q8_0: [64][head_dim] int8, then [64][head_dim / 32] f32 scales, each part 128-byte aligned.
struct PoolRef {
  char* base;
  int64_t layer_stride, page_stride;
  int64_t plane_bytes;    // one head's K (or V) plane, scales included, rounded up to 128
  int64_t scales_offset;  // within a plane, Q8_0 only
  int32_t table, layers, kv_heads, head_dim, dtype;
  BAO_INLINE char* plane(int64_t layer, int64_t page, int64_t head, bool v) const {
    return base + layer * layer_stride + page * page_stride + ((v ? kv_heads : 0) + head) * plane_bytes;
  }
};

// What changes from step to step, as ops see it while a submit runs. Ids and positions are resolved (never -1).
struct StepRef {
  int32_t rows, outputs;
  const int32_t* row_sequence;   // [rows]
  const int32_t* row_id;         // [rows]
  const int32_t* row_position;   // [rows]
  const int32_t* output_row;     // [outputs]
  const int32_t* sampler;        // [outputs][BAO_SAMPLER_WORDS]
  const int32_t* bias;           // [maxBias][2]
  int32_t* result;               // [outputs][BAO_RESULT_WORDS], the slot's RESULT field
  const int32_t* table[4];       // [sequence][pages[t]]
  int32_t pages[4];
  int32_t vocabulary, max_sequences;
  int32_t* next_id;              // [sequence]
  int32_t* length;               // [sequence]
  int32_t* history;              // [sequence][64], a ring; entry i is the id at history_count - n + ...: see history_at
  int32_t* history_count;        // [sequence] ids ever appended; the last min(64, count) are valid
  // The step's row behind row r of an operand.
  BAO_INLINE int32_t step_row(int32_t rows_of, int32_t r) const { return rows_of == 2 ? output_row[r] : r; }
  BAO_INLINE int32_t count(const Tensor& t) const { return t.rows_of == 0 ? t.d0 : t.rows_of == 1 ? rows : outputs; }
  BAO_INLINE int32_t page(int32_t t, int32_t sequence, int32_t index) const { return table[t][int64_t(sequence) * pages[t] + index]; }
};

// ---------------------------------------------------------------- running

// What a backend hands to its ops when they run: each backend defines its own (the pieces of a CPU stage, or a launch on a GPU).
struct Run;
using PiecesFn = int32_t (*)(const void* args, const Run& run);               // number of independent pieces of this stage for this step
using RunFn = void (*)(const void* args, const Run& run, int32_t piece);      // on a GPU: launches the stage, pieces is null and piece 0

// Records the stages of one op. Stages run one after the other; the pieces of a stage run on any thread, in any order.
struct Builder {
  virtual void add(const void* args, int64_t bytes, PiecesFn pieces, RunFn run) = 0;  // copies args
  virtual int64_t reserve_scratch(int64_t bytes) = 0;  // offset of a 128-byte-aligned range that lives for this op
};

// ---------------------------------------------------------------- arguments, one struct an op (bao.h says what each does)

struct EmbedArgs { Tensor dst; WeightRef w; float scale; };
struct RmsNormArgs { Tensor dst, x; const float* w; float eps, scale; };
struct NormAddArgs { Tensor dst, residual, x; const float* w; float eps, scale; };
struct AddNormArgs { Tensor sum, dst, residual, x; const float* w; float eps; };
struct NormAddNormsArgs { Tensor sum, y0, y1, y2, residual, x; const float *w, *w0, *w1, *w2; float scale1, eps, scale; };
struct MoeMergeArgs { Tensor sum, y, residual, a, b; const float *wa, *wb, *w, *wy; float eps, scale; };
struct RopeTableArgs { Tensor dst; const float* factors; int32_t n_rot; float base, freq_scale; };
struct RopeArgs { Tensor dst, x, table; int32_t mode; };
struct KvAppendArgs { PoolRef pool; int32_t layer; Tensor k, v; };
struct HeadNormRopeAppendArgs { Tensor q, k, v, table; const float *wq, *wk; PoolRef pool; int32_t mode, layer, norm_v; float eps; };
struct AttentionArgs { Tensor dst, q; PoolRef pool; int32_t layer, window; float scale; int32_t fast = 0; };  // fast: q and probabilities may be rounded to f16
struct MatmulArgs { Tensor dst, x; WeightRef w; int32_t fast; };                       // fast: 0 f32 activations, 1 int8, 2 bf16, 3 as the backend likes, by shape
struct MatmulGroupArgs { Tensor dst[3]; Tensor x; WeightRef w[3]; int32_t fast; };
struct GluArgs { Tensor dst, gate, up; int32_t activation; };
struct MatmulGluArgs { Tensor dst, x; WeightRef gate, up; int32_t activation, fast; };
struct TopkSoftmaxArgs { Tensor ids, weights, logits; int32_t renormalise; };
struct RouterArgs { Tensor ids, weights, x; WeightRef w; int32_t renormalise, fast; };
struct MoeMatmulArgs { Tensor dst, x, ids; WeightRef w; int32_t fast; };
struct MoeMatmulGluArgs { Tensor dst, x, ids; WeightRef gate, up; int32_t activation, fast; };
struct MoeSumArgs { Tensor dst, x, weights; };
struct MoeMatmulSumArgs { Tensor dst, x, ids, weights; WeightRef w; int32_t fast; };
struct AddArgs { Tensor dst, a, b; };
struct ScaleArgs { Tensor dst, x; float factor; };                                     // also softcap: factor = cap
struct CopyArgs { Tensor dst, x; };                                                    // also gather_rows, pool_rows, argmax
struct PleCombineArgs { Tensor dst, projected, token; const float* w; float eps, projected_scale, scale; };
struct LogitsArgs { Tensor logits, mask; };
struct SampleArgs { Tensor logits; };                                                  // also logprobs; results go to StepRef::result

// A set of kernels: for each op the function that records its stages. The entry points (bao_*) validate, fill the arguments and call it.
struct OpTable {
  void (*embed)(Builder&, const EmbedArgs&);
  void (*rms_norm)(Builder&, const RmsNormArgs&);
  void (*norm_add)(Builder&, const NormAddArgs&);
  void (*add_norm)(Builder&, const AddNormArgs&);
  void (*norm_add_norms)(Builder&, const NormAddNormsArgs&);
  void (*moe_merge)(Builder&, const MoeMergeArgs&);
  void (*rope_table)(Builder&, const RopeTableArgs&);
  void (*rope)(Builder&, const RopeArgs&);
  void (*kv_append)(Builder&, const KvAppendArgs&);
  void (*head_norm_rope_append)(Builder&, const HeadNormRopeAppendArgs&);
  void (*attention)(Builder&, const AttentionArgs&);
  void (*matmul)(Builder&, const MatmulArgs&);
  void (*matmul_group)(Builder&, const MatmulGroupArgs&);
  void (*glu)(Builder&, const GluArgs&);
  void (*matmul_glu)(Builder&, const MatmulGluArgs&);
  void (*topk_softmax)(Builder&, const TopkSoftmaxArgs&);
  void (*router)(Builder&, const RouterArgs&);
  void (*moe_matmul)(Builder&, const MoeMatmulArgs&);
  void (*moe_matmul_glu)(Builder&, const MoeMatmulGluArgs&);
  void (*moe_sum)(Builder&, const MoeSumArgs&);
  void (*moe_matmul_sum)(Builder&, const MoeMatmulSumArgs&);
  void (*add)(Builder&, const AddArgs&);
  void (*scale)(Builder&, const ScaleArgs&);
  void (*softcap)(Builder&, const ScaleArgs&);
  void (*copy)(Builder&, const CopyArgs&);
  void (*gather_rows)(Builder&, const CopyArgs&);
  void (*ple_combine)(Builder&, const PleCombineArgs&);
  void (*pool_rows)(Builder&, const CopyArgs&);
  void (*argmax)(Builder&, const CopyArgs&);
  void (*logits_process)(Builder&, const LogitsArgs&);
  void (*logprobs)(Builder&, const SampleArgs&);
  void (*sample)(Builder&, const SampleArgs&);
};

}  // namespace bao
