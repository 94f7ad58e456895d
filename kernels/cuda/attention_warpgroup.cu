// Prefill attention by Hopper's warpgroup products for heads of 256 values and f16 KV. The two blocks of a cluster have 128 (row, query head) pairs of one KV
// head each and share every page that they read: each copies half of it to both. In a block a warp copies, and each of two warpgroups has 64 pairs to itself:
// it scores the next page while it sums the values of this one. q and probabilities are f16, sums f32. Where this does not run, attention_prefill.cu serves.
#include "attention_warpgroup.cuh"

namespace bao {
namespace {

constexpr int D = 256, group_pairs = 64, pairs = groups * group_pairs, blocks = D / 64, block_bytes = 64 * 128, q_bytes = groups * blocks * block_bytes;
constexpr int stages = 5, stage_bytes = blocks * block_bytes;  // K or V of a page, in blocks of 64 values: rows of 128 swizzled bytes

#if defined(BAO_WARPGROUP)
using PageRing = Ring<stages, 1, stage_bytes>;

// What follows the tiles in shared memory.
struct Small {
  float factor[pairs];
  int32_t sequence[cluster * pairs], position[cluster * pairs];  // of the cluster's rows
  PageRing ring;
};
#endif
constexpr int small_bytes = 4 * pairs * (1 + 2 * cluster) + 8 * 2 * stages, shared_bytes = q_bytes + stages * stage_bytes + small_bytes;
static_assert(shared_bytes <= 227 * 1024, "what a block may have");

#if defined(BAO_WARPGROUP)
static_assert(sizeof(Small) == small_bytes, "no gaps");

__device__ __forceinline__ void attend(const AttentionArgs& a, Small& small, char* memory, Walk walk, const Work& work, int32_t block_rows) {
  const int32_t heads = a.dst.d1 / a.pool.kv_heads, warp = same_in_warp(int32_t(threadIdx.x) >> 5), group = warp >> 2, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  const uint32_t q_tile = shared_address(memory) + group * blocks * block_bytes, ring_at = shared_address(memory) + q_bytes;
  const int32_t pages = walk.left, mine = work.rank * block_rows;  // the block's first row among the cluster's
  const PageRing& ring = small.ring;

  for (int32_t m = warp; m < pairs; m += consumers / 32) {
    const bool used = m / heads < block_rows && mine + m / heads < work.count;
    store_q<D>(memory + m / group_pairs * (blocks * block_bytes), block_bytes, m % group_pairs,
               a.q.f32(work.first_row + (used ? mine + m / heads : 0)) + (int64_t(work.kv_head) * heads + m % heads) * D, used, a.scale, small.factor + m);
  }
  mma::copies_seen();
  await_threads(1, consumers);

  const int32_t pair0 = warp * 16 + g, pair1 = pair0 + 8;  // a lane's two
  const Pairs two(pair0, heads, mine, block_rows, work.count, small.position, small.factor);
  float out[D / 2], score[32], sum0 = 0, sum1 = 0, high0 = -INFINITY, high1 = -INFINITY;
  uint32_t p[4][4];  // operand A of 16 tokens each
#pragma unroll
  for (int i = 0; i < D / 2; i++) out[i] = 0;

  // Both are under way when they return.
  auto score_page = [&](int32_t j) {
    ring.await(ring.k(j));
    const uint64_t b = mma::describe(ring_at + ring.offset(ring.k(j))), q = mma::describe(q_tile);
    settle_all(score);
    mma::warpgroup_begin();
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
      const uint64_t on = (k >> 2) * (block_bytes / 16) + (k & 3) * 2;
      mma::multiply_shared<64, false>(score, q + on, b + on, k > 0);
    }
    mma::warpgroup_end();
  };
  auto sum_values = [&](int32_t j, const Page& page) {
    const int32_t stage = ring.v(j, pages), token0 = page.index * page_tokens;
    ring.await(stage);
    if (token0 < page.first || token0 + page_tokens - 1 > page.last) {
      clear_unseen(ring_at + ring.offset(stage), stage_bytes, page_tokens, token0, page, threadIdx.x, consumers);
      mma::copies_seen();
      await_threads(1, consumers);
    }
    settle_all(out);
#pragma unroll
    for (int i = 0; i < 16; i++) mma::settle(p[i / 4][i % 4]);
    mma::warpgroup_begin();
#pragma unroll
    for (int k = 0; k < page_tokens / 16; k++) mma::multiply_rows(out, p[k], mma::describe_rows(ring_at + ring.offset(stage), block_bytes) + 128 * k);
    mma::warpgroup_end();
  };
  // Scores to probabilities, in place. Gives what they make of sums before.
  auto weigh = [&](const Page& page) {
    const float2 high = two.mask(score, page, a.window);
    const float last0 = high0, last1 = high1;
    high0 = fmaxf(high.x, last0), high1 = fmaxf(high.y, last1);
    const float base0 = high0 == -INFINITY ? 0.0f : high0, base1 = high1 == -INFINITY ? 0.0f : high1;
    const float2 keep{power(last0 - base0), power(last1 - base1)};
    sum0 *= keep.x, sum1 *= keep.y;
#pragma unroll
    for (int i = 0; i < 32; i++) {
      score[i] = two.weight(score[i], i, base0, base1);
      if (i & 2) sum1 += score[i];
      else sum0 += score[i];
    }
    return keep;
  };
  auto pack = [&] {
#pragma unroll
    for (int i = 0; i < 16; i++) p[i / 4][i % 4] = packed(score[2 * i], score[2 * i + 1]);
  };

