// Products of one weight with rows of activations, or of experts with (row, slot) pairs: a mat-vec for few rows, matrix tiles for many.
// x in f32, or rounded to bf16 as it is read; sums in f32 in an order that depends on the kernel and the columns only.
#include "kernel.h"
#include "activate.h"
#include "matmul_piece.h"

#define PRODUCT_PARAMS                                                                                                                              \
  device float *dst_ [[buffer(0)]], device const float *x_ [[buffer(1)]], device const uint8_t *w_ [[buffer(2)]], device const float *factors [[buffer(3)]], \
      device const int32_t *ids [[buffer(4)]], device const int32_t *groups [[buffer(5)]], device const uint8_t *up_ [[buffer(6)]],                      \
      device const float *up_factors [[buffer(7)]], device const float *weights_ [[buffer(8)]], constant ProductParams &p [[buffer(24)]], STEP_PARAMS, \
      uint2 at [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]], uint warp [[simdgroup_index_in_threadgroup]]

inline float rounded(float x, bool bf16) { return bf16 ? bf16_to_f32(f32_to_bf16(x)) : x; }

// Whether all rows begin at multiples of 4.
inline bool aligned_rows(constant WeightRows &w) { return w.skip == 0 && w.row_bytes % 4 == 0; }

// The factor of an expert.
inline float factor_of(device const float *factors, constant WeightRows &w, int32_t expert) {
  return w.factor_count == 0 ? 1.0f : factors[w.factor_count == 1 ? 0 : expert];
}

// x of a row and slot.
inline device const float *x_of(device const float *x, constant ProductParams &p, int32_t row, int32_t slot) {
  return row_of(x, p.x, row) + (p.x.d1 == 1 ? 0 : slot * p.w.columns);
}

// ---- few rows: a simdgroup multiplies N rows of the weight with R rows of x, or with one pair. Lanes take pieces in turn.
// GLU: half of the N are rows of the gate, the others those of up, and activation(gate) * up is one result.

#define VECTOR_SIMDGROUPS 4

template <int R, bool GLU>
kernel void product_vector(PRODUCT_PARAMS) {
  constexpr int N = R == 1 ? 4 : 2, M = GLU ? N / 2 : N;
  const Step step = STEP;
  const int32_t rows = step.count(p.dst), j0 = (int32_t(at.x) * VECTOR_SIMDGROUPS + int32_t(warp)) * M, k = p.ids.d0 == 0 ? 0 : p.ids.d2;
  const int32_t row = k ? int32_t(at.y) / k : int32_t(at.y) * R, slot = k ? int32_t(at.y) % k : 0;
  if (row >= rows || j0 >= p.count) return;
  const int32_t expert = k ? row_of(ids, p.ids, row)[slot] : 0;
  const bool known = expert >= 0 && expert < p.w.experts, bf16 = p.bf16 != 0, aligned = aligned_rows(p.w) && (!GLU || aligned_rows(p.up));
  // Rows beyond the last repeat the first, so that lanes do not part.
  device const uint8_t *w[N];
  device const float *x[R];
  UNROLL for (int n = 0; n < M; n++) {
    const int32_t j = j0 + n < p.count ? j0 + n : j0;
    w[n] = row_of(w_, p.w, known ? expert : 0, p.first + j);
    if (GLU) w[N - M + n] = row_of(up_, p.up, known ? expert : 0, p.up_first + j);
  }
  UNROLL for (int r = 0; r < R; r++) x[r] = x_of(x_, p, row + r < rows ? row + r : row, slot);
  float sum[N][R];
  UNROLL for (int n = 0; n < N; n++) {
    UNROLL for (int r = 0; r < R; r++) sum[n][r] = 0.0f;
  }
  if (known) {
#ifdef BAO_PLAIN
    if (p.w.columns % 16 != 0) {
      for (int32_t c = int32_t(lane); c < p.w.columns; c += 32) {
        UNROLL for (int r = 0; r < R; r++) {
          const float value = rounded(x[r][c], bf16);
          UNROLL for (int n = 0; n < N; n++) sum[n][r] += element(w[n], c) * value;
        }
      }
    } else
#endif
    for (int32_t u = int32_t(lane); u < p.w.columns / 16; u += 32) {
      float q[N][16], scale[N][2], bias[N][2];
      UNROLL for (int n = 0; n < N; n++) load_piece(w[n], u, aligned, q[n], scale[n], bias[n]);
      UNROLL for (int r = 0; r < R; r++) {
        UNROLL for (int o = 0; o < 2; o++) {
          device const float *from = x[r] + piece_column(u) + o * OCTET_GAP;
          float value[8], total = 0.0f;
          UNROLL for (int i = 0; i < 8; i++) value[i] = rounded(from[i], bf16);
          if (BAO_BIAS) {
            UNROLL for (int i = 0; i < 8; i++) total += value[i];
          }
          UNROLL for (int n = 0; n < N; n++) {
            float dot = 0.0f;
            UNROLL for (int i = 0; i < 8; i++) dot += q[n][8 * o + i] * value[i];
            sum[n][r] += scale[n][o] * dot;
            if (BAO_BIAS) sum[n][r] += bias[n][o] * total;
          }
        }
      }
    }
  }
  const float factor = known ? factor_of(factors, p.w, expert) : 0.0f, up_factor = GLU && known ? factor_of(up_factors, p.up, expert) : 0.0f;
  UNROLL for (int n = 0; n < M; n++) {
    UNROLL for (int r = 0; r < R; r++) {
      const float s = simd_sum(sum[n][r]), up = GLU ? simd_sum(sum[N - M + n][r]) : 0.0f;
      if (lane != 0 || j0 + n >= p.count || row + r >= rows) continue;
      const float value = GLU ? activate(s * factor, p.activation) * (up * up_factor) : s * factor;
      row_of(dst_, p.dst, row + r)[slot * p.count + j0 + n] = known ? value : 0.0f;
    }
  }
}

