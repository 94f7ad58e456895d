// Prefill attention over f16 KV on tensor cores: a block takes 64 (row, query head) pairs of one KV head and goes over the KV pages that they see.
// Two groups of four warps have 32 pairs each; of a page a warp scores 16 tokens, then sums a quarter of the values. q and probabilities are f16,
// sums f32. Rows of several sequences may share a block: it then goes over each sequence's pages in turn.
#include "attention.h"

namespace bao {
namespace {

constexpr int threads = 256, warps = threads / 32, pairs = 64, page_tokens = BAO_KV_PAGE_TOKENS, parts = 4;

template <int D>
struct Shape {
  static constexpr int row_bytes = 2 * D, tile_bytes = pairs * row_bytes, p_row_bytes = 2 * page_tokens;
  static constexpr int shared_bytes = 3 * tile_bytes + pairs * p_row_bytes;
};

template <int D>
__global__ void __launch_bounds__(threads, D > 256 ? 1 : 2) prefill_kernel(const StepRef* step, AttentionArgs a) {
  using S = Shape<D>;
  extern __shared__ __align__(128) char memory[];
  __shared__ float factors[pairs];
  __shared__ float4 exchange[pairs];  // of each pair a value from each part of a page
  __shared__ int32_t sequences[pairs], positions[pairs];  // sequence -1: the row is not this kernel's
  __shared__ int2 spans[pairs], common;  // of each pair, what it sees of the sequence at hand; what all of them see
  await_previous();
  let_next_start();
  const int32_t heads = a.dst.d1 / a.pool.kv_heads, block_rows = pairs / heads, kv_head = blockIdx.x, rows = count_of(step, a.dst), tiles = (max(rows, 0) + block_rows - 1) / block_rows;
  const int32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, part = warp % parts, first_pair = warp / parts * 32;
  const uint32_t q_tile = shared_address(memory), k_tile = q_tile + S::tile_bytes, v_tile = k_tile + S::tile_bytes, p_tile = v_tile + S::tile_bytes;
  // Rows of tiles are swizzled: chunk c of 16 bytes of row i lies at c ^ (i % 8), so that eight rows' chunks meet no bank twice.
  const uint32_t swizzle = lane & 7;
  const uint32_t q_from = q_tile + (first_pair + (lane & 15)) * S::row_bytes + (((lane >> 4) ^ swizzle) << 4);
  const uint32_t k_from = k_tile + (part * 16 + (lane & 7) + ((lane >> 4) << 3)) * S::row_bytes + ((((lane >> 3) & 1) ^ swizzle) << 4);
  const uint32_t p_from = p_tile + (first_pair + (lane & 15)) * S::p_row_bytes + (((lane >> 4) ^ swizzle) << 4);
  const uint32_t v_from = v_tile + (lane & 15) * S::row_bytes;

  // The last rows see the most: their blocks start first.
  for (int32_t tile = int32_t(gridDim.y - 1 - blockIdx.y); tile < tiles; tile += gridDim.y) {
    const int32_t first_row = tile * block_rows, count = min(block_rows, rows - first_row);
    __syncthreads();
    bool mine = false;
    if (int32_t i = threadIdx.x; i < count) {
      int32_t row = step->step_row(a.dst.rows_of, first_row + i);
      mine = !short_runs_apart(a) || !in_short_run(step, rows, row);
      sequences[i] = mine ? step->row_sequence[row] : -1;
      positions[i] = step->row_position[row];
    }
    if (!__syncthreads_or(mine)) continue;
    for (int32_t m = warp; m < pairs; m += warps) {
      const bool used = m / heads < count;  // pairs beyond the last whole row have m / heads = block_rows
      const float* q = a.q.f32(first_row + (used ? m / heads : 0)) + (int64_t(kv_head) * heads + m % heads) * D;
      float value[(D + 255) / 256][8], largest = 0;
#pragma unroll
      for (int i = 0; i < (D + 255) / 256; i++) {
        const int32_t d = (i * 32 + lane) * 8;
        float4 low{0, 0, 0, 0}, high{0, 0, 0, 0};
        if (d < D && used) low = *reinterpret_cast<const float4*>(q + d), high = *reinterpret_cast<const float4*>(q + d + 4);
        *reinterpret_cast<float4*>(value[i]) = low;
        *reinterpret_cast<float4*>(value[i] + 4) = high;
#pragma unroll
        for (int j = 0; j < 8; j++) largest = fmaxf(largest, fabsf(value[i][j]));
      }
      const PowerOfTwo scale = fitting(warp_max(largest));
      if (lane == 0) factors[m] = scale.up * a.scale * log2_e;
#pragma unroll
      for (int i = 0; i < (D + 255) / 256; i++) {
        const int32_t chunk = i * 32 + lane;
        if (chunk * 8 >= D) continue;
        const float* x = value[i];
        const float f = scale.down;
        *reinterpret_cast<uint4*>(memory + m * S::row_bytes + ((chunk ^ (m & 7)) << 4)) =
            uint4{packed(x[0] * f, x[1] * f), packed(x[2] * f, x[3] * f), packed(x[4] * f, x[5] * f), packed(x[6] * f, x[7] * f)};
      }
    }
    __syncthreads();

    // A lane's four pairs: first_pair + g + 8 * i.
    float highest[4], sum[4] = {}, out[2][D / 32][4] = {};
#pragma unroll
    for (int i = 0; i < 4; i++) highest[i] = -INFINITY;

    for (int32_t begin = 0, end; begin < count; begin = end) {
      const int32_t sequence = sequences[begin];
      for (end = begin + 1; end < count && sequences[end] == sequence; end++) {}
      if (sequence < 0) continue;
      const int32_t first = first_seen(positions[begin], a.window), last = positions[end - 1];
      auto copy_page = [&](uint32_t tile_at, int32_t page, int32_t index, bool v) {
        const char* plane = page < 0 ? a.pool.base : a.pool.plane(a.layer, page, kv_head, v);
#pragma unroll 2  // more would leave too few registers at head_dim 256
        for (int i = 0; i < pairs * D / 8 / threads; i++) {
          const int32_t at = i * threads + threadIdx.x, token = at / (D / 8), chunk = at % (D / 8), position = index * page_tokens + token;
          const bool seen = page >= 0 && position >= first && position <= last;
          copy_16(tile_at + token * S::row_bytes + ((chunk ^ (token & 7)) << 4), page < 0 ? plane : plane + at * 16, seen ? 16 : 0);
        }
        copies_end();
      };

      const int32_t last_index = last / page_tokens;
      int32_t index = first / page_tokens, page = page_of(step, a.pool.table, sequence, index * page_tokens);
      __syncthreads();  // the former sequence's tiles and spans have been read
      if (threadIdx.x < pairs) {
        const int32_t row = int32_t(threadIdx.x) / heads;
        spans[threadIdx.x] = row >= begin && row < end ? int2{first_seen(positions[row], a.window), positions[row]} : int2{0, -1};
        if (threadIdx.x == 0) common = begin == 0 && end == count ? int2{first_seen(last, a.window), positions[begin]} : int2{0, -1};
      }
      copy_page(k_tile, page, index, false);
      for (; index <= last_index; index++) {
        const int32_t next_page = index < last_index ? page_of(step, a.pool.table, sequence, (index + 1) * page_tokens) : -1;
        await_copies<0>();
        __syncthreads();
        copy_page(v_tile, page, index, true);

        // ---- scores: 32 pairs x 16 tokens
        float s[2][2][4] = {};
#pragma unroll
        for (int c = 0; c < D / 16; c++) {
          const uint32_t flip = (2 * c & 7) << 4, offset = (2 * c & ~7) << 4;
          const uint4 q0 = load_matrices((q_from ^ flip) + offset), q1 = load_matrices((q_from ^ flip) + offset + 16 * S::row_bytes), k = load_matrices((k_from ^ flip) + offset);
          multiply_add(s[0][0], q0.x, q0.y, q0.z, q0.w, k.x, k.y);
          multiply_add(s[0][1], q0.x, q0.y, q0.z, q0.w, k.z, k.w);
          multiply_add(s[1][0], q1.x, q1.y, q1.z, q1.w, k.x, k.y);
          multiply_add(s[1][1], q1.x, q1.y, q1.z, q1.w, k.z, k.w);
        }
        const int32_t token = index * page_tokens + part * 16 + 2 * t;
        const bool whole = index * page_tokens >= common.x && index * page_tokens + page_tokens - 1 <= common.y;
#pragma unroll
        for (int i = 0; i < 4; i++) {
          const int32_t pair = first_pair + g + 8 * i;
          const float factor = factors[pair];
          const int2 span = whole ? int2{0, INT32_MAX} : spans[pair];
          float high = -INFINITY;
#pragma unroll
          for (int j = 0; j < 4; j++) {
            float& score = s[i / 2][j / 2][i % 2 * 2 + j % 2];
            const int32_t at = token + j / 2 * 8 + j % 2;
            score = at >= span.x && at <= span.y ? score * factor : -INFINITY;
            high = fmaxf(high, score);
          }
          high = fmaxf(high, __shfl_xor_sync(0xffffffffu, high, 1));
          high = fmaxf(high, __shfl_xor_sync(0xffffffffu, high, 2));
          if (t == 0) reinterpret_cast<float*>(exchange + pair)[part] = high;
        }
        __syncthreads();
        if (index < last_index) copy_page(k_tile, next_page, index + 1, false);
        else copies_end();

        // ---- probabilities to shared memory
        float keep[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
          const int32_t pair = first_pair + g + 8 * i;
          const float4 of = exchange[pair];
          const float high = fmaxf(fmaxf(highest[i], fmaxf(of.x, of.y)), fmaxf(of.z, of.w)), base = high == -INFINITY ? 0.0f : high;
          keep[i] = exp2f(highest[i] - base);
          highest[i] = high;
          sum[i] *= keep[i];
#pragma unroll
          for (int j = 0; j < 2; j++) {
            const float p0 = exp2f(s[i / 2][j][i % 2 * 2] - base + probability_shift), p1 = exp2f(s[i / 2][j][i % 2 * 2 + 1] - base + probability_shift);
            sum[i] += p0 + p1;
            *reinterpret_cast<uint32_t*>(memory + 3 * S::tile_bytes + pair * S::p_row_bytes + (((part * 2 + j) ^ (pair & 7)) << 4) + t * 4) = packed(p0, p1);
          }
        }
        if (__any_sync(0xffffffffu, keep[0] != 1.0f || keep[1] != 1.0f || keep[2] != 1.0f || keep[3] != 1.0f)) {
#pragma unroll
          for (int c = 0; c < D / 32; c++) {
#pragma unroll
            for (int i = 0; i < 2; i++) out[i][c][0] *= keep[2 * i], out[i][c][1] *= keep[2 * i], out[i][c][2] *= keep[2 * i + 1], out[i][c][3] *= keep[2 * i + 1];
          }
        }
        await_copies<1>();
        __syncthreads();

        // ---- outputs: 32 pairs x a quarter of the values
#pragma unroll
        for (int c = 0; c < page_tokens / 16; c++) {
          const uint32_t p_at = p_from ^ ((2 * c) << 4), v_at = v_from + c * 16 * S::row_bytes;
          const uint4 p0 = load_matrices(p_at), p1 = load_matrices(p_at + 16 * S::p_row_bytes);
#pragma unroll
          for (int n = 0; n < D / 64; n++) {
            const uint32_t chunk = part * (D / 32) + 2 * n + (lane >> 4);
            const uint4 v = load_matrices_transposed(v_at + ((chunk ^ swizzle) << 4));
            multiply_add(out[0][2 * n], p0.x, p0.y, p0.z, p0.w, v.x, v.y);
            multiply_add(out[0][2 * n + 1], p0.x, p0.y, p0.z, p0.w, v.z, v.w);
            multiply_add(out[1][2 * n], p1.x, p1.y, p1.z, p1.w, v.x, v.y);
            multiply_add(out[1][2 * n + 1], p1.x, p1.y, p1.z, p1.w, v.z, v.w);
          }
        }
        page = next_page;
      }
    }

    // ---- divided by the sums over all parts
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 4; i++) {
      sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], 1);
      sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], 2);
      if (t == 0) reinterpret_cast<float*>(exchange + first_pair + g + 8 * i)[part] = sum[i];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int32_t pair = first_pair + g + 8 * i, row = pair / heads;
      if (row >= count || sequences[row] < 0) continue;
      const float4 of = exchange[pair];
      const float total = (of.x + of.y) + (of.z + of.w), inverse = total == 0 ? 0.0f : 1.0f / total;
      float* dst = a.dst.f32(first_row + row) + (int64_t(kv_head) * heads + pair % heads) * D + part * (D / 4) + 2 * t;
