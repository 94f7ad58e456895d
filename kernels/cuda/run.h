// What CUDA op files share: what a stage sees when it launches, how many rows a launch is sized for, block reductions in a fixed order.
// A launch is sized by a bound that the host knows; every kernel asks the step block in device memory for the true count and leaves early.
#pragma once
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "../bao.h"
#include "../frontend/ops.h"

namespace bao {

constexpr int32_t most_tickets = 16384;

// What an op's launch reads and writes, when it is a single one whose operands these are.
struct Launched {
  struct Span { const char *from, *to; };
  bool known = false, apart = false;  // apart: it waits for the launch before it at its end, not its start
  bool late = false;                  // lets the next start only after its own wait (await_previous): then all before it have ended
  int32_t reads = 0, writes = 0;
  Span read[4], write[4];
  static Span span(const Tensor& t) { return {t.data, t.data + int64_t(t.d0) * t.stride}; }
  void reads_of(const Tensor& t) { if (t.present()) read[reads++] = span(t); }
  void writes_to(const Tensor& t) { if (t.present()) write[writes++] = span(t); }
  static bool meet(const Span* spans, int32_t n, const Span& with) {
    for (int32_t i = 0; i < n; i++) {
      if (spans[i].from < with.to && with.from < spans[i].to) return true;
    }
    return false;
  }
  // Whether what it writes is read or written by another.
  bool writes_meet(const Launched& other) const {
    for (int32_t i = 0; i < writes; i++) {
      if (meet(other.read, other.reads, write[i]) || meet(other.write, other.writes, write[i])) return true;
    }
    return false;
  }
};

// The op being launched, and those that may still run when it starts: since the last that was late.
struct LaunchOrder {
  static constexpr int32_t most = 4;
  Launched now, open[most];
  int32_t count = 0;
  bool unknown = true;  // others may still run, too
  bool first = true;    // nothing was launched by launch() since the step's data were written
  void next() {
    if (now.known && now.late) count = 0, unknown = false;
    if (!now.known || count == most) unknown = true;
    else open[count++] = now;
    now = Launched{};
  }
  // Whether all that wrote a tensor has ended when the op starts.
  bool settled(const Tensor& t) const {
    for (int32_t i = 0; i < count; i++) {
      if (Launched::meet(open[i].write, open[i].writes, Launched::span(t))) return false;
    }
    return !unknown;
  }
  // Whether an op may run beside all that may still run.
  bool apart(const Launched& op) const {
    for (int32_t i = 0; i < count; i++) {
      if (open[i].writes_meet(op) || op.writes_meet(open[i])) return false;
    }
    return !unknown && op.known;
  }
};
constexpr int32_t short_run = 8;  // up to this many rows in a row are of one sequence: decode rows, beside prompts

struct Run {
  const StepRef* step;  // device memory, one address for all submits; rows and outputs are -1 in a step that failed or was cancelled
  char* scratch;        // the stream's scratch
  cudaStream_t stream;
  int32_t rows, outputs;  // at least the step's
  int32_t multiprocessors;
  bool overlap;  // launches made by launch() may start before the one before them has ended
  uint32_t* tickets;  // most_tickets zeros: a launch may count its blocks' ends in them, and leaves zeros
  LaunchOrder* order;
  const int32_t* short_runs;  // device memory: how many rows of the step are in_short_run(), then those rows in ascending order
  int32_t bound(const Tensor& t) const { return t.rows_of == BAO_ROWS_FIXED ? t.d0 : t.rows_of == BAO_ROWS_STEP ? rows : outputs; }
  float* scratch_f32(int64_t offset) const { return reinterpret_cast<float*>(scratch + offset); }
  // A packed f32 tensor in scratch whose rows count like those of `like`.
  Tensor scratch_tensor(int64_t offset, const Tensor& like, int32_t d1, int32_t d2) const {
    return Tensor{scratch + offset, int64_t(d1) * d2 * 4, like.rows_of, BAO_F32, like.d0, d1, d2};
  }
};

// Records one stage that launches by Launch(args, run).
template <class Args, void (*Launch)(const Args&, const Run&)>
void stage(Builder& builder, const Args& args) {
  builder.add(&args, sizeof args, nullptr, [](const void* a, const Run& run, int32_t) { Launch(*static_cast<const Args*>(a), run); });
}

// Rows go over the grid's y, which has a limit: kernels stride over it.
inline unsigned grid_rows(int32_t rows) { return unsigned(rows < 1 ? 1 : rows > 65535 ? 65535 : rows); }
inline unsigned blocks_of(int64_t n, int64_t per) { return unsigned((n + per - 1) / per); }

#if defined(__CUDACC__)

// Launches a kernel that begins with await_previous() in every thread, before anything else but reads of weights and of what the start of the step
// left: rows, positions, page tables. On sm_90 and later it may start while the launch before it still runs (programmatic dependent launch). A kernel
// launched with <<<>>> is a full barrier on both sides, and so is the first launch after one that writes the step's data.
template <class... P, class... A>
void launch(const Run& run, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared, A&&... args) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  config.stream = run.stream;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = run.overlap && !run.order->first ? 1 : 0;
  run.order->first = false;
  cudaLaunchKernelEx(&config, kernel, P(static_cast<A&&>(args))...);
}

