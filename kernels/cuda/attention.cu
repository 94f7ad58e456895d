// Attention over paged KV: which kernel serves an op, and the plain one for whatever the others do not. Plain: one block serves up to 8 query heads
// of a KV head, for one row and one split of its pages; softmax streamed over pages in f32. Splits are combined in ascending order by a second
// launch. The number of splits depends on the sequence's own length only.
#include "attention.h"

namespace bao {
namespace {

constexpr int threads = 128, warps = threads / 32, page_tokens = BAO_KV_PAGE_TOKENS, most_heads = 8, most_splits = 32;
constexpr int split_rows = 32;  // up to this many rows a step's attention is split

struct Args {
  AttentionArgs a;
  int64_t partial;  // scratch: [row][head][split][2 + head_dim]: max, sum, accumulators
  int32_t splits;   // of the recording; 1: outputs are written directly
};

// The pages that a row sees, and how many splits share them.
struct Span { int32_t first, last, first_page, pages, splits; };

__device__ __forceinline__ Span span_of(int32_t position, int32_t window, int32_t splits) {
  Span s;
  s.last = position;
  s.first = window > 0 && position >= window ? position - window + 1 : 0;
  s.first_page = s.first / page_tokens;
  s.pages = s.last / page_tokens - s.first_page + 1;
  s.splits = s.pages < splits ? s.pages : splits;
  return s;
}

template <int KV, int HEADS>
__global__ void __launch_bounds__(threads) attention_kernel(const StepRef* step, Args args, float* partial) {
  const AttentionArgs& a = args.a;
  extern __shared__ float memory[];
  await_previous();
  let_next_start();
  __shared__ float scores[HEADS][page_tokens], maximum[HEADS], total[HEADS], correction[HEADS];
  int32_t n = a.dst.d2, per_kv = a.dst.d1 / a.pool.kv_heads, groups = (per_kv + HEADS - 1) / HEADS;
  float *q = memory, *sum = memory + HEADS * n;  // [HEADS][n] each
  int32_t kv_head = blockIdx.x / groups, first_head = kv_head * per_kv + int32_t(blockIdx.x) % groups * HEADS;
  int32_t heads = min(HEADS, (kv_head + 1) * per_kv - first_head);
  int32_t rows = count_of(step, a.dst), split = blockIdx.z, warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  for (int32_t r = blockIdx.y; r < rows; r += gridDim.y) {
    int32_t row = step->step_row(a.dst.rows_of, r), sequence = step->row_sequence[row];
    Span span = span_of(step->row_position[row], a.window, args.splits);
    if (split >= span.splits) continue;
    int32_t page_begin = span.first_page + int32_t(int64_t(span.pages) * split / span.splits);
    int32_t page_end = span.first_page + int32_t(int64_t(span.pages) * (split + 1) / span.splits);
    __syncthreads();
    for (int32_t i = threadIdx.x; i < HEADS * n; i += threads) {
      q[i] = i < heads * n ? a.q.f32(r)[int64_t(first_head) * n + i] : 0.0f;
      sum[i] = 0;
    }
    if (threadIdx.x < HEADS) maximum[threadIdx.x] = -INFINITY, total[threadIdx.x] = 0;
    __syncthreads();
    for (int32_t index = page_begin; index < page_end; index++) {
      int32_t page = page_of(step, a.pool.table, sequence, index * page_tokens);
      if (page < 0) continue;  // the checks at submit leave none
      const char *k = a.pool.plane(a.layer, page, kv_head, false), *v = a.pool.plane(a.layer, page, kv_head, true);
      int32_t begin = max(span.first - index * page_tokens, 0), end = min(span.last - index * page_tokens + 1, page_tokens);
      for (int32_t j = begin + warp; j < end; j += warps) {
        float dot[HEADS] = {};
        for (int32_t i = lane; i < n; i += 32) {
          float key = kv_value<KV>(k, a.pool.scales_offset, n, j, i);
#pragma unroll
          for (int h = 0; h < HEADS; h++) dot[h] += q[h * n + i] * key;
        }
#pragma unroll
        for (int h = 0; h < HEADS; h++) {
          float s = warp_sum(dot[h]);
          if (lane == 0) scores[h][j] = s * a.scale;
        }
      }
      __syncthreads();
      for (int32_t h = warp; h < HEADS; h += warps) {
        float high = -INFINITY;
        bool odd = false;  // fmaxf drops NaN; the sum must not
        for (int32_t j = begin + lane; j < end; j += 32) {
          float s = scores[h][j];
          odd = odd || isnan(s);
          high = fmaxf(high, s);
        }
        float before = maximum[h], now = fmaxf(before, warp_max(high));
        if (__any_sync(0xffffffffu, odd)) now = __int_as_float(0x7fc00000);
        float keep = before == -INFINITY ? 0.0f : expf(before - now), added = 0;
        for (int32_t j = begin + lane; j < end; j += 32) {
          // No score above -infinity so far: nothing to weigh yet.
          float p = now == -INFINITY ? 0.0f : expf(scores[h][j] - now);
          scores[h][j] = p;
          added += p;
        }
        added = warp_sum(added);
        if (lane == 0) maximum[h] = now, correction[h] = keep, total[h] = total[h] * keep + added;
      }
      __syncthreads();
      for (int32_t i = threadIdx.x; i < n; i += threads) {
        float acc[HEADS];
#pragma unroll
        for (int h = 0; h < HEADS; h++) acc[h] = sum[h * n + i] * correction[h];
        for (int32_t j = begin; j < end; j++) {
          float value = kv_value<KV>(v, a.pool.scales_offset, n, j, i);
#pragma unroll
          for (int h = 0; h < HEADS; h++) acc[h] += scores[h][j] * value;
        }
#pragma unroll
        for (int h = 0; h < HEADS; h++) sum[h * n + i] = acc[h];
      }
      __syncthreads();
    }
    for (int32_t h = 0; h < heads; h++) {
      if (args.splits == 1) {
        float* dst = a.dst.f32(r) + int64_t(first_head + h) * n;
        for (int32_t i = threadIdx.x; i < n; i += threads) dst[i] = total[h] == 0 ? 0.0f : sum[h * n + i] / total[h];
      } else {
        float* out = partial + ((int64_t(r) * a.dst.d1 + first_head + h) * args.splits + split) * (n + 2);
        for (int32_t i = threadIdx.x; i < n; i += threads) out[2 + i] = sum[h * n + i];
        if (threadIdx.x == 0) out[0] = maximum[h], out[1] = total[h];
      }
    }
  }
}

__global__ void __launch_bounds__(threads) combine_kernel(const StepRef* step, Args args, const float* partial) {
  const AttentionArgs& a = args.a;
  await_previous();
  let_next_start();
  int32_t rows = count_of(step, a.dst), n = a.dst.d2, head = blockIdx.x;
  for (int32_t r = blockIdx.y; r < rows; r += gridDim.y) {
    Span span = span_of(step->row_position[step->step_row(a.dst.rows_of, r)], a.window, args.splits);
    const float* part = partial + (int64_t(r) * a.dst.d1 + head) * args.splits * (n + 2);
    float high = -INFINITY, total = 0;
    for (int32_t s = 0; s < span.splits; s++) high = isnan(part[s * (n + 2)]) || isnan(high) ? __int_as_float(0x7fc00000) : fmaxf(high, part[s * (n + 2)]);
    float weight[most_splits];
    for (int32_t s = 0; s < span.splits; s++) {
      float m = part[s * (n + 2)];
      weight[s] = m == -INFINITY ? 0.0f : expf(m - high);
      total += part[s * (n + 2) + 1] * weight[s];
    }
    float* dst = a.dst.f32(r) + int64_t(head) * n;
    for (int32_t i = threadIdx.x; i < n; i += threads) {
      float sum = 0;
      for (int32_t s = 0; s < span.splits; s++) sum += part[s * (n + 2) + 2 + i] * weight[s];
      dst[i] = total == 0 ? 0.0f : sum / total;
    }
  }
}

template <int KV, int HEADS>
void launch_heads(const Args& args, const Run& run, int32_t rows, float* partial) {
  const AttentionArgs& a = args.a;
  int32_t groups = (a.dst.d1 / a.pool.kv_heads + HEADS - 1) / HEADS;
  size_t shared = size_t(2) * HEADS * a.dst.d2 * 4;
  auto kernel = attention_kernel<KV, HEADS>;
  if (shared > 40 * 1024) cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(shared));
  launch(run, kernel, dim3(unsigned(a.pool.kv_heads * groups), grid_rows(rows), unsigned(args.splits)), threads, shared, run.step, args, partial);
}

template <int KV>
void launch_type(const Args& args, const Run& run, int32_t rows, float* partial) {
  int32_t per_kv = args.a.dst.d1 / args.a.pool.kv_heads;
  if (per_kv == 1) launch_heads<KV, 1>(args, run, rows, partial);
  else if (per_kv <= 4) launch_heads<KV, 4>(args, run, rows, partial);
  else launch_heads<KV, most_heads>(args, run, rows, partial);
}

void launch_plain(const Args& recorded, const Run& run, int32_t rows) {
  Args args = recorded;
  // Enough blocks without splits: each row's block goes over all its pages.
  if (rows > split_rows) args.splits = 1;
  float* partial = run.scratch_f32(args.partial);
  switch (args.a.pool.dtype) {
    case BAO_F32: launch_type<BAO_F32>(args, run, rows, partial); break;
    case BAO_F16: launch_type<BAO_F16>(args, run, rows, partial); break;
    default: launch_type<BAO_Q8_0>(args, run, rows, partial); break;
  }
  if (args.splits > 1) launch(run, combine_kernel, dim3(unsigned(args.a.dst.d1), grid_rows(rows)), threads, 0, run.step, args, partial);
}

struct Attention { Args plain; Decode decode; };
void launch_attention(const Attention& o, const Run& run) {
  int32_t rows = run.bound(o.plain.a.dst);
  if (rows <= 0) return;
  if (rows <= decode_rows && decode_serves(o.plain.a)) {
    launch_decode(o.decode, run, false);
  } else if (prefill_serves(o.plain.a)) {  // decode then serves it too
    if (short_runs_apart(o.plain.a)) launch_decode(o.decode, run, true);
    if (!launch_warpgroup(o.plain.a, run)) launch_prefill(o.plain.a, run);
  } else {
    launch_plain(o.plain, run, rows);
  }
}

}  // namespace

namespace cuda {
void attention(Builder& b, const AttentionArgs& a) {
  Attention o{{a, 0, most_splits}, {a, 0, 1}};
  int32_t rows = a.dst.d0 < split_rows ? a.dst.d0 : split_rows;
  if (decode_serves(a)) reserve_decode(b, &o.decode);
  else o.plain.partial = b.reserve_scratch(int64_t(rows) * a.dst.d1 * most_splits * (a.dst.d2 + 2) * 4);
  stage<Attention, launch_attention>(b, o);
}
}  // namespace cuda

}  // namespace bao