typedef decltype(product_vector<1, false>) product_vector_kernel;
template [[host_name("product_vector_1")]] kernel product_vector_kernel product_vector<1, false>;
template [[host_name("product_vector_2")]] kernel product_vector_kernel product_vector<2, false>;
template [[host_name("product_vector_4")]] kernel product_vector_kernel product_vector<4, false>;
template [[host_name("product_vector_8")]] kernel product_vector_kernel product_vector<8, false>;
template [[host_name("product_glu_1")]] kernel product_vector_kernel product_vector<1, true>;
template [[host_name("product_glu_2")]] kernel product_vector_kernel product_vector<2, true>;
template [[host_name("product_glu_4")]] kernel product_vector_kernel product_vector<4, true>;
template [[host_name("product_glu_8")]] kernel product_vector_kernel product_vector<8, true>;

// One row's products with its experts, times their weights, added up: lanes take the pieces of all slots in turn. Columns are a multiple of 16.
kernel void product_sum(PRODUCT_PARAMS) {
  constexpr int N = 4;
  const Step step = STEP;
  const int32_t row = int32_t(at.y), j0 = (int32_t(at.x) * VECTOR_SIMDGROUPS + int32_t(warp)) * N, pieces = p.w.columns / 16;
  if (row >= step.count(p.dst) || j0 >= p.count) return;
  const bool bf16 = p.bf16 != 0, aligned = aligned_rows(p.w);
  float sum[N];
  UNROLL for (int n = 0; n < N; n++) sum[n] = 0.0f;
  for (int32_t i = int32_t(lane); i < p.ids.d2 * pieces; i += 32) {
    const int32_t slot = i / pieces, u = i % pieces, expert = row_of(ids, p.ids, row)[slot];
    const float weight = row_of(weights_, p.weights, row)[slot];
    if (expert < 0 || expert >= p.w.experts) {
      UNROLL for (int n = 0; n < N; n++) sum[n] += weight * 0.0f;
      continue;
    }
    const float factor = weight * factor_of(factors, p.w, expert);
    float value[16], total[2] = {0.0f, 0.0f};
    device const float *x = x_of(x_, p, row, slot) + piece_column(u);
    UNROLL for (int o = 0; o < 2; o++) {
      UNROLL for (int e = 0; e < 8; e++) {
        value[8 * o + e] = rounded(x[o * OCTET_GAP + e], bf16);
        total[o] += value[8 * o + e];
      }
    }
    UNROLL for (int n = 0; n < N; n++) {
      float q[16], scale[2], bias[2], dot[2] = {0.0f, 0.0f};
      load_piece(row_of(w_, p.w, expert, p.first + (j0 + n < p.count ? j0 + n : j0)), u, aligned, q, scale, bias);
      UNROLL for (int e = 0; e < 8; e++) {
        dot[0] += q[e] * value[e];
        dot[1] += q[8 + e] * value[8 + e];
      }
      float part = scale[0] * dot[0] + scale[1] * dot[1];
      if (BAO_BIAS) part += bias[0] * total[0] + bias[1] * total[1];
      sum[n] += factor * part;
    }
  }
  UNROLL for (int n = 0; n < N; n++) {
    const float s = simd_sum(sum[n]);
    if (lane == 0 && j0 + n < p.count) row_of(dst_, p.dst, row)[j0 + n] = s;
  }
}

// ---- many rows: a threadgroup of 4 simdgroups multiplies 64 rows of the weight with 32 rows of x, or with 32 pairs of one expert, 4 octets of columns
// (two pieces) at a time. Both lie in threadgroup memory as 8 x 8 blocks, each stored in a row: block (row / 8, octet), element (row % 8, column).

#define TILE_W 64
#define TILE_X PRODUCT_TILE

inline int block_at(int32_t row, int octet) { return ((row >> 3) * 4 + octet) * 64 + (row & 7) * 8; }

