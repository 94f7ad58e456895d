// Attention for rows of prompts, over paged KV, for the head size HEAD_DIM: a threadgroup takes PAIRS neighbouring (row, query head) pairs of one sequence
// and one KV head over the pages that they see, a page at a time. Scores and outputs by 8 x 8 matrices with f32 sums; operands T: half when q and
// probabilities may be rounded to it, else float. The text of a module attention_tile_N.metal.
#include "attention.h"

#define PAGE 64
// Probabilities are kept times 2^14 in half, which then holds all that a sum of 2^18 of them could notice.
#define SHIFTED 16384.0f

typedef simdgroup_matrix<float, 8, 8> Sums;

// PAIRS: q takes at most 16 KiB of threadgroup memory. A piece, 32 bytes a lane, is what a simdgroup brings to its stage at a time: KEY_KEYS keys of KEY_DIMS
// values, or VALUE_KEYS tokens of VALUE_DIMS values of the simdgroup's own quarter of the head, WIDTH; a token's part is 64 or, at best, 128 bytes in a row.
template <class T>
struct Shape {
  static constexpr constant int PAIRS = HEAD_DIM * int(sizeof(T)) <= 512 ? 32 : 16384 / (HEAD_DIM * int(sizeof(T)));
  static constexpr constant int BLOCKS = PAIRS / 8, WIDTH = HEAD_DIM / SIMDGROUPS, EACH = 32 / int(sizeof(T)), STAGE = 32 * EACH;
  static constexpr constant int KEY_KEYS = PAGE / SIMDGROUPS, KEY_DIMS = STAGE / KEY_KEYS;
  static constexpr constant int VALUE_DIMS = WIDTH < 4 * EACH ? WIDTH : 4 * EACH, VALUE_KEYS = STAGE / VALUE_DIMS;
  static constexpr constant int LANES = ATTENTION_THREADS / PAIRS;    // that share a pair's softmax
  static constexpr constant int ROW = PAGE * 4 / int(sizeof(T));      // between rows of probabilities, which lie where the scores were
};

// A power of two that brings values of at most `largest` below 2, and its inverse: half then holds them whatever their size.
struct PowerOfTwo { float down, up; };
inline PowerOfTwo fitting(float largest) {
  const uint32_t e = clamp(as_type<uint32_t>(largest) >> 23 & 255u, 1u, 253u);
  return PowerOfTwo{as_type<float>((254u - e) << 23), as_type<float>(e << 23)};
}

// This lane's piece into the stage: tokens of `dims` values as 8 x 8 blocks, each stored in a row.
template <class T, int EACH>
inline void put(threadgroup T *stage, thread const KvPiece<EACH> &piece, int32_t token, int32_t d, int32_t dims) {
  UNROLL for (int o = 0; o < EACH / 8; o++) {
    threadgroup T *to = stage + ((token >> 3) * (dims / 8) + d / 8 + o) * 64 + (token & 7) * 8;
    UNROLL for (int i = 0; i < 8; i++) to[i] = T(value_of(piece, 8 * o + i));
  }
}

// Each row of a block times its own factor, with which `scale` is filled: what lies where is the same in both, wherever that may be.
inline void scale_rows(thread Sums &block, thread Sums &scale) {
  block.thread_elements()[0] *= scale.thread_elements()[0];
  block.thread_elements()[1] *= scale.thread_elements()[1];
}

