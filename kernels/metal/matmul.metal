// Products of one weight with rows of activations, or of experts with (row, slot) pairs: a mat-vec for few rows, matrix tiles for many.
// x in f32, rounded to bf16 as it is read, or rounded and packed before; sums in f32 in an order that depends on the kernel and the columns only.
#include "kernel.h"
#include "activate.h"
#include "matmul_piece.h"

#define PRODUCT_PARAMS                                                                                                                              \
  device float *dst_ [[buffer(0)]], device const float *x_ [[buffer(1)]], device const uint8_t *w_ [[buffer(2)]], device const float *factors [[buffer(3)]], \
      device const int32_t *ids [[buffer(4)]], device const int32_t *groups [[buffer(5)]], device const uint8_t *up_ [[buffer(6)]],                      \
      device const float *up_factors [[buffer(7)]], device const float *weights_ [[buffer(8)]], constant ProductParams &p [[buffer(24)]], STEP_PARAMS, \
      uint2 at [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]], uint warp [[simdgroup_index_in_threadgroup]]

// Types with a table have it in threadgroup memory, filled before anything else: 16 numbers in as many banks.
#if PIECE_TABLE
#define TABLE                                                \
  threadgroup float table[16];                               \
  if (tid < 16) table[tid] = table_value(int(tid));          \
  threadgroup_barrier(mem_flags::mem_threadgroup);
#else
#define TABLE
#endif

// The factor of an expert.
inline float factor_of(device const float *factors, constant WeightRows &w, int32_t expert) {
  return w.factor_count == 0 ? 1.0f : factors[w.factor_count == 1 ? 0 : expert];
}

// x of a row and slot; packed: two columns a word.
inline device const float *x_of(device const float *x, constant ProductParams &p, int32_t row, int32_t slot) {
  return row_of(x, p.x, row) + (p.x.d1 == 1 ? 0 : slot * p.x.d2);
}

inline float rounded(float x) { return bf16_to_f32(f32_to_bf16(x)); }

// Four columns of x from column c, a multiple of 4, on; rows of f32 begin at multiples of 4 bytes, packed ones of 16.
inline float4 load_x(device const float *x, int32_t c, int32_t form) {
  if (form == X_PACKED) {
    const uint2 words = *(device const uint2 *)((device const uint32_t *)x + c / 2);
    return float4(as_type<float>(words.x << 16), as_type<float>(words.x & 0xFFFF0000u), as_type<float>(words.y << 16), as_type<float>(words.y & 0xFFFF0000u));
  }
  device const packed_float4 &four = *(device const packed_float4 *)(x + c);
  if (form == X_F32) return float4(four.x, four.y, four.z, four.w);
  return float4(rounded(four.x), rounded(four.y), rounded(four.z), rounded(four.w));
}
// The same of any column.
inline float x_at(device const float *x, int32_t c, int32_t form) {
  if (form == X_PACKED) return bf16_to_f32(((device const uint16_t *)x)[c]);
  return form == X_F32 ? x[c] : rounded(x[c]);
}

// ---- few rows: a simdgroup multiplies 4 rows of the weight with R rows of x, or with one pair; lanes take pieces in turn. Nothing is shared and nothing waits:
// a piece's loads of all 4 rows are under way together, x is read once for them, and what x must wait for is in the cache of the neighbours' lines.
// GLU: two of the 4 are rows of the gate, the others those of up, and activation(gate) * up is one result.

#define VECTOR_ROWS 4
#define VECTOR_SIMDGROUPS 2

template <int R, bool GLU>
kernel void product_vector(PRODUCT_PARAMS) {
  TABLE
  constexpr int N = VECTOR_ROWS, M = GLU ? N / 2 : N;
  const Step step = STEP;
  const int32_t rows = step.count(p.dst), j0 = (int32_t(at.y) * VECTOR_SIMDGROUPS + int32_t(warp)) * M, k = p.ids.d0 == 0 ? 0 : p.ids.d2;
  const int32_t row = k ? int32_t(at.x) / k : int32_t(at.x) * R, slot = k ? int32_t(at.x) % k : 0;
  if (row >= rows || j0 >= p.count) return;
  const int32_t expert = k ? row_of(ids, p.ids, row)[slot] : 0, form = R == 1 ? (p.form == X_F32 ? X_F32 : X_ROUNDED) : (p.form == X_F32 ? X_F32 : X_PACKED);
  const bool known = expert >= 0 && expert < p.w.experts;
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
          const float value = x_at(x[r], c, form);
          UNROLL for (int n = 0; n < N; n++) sum[n][r] += element(w[n], c) * value;
        }
      }
    } else
