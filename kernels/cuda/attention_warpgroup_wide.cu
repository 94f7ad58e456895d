// Prefill attention by Hopper's warpgroup products for heads of 512 values and f16 KV. The two blocks of a cluster have 64 (row, query head) pairs of one KV
// head each and share every page that they read: each copies half of it to both. In a block a warp copies; two warpgroups take pages in turn to score and to
// weigh them, and each sums half of the values of all pages. q and probabilities are f16, sums f32. Where this does not run, attention_prefill.cu serves.
#include "attention_warpgroup.cuh"

namespace bao {
namespace {

constexpr int D = 512, pairs = 64, blocks = D / 64, block_bytes = pairs * 128, q_bytes = blocks * block_bytes, p_bytes = block_bytes, values = D / groups;
// Stages of K: 64 tokens x 128 values; of V: 16 tokens x 512 values. Both in blocks of 64 values: rows of 128 swizzled bytes.
constexpr int stages = 9, stages_of_page = 4, stage_bytes = 16 * 1024, half_bytes = stage_bytes / cluster, v_tokens = 16, v_block_bytes = v_tokens * 128;

#if defined(BAO_WARPGROUP)
using WideRing = Ring<stages, stages_of_page, stage_bytes>;

// What follows the tiles in shared memory.
struct Small {
  float factor[pairs], sum[groups][pairs];
  float highest[2][pairs], keep[2][pairs];                       // of a page's turn: the maximum so far, and what it makes of sums before
  int32_t sequence[cluster * pairs], position[cluster * pairs];  // of the cluster's rows
  WideRing ring;
  uint64_t weighed[2], used[2];                                  // probabilities of a page's turn are there; the other warpgroup has used them: by all threads of one
};
#endif
constexpr int small_bytes = 4 * pairs * (1 + groups + 4 + 2 * cluster) + 8 * (2 * stages + 4), shared_bytes = q_bytes + 2 * p_bytes + stages * stage_bytes + small_bytes;
static_assert(shared_bytes <= 227 * 1024, "what a block may have");

#if defined(BAO_WARPGROUP)
static_assert(sizeof(Small) == small_bytes, "no gaps");

__device__ __forceinline__ void attend(const AttentionArgs& a, Small& small, char* memory, Walk walk, const Work& work, int32_t block_rows) {
  const int32_t heads = a.dst.d1 / a.pool.kv_heads, warp = same_in_warp(int32_t(threadIdx.x) >> 5), group = warp >> 2, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  const uint32_t q_tile = shared_address(memory), p_tile = q_tile + q_bytes, ring_at = p_tile + 2 * p_bytes;
  const int32_t pages = walk.left, mine = work.rank * block_rows;  // the block's first row among the cluster's
  const WideRing& ring = small.ring;

  for (int32_t m = warp; m < pairs; m += consumers / 32) {
    const bool used = m / heads < block_rows && mine + m / heads < work.count;
    store_q<D>(memory, block_bytes, m, a.q.f32(work.first_row + (used ? mine + m / heads : 0)) + (int64_t(work.kv_head) * heads + m % heads) * D, used, a.scale, small.factor + m);
  }
  mma::copies_seen();
  await_threads(1, consumers);

  // A lane's two pairs: 16 w + g and + 8 of the 64, w its warp in the warpgroup.
  const int32_t pair0 = (warp & 3) * 16 + g, pair1 = pair0 + 8;
  const Pairs two(pair0, heads, mine, block_rows, work.count, small.position, small.factor);
  float out[values / 2], score[32], sum0 = 0, sum1 = 0, own0 = -INFINITY, own1 = -INFINITY;
#pragma unroll
  for (int i = 0; i < values / 2; i++) out[i] = 0;

  auto release_v = [&](int32_t j) { ring.release<stages_of_page>(ring.v(j, pages), 1); };
  // Adds page j's values, weighed, to the sums: under way when it returns.
  auto sum_values = [&](int32_t j, const Page& page, float keep0, float keep1) {
    const int32_t stage = ring.v(j, pages), token0 = page.index * page_tokens;
    for (int32_t s = 0; s < stages_of_page; s++) ring.await(stage + s);
    if (token0 < page.first || token0 + page_tokens - 1 > page.last) {
      for (int32_t s = 0; s < stages_of_page; s++) {
        clear_unseen(ring_at + ring.offset(stage + s) + group * half_bytes, half_bytes, v_tokens, token0 + s * v_tokens, page, threadIdx.x & 127, 128);
      }
      mma::copies_seen();
      await_threads(2 + group, 128);
    }
    if (__any_sync(0xffffffffu, keep0 != 1.0f || keep1 != 1.0f)) {
#pragma unroll
      for (int i = 0; i < values / 2; i += 4) out[i] *= keep0, out[i + 1] *= keep0, out[i + 2] *= keep1, out[i + 3] *= keep1;
    }
    settle_all(out);
    mma::warpgroup_begin();
#pragma unroll
    for (int s = 0; s < stages_of_page; s++) {
      mma::multiply_shared<values, true>(out, mma::describe(p_tile + (j & 1) * p_bytes) + 2 * s, mma::describe_rows(ring_at + ring.offset(stage + s) + group * half_bytes, v_block_bytes), true);
    }
    mma::warpgroup_end();
  };
  // The same for a page that the other warpgroup has weighed.
  auto sum_other = [&](int32_t j, const Page& page) {
    await_phase(small.weighed + (j & 1), j >> 1 & 1);
    sum_values(j, page, small.keep[j & 1][pair0], small.keep[j & 1][pair1]);
  };
  auto other_ended = [&](int32_t j) {
    mma::warpgroup_wait<0>();
    settle_all(out);
    arrive(small.used + (j & 1));
    release_v(j);
  };
  // Scores of page j, of which the last are under way when it returns. What was under way before has ended when `ended` is called.
  auto score_page = [&](int32_t j, auto&& ended) {
#pragma unroll
    for (int s = 0; s < stages_of_page; s++) {
      ring.await(ring.k(j) + s);
      const uint64_t b = mma::describe(ring_at + ring.offset(ring.k(j) + s)), q = mma::describe(q_tile + 2 * s * block_bytes);
      settle_all(score);
      mma::warpgroup_begin();
#pragma unroll
      for (int k = 0; k < 8; k++) {
        const uint64_t on = (k >> 2) * (block_bytes / 16) + (k & 3) * 2;
        mma::multiply_shared<64, false>(score, q + on, b + on, s + k > 0);
      }
      mma::warpgroup_end();
      mma::warpgroup_wait<1>();
      if (s == 0) ended();
      else ring.release(ring.k(j) + s - 1, 2);  // the other warpgroup does not read it
    }
  };
  // The scores of page j have ended: probabilities to shared memory. Gives what they make of sums before.
  auto weigh = [&](int32_t j, const Page& page) {
    settle_all(score);
    ring.release(ring.k(j) + stages_of_page - 1, 2);
    float2 high = two.mask(score, page, a.window);
    const float last0 = j > 0 ? small.highest[(j - 1) & 1][pair0] : -INFINITY, last1 = j > 0 ? small.highest[(j - 1) & 1][pair1] : -INFINITY;
    high.x = fmaxf(high.x, last0), high.y = fmaxf(high.y, last1);
    const float base0 = high.x == -INFINITY ? 0.0f : high.x, base1 = high.y == -INFINITY ? 0.0f : high.y;
    const float2 keep{power(last0 - base0), power(last1 - base1)};
    sum0 *= power(own0 - base0), sum1 *= power(own1 - base1);
    own0 = high.x, own1 = high.y;
    // The other warpgroup has used what this one wrote two pages before.
    if (j >= groups) await_phase(small.used + (j & 1), (j - groups) >> 1 & 1);
    char* to = memory + q_bytes + (j & 1) * p_bytes + pair0 * 128 + t * 4;
#pragma unroll
    for (int i = 0; i < 32; i += 2) {
      const float x = two.weight(score[i], i, base0, base1), y = two.weight(score[i + 1], i, base0, base1);
      if (i & 2) sum1 += x + y;
      else sum0 += x + y;
      *reinterpret_cast<uint32_t*>(to + (i & 2) * (8 * 128 / 2) + ((i / 4 ^ g) << 4)) = packed(x, y);
    }
    if (t == 0) small.highest[j & 1][pair0] = high.x, small.highest[j & 1][pair1] = high.y, small.keep[j & 1][pair0] = keep.x, small.keep[j & 1][pair1] = keep.y;
    mma::copies_seen();
    arrive(small.weighed + (j & 1));
    return keep;
  };

  // A warpgroup has nothing under way where the loop turns; meanwhile the other one keeps the tensor cores busy.
  Page other{}, own{};
  float2 keep{1, 1};
  int32_t j = group;
  if (group == 0) {
    own = walk.next();
    score_page(0, [] {});
    mma::warpgroup_wait<0>();
    keep = weigh(0, own);
  } else if (pages > 1) {
    other = walk.next(), own = walk.next();
    score_page(1, [] {});
    sum_other(0, other);
    mma::warpgroup_wait<1>();
    keep = weigh(1, own);
    other_ended(0);
  }
  for (; j + groups < pages; j += groups) {
    await_phase(small.weighed + (j & 1), j >> 1 & 1);  // by all warps of this warpgroup
    sum_values(j, own, keep.x, keep.y);
    other = walk.next(), own = walk.next();
    score_page(j + groups, [&] {
      settle_all(out);
      release_v(j);
    });
    sum_other(j + 1, other);
    mma::warpgroup_wait<1>();
    keep = weigh(j + groups, own);
    other_ended(j + 1);
  }
  if (j < pages) {
    await_phase(small.weighed + (j & 1), j >> 1 & 1);
    sum_values(j, own, keep.x, keep.y);
    mma::warpgroup_wait<0>();
    settle_all(out);
    j++;
  } else {
    j = 0;  // the only page is the other's
  }
  if (j < pages) {
    sum_other(j, walk.next());
    mma::warpgroup_wait<0>();
  }
  settle_all(out);

  // ---- divided by the sums of both warpgroups
  const float end0 = small.highest[(pages - 1) & 1][pair0], end1 = small.highest[(pages - 1) & 1][pair1];
#pragma unroll
  for (int o = 1; o <= 2; o <<= 1) sum0 += __shfl_xor_sync(0xffffffffu, sum0, o), sum1 += __shfl_xor_sync(0xffffffffu, sum1, o);
  if (t == 0) small.sum[group][pair0] = own0 == -INFINITY ? 0.0f : sum0 * power(own0 - end0), small.sum[group][pair1] = own1 == -INFINITY ? 0.0f : sum1 * power(own1 - end1);
  await_threads(1, consumers);
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const int32_t pair = i ? pair1 : pair0, row = i ? two.row1 : two.row0;
    if (row < 0 || small.sequence[row] < 0) continue;
    const float total = small.sum[0][pair] + small.sum[1][pair], inverse = total == 0 ? 0.0f : 1.0f / total;
    float* dst = a.dst.f32(work.first_row + row) + (int64_t(work.kv_head) * heads + pair % heads) * D + group * values + 2 * t;
#pragma unroll
    for (int n = 0; n < values / 8; n++) *reinterpret_cast<float2*>(dst + 8 * n) = float2{out[4 * n + 2 * i] * inverse, out[4 * n + 2 * i + 1] * inverse};
  }
}
#endif

__global__ void __launch_bounds__(threads, 1)
warpgroup_wide_kernel(const StepRef* step, AttentionArgs a, const __grid_constant__ CUtensorMap k_map, const __grid_constant__ CUtensorMap v_map) {
#if defined(BAO_WARPGROUP)
  extern __shared__ __align__(1024) char tiles[];
  Small& small = *reinterpret_cast<Small*>(tiles + q_bytes + 2 * p_bytes + stages * stage_bytes);
  let_next_start();
  await_previous();
  const int32_t block_rows = pairs / (a.dst.d1 / a.pool.kv_heads), rows = count_of(step, a.dst);
  const Work work(a, rows, block_rows);
  if (work.count <= 0 || !work.note(step, a, rows, small.sequence, small.position)) return;  // both blocks
  if (threadIdx.x == 0) {
    small.ring.make(cluster * consumers / 32);
    for (int i = 0; i < 2; i++) make_barrier(small.weighed + i, 128), make_barrier(small.used + i, 128);
    barriers_made();
  }
  __syncthreads();
  await_cluster();
  const Walk walk(small.sequence, small.position, work.count, a.window);
  // No block leaves while the other still writes to it.
  if (same_in_warp(int32_t(threadIdx.x) >> 7) == groups) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x == consumers) {
      small.ring.fill(step, a.pool.table, walk, shared_address(tiles) + q_bytes + 2 * p_bytes, work.rank,
                      [&](uint32_t to, uint32_t barrier, int32_t s, int32_t page) { copy_both(to, &k_map, barrier, 0, 2 * s + work.rank, work.kv_head, page); },
                      [&](uint32_t to, uint32_t barrier, int32_t s, int32_t page) { copy_both(to, &v_map, barrier, s * v_tokens, work.rank * (blocks / cluster), a.pool.kv_heads + work.kv_head, page); });
    }
    __syncwarp();
    await_cluster();
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    attend(a, small, tiles, walk, work, block_rows);
    __syncwarp();
    await_cluster();
  }
#endif
}

}  // namespace

bool launch_warpgroup_wide(const AttentionArgs& a, const Run& run) {
  CUtensorMap k_map, v_map;
  if (a.dst.d2 != D || !describe_layer(&k_map, a, page_tokens, 1) || !describe_layer(&v_map, a, v_tokens, blocks / cluster)) return false;
  const unsigned tiles = blocks_of(run.bound(a.dst), pairs / (a.dst.d1 / a.pool.kv_heads) * cluster);
  return launch_clusters(run, warpgroup_wide_kernel, tiles * unsigned(a.pool.kv_heads), shared_bytes, run.step, a, k_map, v_map);
}

}  // namespace bao