template <class T>
kernel void attention_tile(device float *dst_ [[buffer(0)]], device const float *q_ [[buffer(1)]], device const uint8_t *layer [[buffer(2)]],
                           constant RowRange *ranges [[buffer(4)]], constant AttentionParams &p [[buffer(24)]], STEP_PARAMS,
                           uint2 at [[threadgroup_position_in_grid]], uint2 grid [[threadgroups_per_grid]], uint tid_ [[thread_index_in_threadgroup]],
                           uint lane_ [[thread_index_in_simdgroup]], uint warp_ [[simdgroup_index_in_threadgroup]]) {
  typedef Shape<T> S;
  constexpr bool HALF = sizeof(T) == 2;
  // Blocks of q; scores, then probabilities; each simdgroup's stage; what rows of outputs are multiplied by, 8 times each.
  threadgroup T queries[S::PAIRS * HEAD_DIM], stages[SIMDGROUPS * S::STAGE];
  threadgroup float scores[S::PAIRS * PAGE], keep[S::PAIRS * 8];
  const Step step = STEP;
  const int32_t tid = int32_t(tid_), lane = int32_t(lane_), warp = int32_t(warp_), kv_head = int32_t(at.x);
  const int32_t tile = p.first + int32_t(grid.y) - 1 - int32_t(at.y);  // the last rows see the most: theirs start first
  constant RowRange &range = ranges[range_of(ranges, p.ranges, tile)];
  if (range.row + range.rows > step.count(p.dst)) return;
  const int32_t heads = p.dst.d1 / p.pool.kv_heads, first_pair = (tile - range.first) * S::PAIRS, pairs = min(S::PAIRS, range.rows * heads - first_pair);
  const int32_t first_row = step.step_row(p.dst.rows_of, range.row + first_pair / heads), last_row = step.step_row(p.dst.rows_of, range.row + (first_pair + pairs - 1) / heads);
  const int32_t sequence = step.sequence(first_row), first = first_seen(step.position(first_row), p.window), last = step.position(last_row);
  threadgroup T *stage = stages + warp * S::STAGE;

  // ---- this thread's pair and its q
  const int32_t pair = tid / S::LANES, part = tid % S::LANES, r = range.row + (first_pair + min(pair, pairs - 1)) / heads;
  const int32_t until = pair < pairs ? step.position(step.step_row(p.dst.rows_of, r)) : -1, from = pair < pairs ? first_seen(until, p.window) : 0;  // what it sees
  device const float *q = row_of(q_, p.q, r) + (kv_head * heads + (first_pair + min(pair, pairs - 1)) % heads) * HEAD_DIM;
  float factor = p.scale, down = 1.0f;
  if (HALF) {
    float largest = 0.0f;
    for (int32_t d = part; d < HEAD_DIM; d += S::LANES) largest = max(largest, fabs(q[d]));
    UNROLL for (int o = S::LANES / 2; o > 0; o /= 2) largest = max(largest, simd_shuffle_xor(largest, ushort(o)));
    const PowerOfTwo power = fitting(largest);
    down = power.down;
    factor *= power.up;
  }
  for (int32_t octet = part; octet < HEAD_DIM / 8; octet += S::LANES) {
    threadgroup T *to = queries + ((pair >> 3) * (HEAD_DIM / 8) + octet) * 64 + (pair & 7) * 8;
    UNROLL for (int i = 0; i < 8; i++) to[i] = pair < pairs ? T(q[octet * 8 + i] * down) : T(0.0f);
  }

  Sums out[S::BLOCKS][S::WIDTH / 8];
  UNROLL for (int b = 0; b < S::BLOCKS; b++) {
    UNROLL for (int i = 0; i < S::WIDTH / 8; i++) out[b][i] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  }
  float high = -FLT_MAX, total = 0.0f;  // of this pair; the total of this thread's keys
  threadgroup_barrier(mem_flags::mem_threadgroup);

  for (int32_t index = first / PAGE; index <= last / PAGE; index++) {
    const int32_t page = step.page(p.pool.table, sequence, index * PAGE);
    if (page < 0) continue;  // the checks at the step's start leave none
    device const uint8_t *k = layer + plane_at(p.pool, page, kv_head, false), *v = layer + plane_at(p.pool, page, kv_head, true);
    const int32_t begin = max(first - index * PAGE, 0), end = min(last - index * PAGE + 1, PAGE);

    // ---- scores: each simdgroup those of its 16 keys. A piece is loaded while the one before it is multiplied.
    const int32_t key0 = warp * S::KEY_KEYS;
    const bool used = key0 < end && key0 + S::KEY_KEYS > begin;
    Sums score[S::BLOCKS][2];
    UNROLL for (int b = 0; b < S::BLOCKS; b++) score[b][0] = score[b][1] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    if (used) {
      const int32_t key = key0 + (lane >> 1), d = (lane & 1) * S::EACH;
      const bool wanted = key >= begin && key < end;
      KvPiece<S::EACH> piece = kv_piece<S::EACH>(k, p.pool, key, d, wanted);
      for (int32_t d0 = 0; d0 < HEAD_DIM; d0 += S::KEY_DIMS) {
        simdgroup_barrier(mem_flags::mem_threadgroup);
        put<T, S::EACH>(stage, piece, lane >> 1, d, S::KEY_DIMS);
        if (d0 + S::KEY_DIMS < HEAD_DIM) piece = kv_piece<S::EACH>(k, p.pool, key, d0 + S::KEY_DIMS + d, wanted);
        simdgroup_barrier(mem_flags::mem_threadgroup);
        UNROLL for (int i = 0; i < S::KEY_DIMS / 8; i++) {
          simdgroup_matrix<T, 8, 8> a, b0, b1;
          simdgroup_load(b0, stage + i * 64, 8, ulong2(0, 0), true);
          simdgroup_load(b1, stage + (S::KEY_DIMS / 8 + i) * 64, 8, ulong2(0, 0), true);
          UNROLL for (int b = 0; b < S::BLOCKS; b++) {
            simdgroup_load(a, queries + (b * (HEAD_DIM / 8) + d0 / 8 + i) * 64, 8);
            simdgroup_multiply_accumulate(score[b][0], a, b0, score[b][0]);
            simdgroup_multiply_accumulate(score[b][1], a, b1, score[b][1]);
          }
        }
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);  // the page before has been added
    if (used) {
      UNROLL for (int b = 0; b < S::BLOCKS; b++) {
        simdgroup_store(score[b][0], scores + b * 8 * PAGE + key0, PAGE);
        simdgroup_store(score[b][1], scores + b * 8 * PAGE + key0 + 8, PAGE);
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    // ---- softmax. NaN is no maximum, but makes the sum one.
    float x[PAGE / S::LANES], most = high;
    UNROLL for (int i = 0; i < PAGE / S::LANES; i++) {
      const int32_t j = i * S::LANES + part, key = index * PAGE + j;
      const bool seen = key >= from && key <= until;
      x[i] = seen ? scores[pair * PAGE + j] * factor : 0.0f;
      if (seen && x[i] > most) most = x[i];
    }
    UNROLL for (int o = S::LANES / 2; o > 0; o /= 2) most = max(most, simd_shuffle_xor(most, ushort(o)));
    const float kept = precise::exp(high - most);
    high = most;
    total *= kept;
    if (HALF) simdgroup_barrier(mem_flags::mem_threadgroup);  // the lanes of a pair have read its scores
    UNROLL for (int i = 0; i < PAGE / S::LANES; i++) {
      const int32_t j = i * S::LANES + part, key = index * PAGE + j;
      const float probability = key >= from && key <= until ? (HALF ? SHIFTED : 1.0f) * precise::exp(x[i] - most) : 0.0f;
      total += probability;
      ((threadgroup T *)scores)[pair * S::ROW + j] = T(probability);
    }
    for (int32_t i = part; i < 8; i += S::LANES) keep[pair * 8 + i] = kept;
    threadgroup_barrier(mem_flags::mem_threadgroup);

    // ---- outputs: each simdgroup its quarter of the head
    UNROLL for (int b = 0; b < S::BLOCKS; b++) {
      Sums scale;
      simdgroup_load(scale, keep + b * 64, 8);
      UNROLL for (int i = 0; i < S::WIDTH / 8; i++) scale_rows(out[b][i], scale);
    }
    constexpr int SLICES = S::WIDTH / S::VALUE_DIMS, OF_TOKEN = S::VALUE_DIMS / S::EACH;  // slices of the quarter; lanes of a token
    const int32_t token = lane / OF_TOKEN, d = lane % OF_TOKEN * S::EACH;
    int32_t t = begin / S::VALUE_KEYS * S::VALUE_KEYS;
    KvPiece<S::EACH> piece = kv_piece<S::EACH>(v, p.pool, t + token, warp * S::WIDTH + d, t + token >= begin && t + token < end);
    for (; t < end; t += S::VALUE_KEYS) {
      simdgroup_matrix<T, 8, 8> a[S::VALUE_KEYS / 8][S::BLOCKS], block;
      UNROLL for (int i = 0; i < S::VALUE_KEYS / 8; i++) {
        UNROLL for (int b = 0; b < S::BLOCKS; b++) simdgroup_load(a[i][b], (threadgroup T *)scores + b * 8 * S::ROW + t + i * 8, S::ROW);
      }
      UNROLL for (int slice = 0; slice < SLICES; slice++) {
        simdgroup_barrier(mem_flags::mem_threadgroup);
        put<T, S::EACH>(stage, piece, token, d, S::VALUE_DIMS);
        const int32_t then = slice + 1 < SLICES ? t + token : t + S::VALUE_KEYS + token, slice_d = (slice + 1) % SLICES * S::VALUE_DIMS;
        piece = kv_piece<S::EACH>(v, p.pool, then, warp * S::WIDTH + slice_d + d, then >= begin && then < end);
        simdgroup_barrier(mem_flags::mem_threadgroup);
        UNROLL for (int i = 0; i < S::VALUE_KEYS / 8; i++) {
          UNROLL for (int c = 0; c < S::VALUE_DIMS / 8; c++) {
            simdgroup_load(block, stage + (i * (S::VALUE_DIMS / 8) + c) * 64, 8);
            UNROLL for (int b = 0; b < S::BLOCKS; b++) {
              simdgroup_multiply_accumulate(out[b][slice * (S::VALUE_DIMS / 8) + c], a[i][b], block, out[b][slice * (S::VALUE_DIMS / 8) + c]);
            }
          }
        }
      }
    }
  }

  // ---- divided by the sums; through the memory of q, a simdgroup's quarter of 8 pairs at a time
  UNROLL for (int o = S::LANES / 2; o > 0; o /= 2) total += simd_shuffle_xor(total, ushort(o));
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (int32_t i = part; i < 8; i += S::LANES) keep[pair * 8 + i] = total == 0.0f ? 0.0f : 1.0f / total;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  threadgroup float *rows = (threadgroup float *)queries + warp * 8 * S::WIDTH;
  UNROLL for (int b = 0; b < S::BLOCKS; b++) {
    Sums scale;
    simdgroup_load(scale, keep + b * 64, 8);
    UNROLL for (int i = 0; i < S::WIDTH / 8; i++) {
      scale_rows(out[b][i], scale);
      simdgroup_store(out[b][i], rows + i * 8, S::WIDTH);
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    for (int32_t i = 0; i < 8 && b * 8 + i < pairs; i++) {
      const int32_t g = first_pair + b * 8 + i;
      device float *to = row_of(dst_, p.dst, range.row + g / heads) + (kv_head * heads + g % heads) * HEAD_DIM + warp * S::WIDTH;
      for (int32_t d = lane; d < S::WIDTH; d += 32) to[d] = rows[i * S::WIDTH + d];
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
  }
}

typedef decltype(attention_tile<float>) attention_tile_kernel;
template [[host_name("attention_tile_float")]] kernel attention_tile_kernel attention_tile<float>;
#if BAO_DTYPE == 1
template [[host_name("attention_tile_half")]] kernel attention_tile_kernel attention_tile<half>;
#endif