#endif
    for (int32_t u = int32_t(lane); u < p.w.columns / PIECE_COLUMNS; u += 32) {
      Piece piece[N];
      UNROLL for (int n = 0; n < N; n++) load_piece(w[n], u, piece[n]);
      UNROLL for (int o = 0; o < OCTETS; o++) {
        float q[N][8], scale[N], bias[N];
        UNROLL for (int n = 0; n < N; n++) octet_of(piece[n], o, q[n], scale[n], bias[n] TABLE_ARG);
        UNROLL for (int r = 0; r < R; r++) {
          const int32_t c = octet_column(u, o);
          const float4 low = load_x(x[r], c, form), high = load_x(x[r], c + 4, form);
          const float total = PIECE_BIAS ? (low.x + low.y) + (low.z + low.w) + ((high.x + high.y) + (high.z + high.w)) : 0.0f;
          UNROLL for (int n = 0; n < N; n++) {
            float dot = 0.0f;
            UNROLL for (int i = 0; i < 4; i++) dot += q[n][i] * low[i];
            UNROLL for (int i = 0; i < 4; i++) dot += q[n][4 + i] * high[i];
            sum[n][r] += scale[n] * dot;
            if (PIECE_BIAS) sum[n][r] += bias[n] * total;
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
      row_of(dst_, p.dst, row + r)[slot * p.dst.d2 + p.to + j0 + n] = known ? value : 0.0f;
    }
  }
}

typedef decltype(product_vector<1, false>) product_vector_kernel;
template [[host_name("product_vector_1")]] kernel product_vector_kernel product_vector<1, false>;
template [[host_name("product_vector_2")]] kernel product_vector_kernel product_vector<2, false>;
template [[host_name("product_vector_4")]] kernel product_vector_kernel product_vector<4, false>;
template [[host_name("product_glu")]] kernel product_vector_kernel product_vector<1, true>;

// One row's products with its experts, times their weights, added up: lanes take the pieces of all slots in turn. Columns are a multiple of 16.
kernel void product_sum(PRODUCT_PARAMS) {
  TABLE
  constexpr int N = VECTOR_ROWS;
  const Step step = STEP;
  const int32_t row = int32_t(at.x), j0 = (int32_t(at.y) * VECTOR_SIMDGROUPS + int32_t(warp)) * N, pieces = p.w.columns / PIECE_COLUMNS, form = p.form == X_F32 ? X_F32 : X_ROUNDED;
  if (row >= step.count(p.dst) || j0 >= p.count) return;
  float sum[N];
  UNROLL for (int n = 0; n < N; n++) sum[n] = 0.0f;
  for (int32_t slot = 0, u = int32_t(lane);; u += 32) {
    for (; u >= pieces && slot < p.ids.d2; slot++) u -= pieces;
    if (slot >= p.ids.d2) break;
    const int32_t expert = row_of(ids, p.ids, row)[slot];
    const float weight = row_of(weights_, p.weights, row)[slot];
    if (expert < 0 || expert >= p.w.experts) {
      UNROLL for (int n = 0; n < N; n++) sum[n] += weight * 0.0f;
      continue;
    }
    const float factor = weight * factor_of(factors, p.w, expert);
    device const float *x = x_of(x_, p, row, slot);
    Piece piece[N];
    float part[N];
    UNROLL for (int n = 0; n < N; n++) {
      load_piece(row_of(w_, p.w, expert, p.first + (j0 + n < p.count ? j0 + n : j0)), u, piece[n]);
      part[n] = 0.0f;
    }
    UNROLL for (int o = 0; o < OCTETS; o++) {
      const int32_t c = octet_column(u, o);
      const float4 low = load_x(x, c, form), high = load_x(x, c + 4, form);
      const float total = PIECE_BIAS ? (low.x + low.y) + (low.z + low.w) + ((high.x + high.y) + (high.z + high.w)) : 0.0f;
      UNROLL for (int n = 0; n < N; n++) {
        float q[8], scale, bias, dot = 0.0f;
        octet_of(piece[n], o, q, scale, bias TABLE_ARG);
        UNROLL for (int i = 0; i < 4; i++) dot += q[i] * low[i];
        UNROLL for (int i = 0; i < 4; i++) dot += q[4 + i] * high[i];
        part[n] += scale * dot;
        if (PIECE_BIAS) part[n] += bias * total;
      }
    }
    UNROLL for (int n = 0; n < N; n++) sum[n] += factor * part[n];
  }
  UNROLL for (int n = 0; n < N; n++) {
    const float s = simd_sum(sum[n]);
    if (lane == 0 && j0 + n < p.count) row_of(dst_, p.dst, row)[p.to + j0 + n] = s;
  }
}

// ---- many rows: a threadgroup of 4 simdgroups multiplies 64 rows of the weight with 32 rows of x, or with 32 pairs of one expert, 8 octets of columns at
// a time. Both lie in threadgroup memory as 8 x 8 blocks, each stored in a row: block (row / 8, octet), element (row % 8, column): no two lanes of a quarter
// of a load or store want the same bank. What comes next is loaded into registers while matrices are multiplied.
// T: what weights become: half, or float where their exact values count.

#define TILE_W 64
#define TILE_X PRODUCT_TILE
#define TILE_OCTETS 8
#define TILE_PIECES (TILE_OCTETS / OCTETS)

inline int block_at(int32_t row, int octet) { return ((row >> 3) * TILE_OCTETS + octet) * 64 + (row & 7) * 8; }

template <typename T, bool PACKED>
kernel void product_tile(PRODUCT_PARAMS) {
  threadgroup T shared_w[TILE_W * TILE_OCTETS * 8];
  threadgroup float shared_x[TILE_X * TILE_OCTETS * 8];  // takes the results at last, [TILE_X][TILE_W]
  threadgroup int32_t source[TILE_X];                    // row * slots + slot, -1: none
  TABLE
  const Step step = STEP;
  const int32_t rows = step.count(p.dst), slots = p.ids.d0 == 0 ? 1 : p.ids.d2, j0 = int32_t(at.y) * TILE_W;
  int32_t expert = 0, start = int32_t(at.x) * TILE_X, count = rows - start;
  if (p.order_at != 0) {
    if (rows <= 0 || int32_t(at.x) >= groups[0]) return;
    expert = groups[GROUP_TILES + 3 * at.x];
    start = groups[GROUP_TILES + 3 * at.x + 1];
    count = groups[GROUP_TILES + 3 * at.x + 2];
  }
  if (count <= 0) return;
  if (tid < TILE_X) source[tid] = int32_t(tid) >= count ? -1 : p.order_at != 0 ? groups[p.order_at + start + int32_t(tid)] : start + int32_t(tid);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const bool known = expert < p.w.experts;  // the last group has the pairs whose id is none

  // What this thread loads each time: half of the pieces of a row of the weight, and every fourth 4 columns of a row of x.
  const int32_t load_w = int32_t(tid) >> 1, half_w = int32_t(tid) & 1, load_x_row = int32_t(tid) >> 2, from = source[load_x_row], pieces = (p.w.columns + PIECE_COLUMNS - 1) / PIECE_COLUMNS;
  const int32_t form = PACKED || p.form != X_F32 ? X_PACKED : X_F32;
  device const uint8_t *w = row_of(w_, p.w, known ? expert : 0, p.first + (j0 + load_w < p.count ? j0 + load_w : j0));
  device const float *x = x_of(x_, p, from < 0 ? 0 : from / slots, from < 0 ? 0 : from % slots);
  const bool has_w = j0 + load_w < p.count, whole = p.w.columns % 16 == 0;
  Piece piece[TILE_PIECES / 2];
  float4 values[4];

  // This simdgroup's part: all rows of x that there are, and 16 of the weight.
  const bool has_part = j0 + int32_t(warp) * 16 < p.count;
  simdgroup_float8x8 sum[4][2];
  UNROLL for (int a = 0; a < 4; a++) {
    UNROLL for (int b = 0; b < 2; b++) sum[a][b] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  }
  for (int32_t u0 = -TILE_PIECES; known && u0 < pieces; u0 += TILE_PIECES) {
    if (u0 >= 0) {
      threadgroup_barrier(mem_flags::mem_threadgroup);
      UNROLL for (int i = 0; i < TILE_PIECES / 2; i++) {
        const int32_t mine = half_w * (TILE_PIECES / 2) + i, u = u0 + mine;
        UNROLL for (int o = 0; o < OCTETS; o++) {
          threadgroup T *to = shared_w + block_at(load_w, o * TILE_PIECES + mine);
          float q[8], scale = 0.0f, bias = 0.0f;
#ifdef BAO_PLAIN
          if (!whole) {
            scale = 1.0f;
            UNROLL for (int e = 0; e < 8; e++) q[e] = has_w && octet_column(u, o) + e < p.w.columns ? element(w, octet_column(u, o) + e) : 0.0f;
          } else
#endif
          octet_of(piece[i], o, q, scale, bias TABLE_ARG);
          const bool there = has_w && u < pieces;
          UNROLL for (int e = 0; e < 8; e++) to[e] = T(there ? PIECE_BIAS ? scale * q[e] + bias : scale * q[e] : 0.0f);
        }
      }
      UNROLL for (int i = 0; i < 4; i++) {
        const int32_t quad = (int32_t(tid) & 3) + 4 * i;
        threadgroup float4 *to = (threadgroup float4 *)(shared_x + block_at(load_x_row, quad >> 1) + (quad & 1) * 4);
        *to = values[i];
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    UNROLL for (int i = 0; i < TILE_PIECES / 2; i++) {
      const int32_t u = u0 + TILE_PIECES + half_w * (TILE_PIECES / 2) + i;
      if (whole && u < pieces) load_piece(w, u, piece[i]);
    }
    UNROLL for (int i = 0; i < 4; i++) {
      const int32_t quad = (int32_t(tid) & 3) + 4 * i, octet = quad >> 1, u = u0 + TILE_PIECES + octet % TILE_PIECES, c = octet_column(u, octet / TILE_PIECES) + (quad & 1) * 4;
      const int32_t left = from < 0 || u >= pieces ? 0 : p.w.columns - c;
      if (left >= 4) values[i] = load_x(x, c, form);
      else values[i] = float4(left > 0 ? x_at(x, c, form) : 0.0f, left > 1 ? x_at(x, c + 1, form) : 0.0f, left > 2 ? x_at(x, c + 2, form) : 0.0f, 0.0f);
    }
    if (u0 < 0 || !has_part) continue;
    UNROLL for (int octet = 0; octet < TILE_OCTETS; octet++) {
      simdgroup_matrix<T, 8, 8> b[2];
      UNROLL for (int i = 0; i < 2; i++) simdgroup_load(b[i], shared_w + ((int32_t(warp) * 2 + i) * TILE_OCTETS + octet) * 64, 8, ulong2(0, 0), true);
      UNROLL for (int i = 0; i < 4; i++) {
        if (i * 8 >= count) break;
        simdgroup_float8x8 a;
        simdgroup_load(a, shared_x + (i * TILE_OCTETS + octet) * 64, 8);
        UNROLL for (int k = 0; k < 2; k++) simdgroup_multiply_accumulate(sum[i][k], a, b[k], sum[i][k]);
      }
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  UNROLL for (int i = 0; i < 4; i++) {
    UNROLL for (int k = 0; k < 2; k++) simdgroup_store(sum[i][k], shared_x + i * 8 * TILE_W + (int32_t(warp) * 2 + k) * 8, TILE_W);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const float factor = known ? factor_of(factors, p.w, expert) : 0.0f;
  for (int32_t i = int32_t(tid); i < min(count, TILE_X) * TILE_W; i += 128) {
    const int32_t r = source[i / TILE_W], j = j0 + i % TILE_W;
    if (j < p.count) row_of(dst_, p.dst, r / slots)[r % slots * p.dst.d2 + p.to + j] = known ? shared_x[i] * factor : 0.0f;
  }
}

typedef decltype(product_tile<float, false>) product_tile_kernel;
template [[host_name("product_tile_float")]] kernel product_tile_kernel product_tile<float, false>;
#if BAO_DTYPE != 0 && BAO_DTYPE != 30
template [[host_name("product_tile_half")]] kernel product_tile_kernel product_tile<half, true>;
#endif