// Returns when all launches before this one have ended and their writes can be seen. Every thread calls it, also one that leaves at once:
// the launch after this one takes its end for the end of all before it.
__device__ __forceinline__ void await_previous() {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}

// The next launch may take free multiprocessors from here on; it still waits for this one's end in await_previous().
__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

// Both counts are read whichever it is: a load under a condition would be waited for before those that follow it.
__device__ __forceinline__ int32_t count_of(const StepRef* step, const Tensor& t) {
  int32_t rows = step->rows, outputs = step->outputs;
  return t.rows_of == BAO_ROWS_FIXED ? (rows < 0 ? 0 : t.d0) : t.rows_of == BAO_ROWS_STEP ? rows : outputs;
}

// Whether row r of the step lies among at most short_run rows of one sequence.
__device__ __forceinline__ bool in_short_run(const StepRef* step, int32_t rows, int32_t r) {
  const int32_t* sequence = step->row_sequence;
  int32_t mine = sequence[r], count = 1;
  for (int32_t i = r - 1; i >= 0 && count <= short_run && sequence[i] == mine; i--) count++;
  for (int32_t i = r + 1; i < rows && count <= short_run && sequence[i] == mine; i++) count++;
  return count <= short_run;
}

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
  for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
  return v;
}

__device__ __forceinline__ float warp_max(float v) {
#pragma unroll
  for (int o = 16; o; o >>= 1) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, o));
  return v;
}

// Sum over the block, the same for all threads; `shared` holds 32 floats. Warps are added in ascending order.
__device__ __forceinline__ float block_sum(float v, float* shared) {
  v = warp_sum(v);
  __syncthreads();
  if ((threadIdx.x & 31) == 0) shared[threadIdx.x >> 5] = v;
  __syncthreads();
  float sum = 0;
  for (int w = 0; w < int(blockDim.x >> 5); w++) sum += shared[w];
  return sum;
}

__device__ __forceinline__ float activate(float x, int32_t activation) {
  if (activation == BAO_ACTIVATION_SILU) return x / (1.0f + expf(-x));
  return 0.5f * x * (1.0f + tanhf(0.7978845608028654f * x * (1.0f + 0.044715f * x * x)));
}

#endif

// ---- launches that other ops are made of
void launch_glu(const GluArgs&, const Run&);
void launch_topk(const TopkSoftmaxArgs&, const Run&);
void launch_moe_sum(const MoeSumArgs&, const Run&);

// ---- record functions, one for each row of OpTable
namespace cuda {
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
}  // namespace cuda

}  // namespace bao