#pragma unroll
      for (int c = 0; c < D / 32; c++) *reinterpret_cast<float2*>(dst + 8 * c) = float2{out[i / 2][c][i % 2 * 2] * inverse, out[i / 2][c][i % 2 * 2 + 1] * inverse};
    }
  }
}

template <int D>
void launch_dims(const AttentionArgs& a, const Run& run) {
  int32_t block_rows = pairs / (a.dst.d1 / a.pool.kv_heads);
  cudaFuncSetAttribute(prefill_kernel<D>, cudaFuncAttributeMaxDynamicSharedMemorySize, Shape<D>::shared_bytes);
  launch(run, prefill_kernel<D>, dim3(unsigned(a.pool.kv_heads), grid_rows(int32_t(blocks_of(run.bound(a.dst), block_rows)))), threads, Shape<D>::shared_bytes, run.step, a);
}

}  // namespace

bool prefill_serves(const AttentionArgs& a) {
  int32_t n = a.dst.d2;
  return a.fast && a.pool.dtype == BAO_F16 && (n == 64 || n == 128 || n == 256 || n == 512) && a.dst.d1 / a.pool.kv_heads <= pairs && aligned_rows(a.dst) && aligned_rows(a.q);
}

void launch_prefill(const AttentionArgs& a, const Run& run) {
  switch (a.dst.d2) {
    case 64: launch_dims<64>(a, run); break;
    case 128: launch_dims<128>(a, run); break;
    case 256: launch_dims<256>(a, run); break;
    default: launch_dims<512>(a, run); break;
  }
}

}  // namespace bao