  Page page = walk.next();
  score_page(0);
  mma::warpgroup_wait<0>();
  settle_all(score);
  ring.release(ring.k(0), 1);
  weigh(page);
  pack();
  for (int32_t j = 0; j + 1 < pages; j++) {
    const Page next = walk.next();
    score_page(j + 1);
    sum_values(j, page);
    mma::warpgroup_wait<1>();
    settle_all(score);
    ring.release(ring.k(j + 1), 1);
    const float2 keep = weigh(next);
    mma::warpgroup_wait<0>();
    settle_all(out);
    ring.release(ring.v(j, pages), 1);
    if (__any_sync(0xffffffffu, keep.x != 1.0f || keep.y != 1.0f)) {
#pragma unroll
      for (int i = 0; i < D / 2; i += 4) out[i] *= keep.x, out[i + 1] *= keep.x, out[i + 2] *= keep.y, out[i + 3] *= keep.y;
    }
    pack();
    page = next;
  }
  sum_values(pages - 1, page);
  mma::warpgroup_wait<0>();
  settle_all(out);

#pragma unroll
  for (int o = 1; o <= 2; o <<= 1) sum0 += __shfl_xor_sync(0xffffffffu, sum0, o), sum1 += __shfl_xor_sync(0xffffffffu, sum1, o);
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const int32_t pair = i ? pair1 : pair0, row = i ? two.row1 : two.row0;
    if (row < 0 || small.sequence[row] < 0) continue;
    const float total = i ? sum1 : sum0, inverse = total == 0 ? 0.0f : 1.0f / total;
    float* dst = a.dst.f32(work.first_row + row) + (int64_t(work.kv_head) * heads + pair % heads) * D + 2 * t;
#pragma unroll
    for (int n = 0; n < D / 8; n++) *reinterpret_cast<float2*>(dst + 8 * n) = float2{out[4 * n + 2 * i] * inverse, out[4 * n + 2 * i + 1] * inverse};
  }
}
#endif

__global__ void __launch_bounds__(threads, 1) warpgroup_kernel(const StepRef* step, AttentionArgs a, const __grid_constant__ CUtensorMap map) {
#if defined(BAO_WARPGROUP)
  extern __shared__ __align__(1024) char tiles[];
  Small& small = *reinterpret_cast<Small*>(tiles + q_bytes + stages * stage_bytes);
  let_next_start();
  await_previous();
  const int32_t block_rows = pairs / (a.dst.d1 / a.pool.kv_heads), rows = count_of(step, a.dst);
  const Work work(a, rows, block_rows);
  if (work.count <= 0 || !work.note(step, a, rows, small.sequence, small.position)) return;  // both blocks
  if (threadIdx.x == 0) {
    small.ring.make(cluster * consumers / 32);
    barriers_made();
  }
  __syncthreads();
  await_cluster();
  const Walk walk(small.sequence, small.position, work.count, a.window);
  // No block leaves while the other still writes to it.
  if (same_in_warp(int32_t(threadIdx.x) >> 7) == groups) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x == consumers) {
      auto copy = [&](uint32_t to, uint32_t barrier, int32_t plane, int32_t page) { copy_both(to, &map, barrier, 0, work.rank * (blocks / cluster), plane, page); };
      small.ring.fill(step, a.pool.table, walk, shared_address(tiles) + q_bytes, work.rank, [&](uint32_t to, uint32_t barrier, int32_t, int32_t page) { copy(to, barrier, work.kv_head, page); },
                      [&](uint32_t to, uint32_t barrier, int32_t, int32_t page) { copy(to, barrier, a.pool.kv_heads + work.kv_head, page); });
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

bool launch_warpgroup(const AttentionArgs& a, const Run& run) {
  if (a.dst.d2 != D) return launch_warpgroup_wide(a, run);
  CUtensorMap map;
  if (!describe_layer(&map, a, page_tokens, blocks / cluster)) return false;
  const unsigned tiles = blocks_of(run.bound(a.dst), pairs / (a.dst.d1 / a.pool.kv_heads) * cluster);
  return launch_clusters(run, warpgroup_kernel, tiles * unsigned(a.pool.kv_heads), shared_bytes, run.step, a, map);
}

}  // namespace bao