kernel void product_tile(PRODUCT_PARAMS) {
  threadgroup float shared_w[TILE_W * 32], shared_x[TILE_X * 32];  // shared_w also takes the results, [TILE_X][TILE_W]
  threadgroup int32_t source[TILE_X];                              // row * slots + slot, -1: none
  const Step step = STEP;
  const int32_t rows = step.count(p.dst), slots = p.ids.d0 == 0 ? 1 : p.ids.d2, j0 = int32_t(at.x) * TILE_W;
  int32_t expert = 0, start = int32_t(at.y) * TILE_X, count = rows - start;
  if (p.order_at != 0) {
    if (rows <= 0 || int32_t(at.y) >= groups[0]) return;
    expert = groups[GROUP_TILES + 3 * at.y];
    start = groups[GROUP_TILES + 3 * at.y + 1];
    count = groups[GROUP_TILES + 3 * at.y + 2];
  }
  if (count <= 0) return;
  if (tid < TILE_X) source[tid] = int32_t(tid) >= count ? -1 : p.order_at != 0 ? groups[p.order_at + start + int32_t(tid)] : start + int32_t(tid);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const bool known = expert < p.w.experts, bf16 = p.bf16 != 0, aligned = aligned_rows(p.w);  // the last group has the pairs whose id is none

  // What this thread loads each time: a piece of a row of the weight, and an octet of a row of x.
  const int32_t load_w = int32_t(tid) >> 1, load_x = int32_t(tid) >> 2, piece_w = int32_t(tid) & 1, piece_x = int32_t(tid) >> 1 & 1, octet_x = int32_t(tid) & 1;
  const int32_t from = source[load_x], pieces = (p.w.columns + 15) / 16;
  device const uint8_t *w = row_of(w_, p.w, known ? expert : 0, p.first + (j0 + load_w < p.count ? j0 + load_w : j0));
  device const float *x = x_of(x_, p, from < 0 ? 0 : from / slots, from < 0 ? 0 : from % slots);
  const bool has_w = j0 + load_w < p.count;

  // This simdgroup's part: 16 rows of x and 32 of the weight.
  const int32_t block_x = int32_t(warp >> 1) * 2, block_w = int32_t(warp & 1) * 4;
  simdgroup_float8x8 sum[2][4];
  UNROLL for (int a = 0; a < 2; a++) {
    UNROLL for (int b = 0; b < 4; b++) sum[a][b] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  }
  for (int32_t u0 = 0; known && u0 < pieces; u0 += 2) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    {
      const int32_t u = u0 + piece_w;
      float q[16], scale[2] = {0.0f, 0.0f}, bias[2] = {0.0f, 0.0f};
      UNROLL for (int i = 0; i < 16; i++) q[i] = 0.0f;
#ifdef BAO_PLAIN
      if (has_w && u * 16 + 16 > p.w.columns) {
        scale[0] = scale[1] = 1.0f;
        UNROLL for (int i = 0; i < 16; i++) {
          if (u * 16 + i < p.w.columns) q[i] = element(w, u * 16 + i);
        }
      } else
#endif
      if (has_w && u < pieces) load_piece(w, u, aligned, q, scale, bias);
      UNROLL for (int o = 0; o < 2; o++) {
        threadgroup float *to = shared_w + block_at(load_w, piece_w * 2 + o);
        UNROLL for (int i = 0; i < 8; i++) to[i] = BAO_BIAS ? scale[o] * q[8 * o + i] + bias[o] : scale[o] * q[8 * o + i];
      }
      const int32_t c = piece_column(u0 + piece_x) + octet_x * OCTET_GAP, left = from < 0 || u0 + piece_x >= pieces ? 0 : p.w.columns - c;
      threadgroup float *to = shared_x + block_at(load_x, piece_x * 2 + octet_x);
      UNROLL for (int i = 0; i < 8; i++) to[i] = i < left ? rounded(x[c + i], bf16) : 0.0f;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    UNROLL for (int octet = 0; octet < 4; octet++) {
      simdgroup_float8x8 a[2], b[4];
      UNROLL for (int i = 0; i < 2; i++) simdgroup_load(a[i], shared_x + ((block_x + i) * 4 + octet) * 64, 8);
      UNROLL for (int i = 0; i < 4; i++) simdgroup_load(b[i], shared_w + ((block_w + i) * 4 + octet) * 64, 8, ulong2(0, 0), true);
      UNROLL for (int i = 0; i < 2; i++) {
        UNROLL for (int k = 0; k < 4; k++) simdgroup_multiply_accumulate(sum[i][k], a[i], b[k], sum[i][k]);
      }
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  UNROLL for (int i = 0; i < 2; i++) {
    UNROLL for (int k = 0; k < 4; k++) simdgroup_store(sum[i][k], shared_w + (block_x + i) * 8 * TILE_W + (block_w + k) * 8, TILE_W);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const float factor = known ? factor_of(factors, p.w, expert) : 0.0f;
  for (int32_t i = int32_t(tid); i < TILE_X * TILE_W; i += 128) {
    const int32_t r = source[i / TILE_W], j = j0 + i % TILE_W;
    if (r >= 0 && j < p.count) row_of(dst_, p.dst, r / slots)[r % slots * p.count + j] = known ? shared_w[i] * factor : 0.0f;
  }
}
