// The decode product of (row, expert) pairs, a read of an expert's weights shared by up to four of its pairs. Blocks divide the tiles of all such groups
// evenly and find the groups themselves; a block's warps share a tile, each with its own cells, copies and part of x, as in few_one.cuh.
#pragma once
#include "few_one.cuh"

namespace bao {
namespace few {

constexpr int group_pairs = 4, pairs_warps = 12, most_pairs = 512, most_experts = 1024;
// Of a cell's x in shared memory: bytes, and numbers of groups, from one pair to the next (so that no two lanes meet in a bank), and in all.
constexpr int pair_bytes = 320, pair_numbers = 10, x_bytes = group_pairs * pair_bytes, x_numbers = group_pairs * pair_numbers;

// Shared memory, in this order.
struct PairsShared {
  uint8_t* ring;      // [warps][stages][stage_bytes]
  GroupOfX* numbers;  // [warps][each][x_numbers]
  int8_t* q;          // [warps][each][x_bytes]
  uint64_t* barrier;  // [warps][stages]
  float* partial;     // [2][warps][parts][group_pairs][16]
  int32_t* id;        // [pairs] their expert; -1: none
  uint16_t *rank;     // [pairs] how many pairs before have the same expert
  uint16_t *leader;   // [groups] the first pair
  uint16_t *seen;     // [experts + 1], while groups are looked for
  __device__ PairsShared(uint4* base, const FewArgs& a, int32_t parts, int32_t pairs, int32_t warps, int32_t warp) {
    uint8_t* at = reinterpret_cast<uint8_t*>(base);
    ring = at + warp * a.stages * a.stage_bytes, at += warps * a.stages * a.stage_bytes;
    numbers = reinterpret_cast<GroupOfX*>(at) + warp * a.each * x_numbers, at += warps * a.each * x_numbers * int(sizeof(GroupOfX));
    q = reinterpret_cast<int8_t*>(at) + warp * a.each * x_bytes, at += warps * a.each * x_bytes;
    barrier = reinterpret_cast<uint64_t*>(at) + warp * a.stages, at += warps * a.stages * 8;
    partial = reinterpret_cast<float*>(at), at += 2 * warps * parts * group_pairs * tile_rows * 4;
    id = reinterpret_cast<int32_t*>(at), at += pairs * 4;
    rank = reinterpret_cast<uint16_t*>(at), leader = rank + pairs, seen = leader + pairs;
  }
};
inline int64_t pairs_shared(const FewArgs& a, int32_t parts, int32_t pairs, int32_t experts, int32_t warps) {
  int64_t each = a.stages * (int64_t(a.stage_bytes) + 8) + a.each * int64_t(x_numbers * sizeof(GroupOfX) + x_bytes) + 2 * parts * group_pairs * tile_rows * 4;
  return warps * each + int64_t(pairs) * 8 + (int64_t(experts) + 1) * 2;
}

// Up to four pairs against one cell; all four steps, because x is zero where a last cell has none. acc: of pair t, this warp's share of rows g and g + 8.
template <int DT>
__device__ __forceinline__ void multiply_pairs(const uint8_t* cell, const int8_t* q, const GroupOfX* numbers, int lane, float (&acc)[2]) {
  using L = Layout<DT>;
  int g = lane >> 2, t = lane & 3;
  const uint8_t* step = cell + L::scale_bytes;
  // Column n of an operand is of pair n / 2: the step's first or second group of 32 (or, of types with a scale for 16, half of a group), as n is even or odd.
  const int8_t* column = q + (g >> 1) * pair_bytes + t * 8;
  const GroupOfX* mine = numbers + t * pair_numbers;
  float scale[4], bias[4];
  auto of = [](float v, int owner) { return __shfl_sync(0xffffffffu, v, owner, 4); };
  if constexpr (!L::sixteen) load_scales<DT>(cell, lane, 0, scale, bias);
#pragma unroll
  for (int s = 0; s < 4; s++) {
    Codes<DT> codes;
    codes.load(step + s * L::step_bytes, lane);
    uint32_t w[4];
    if constexpr (!L::sixteen) {
      uint2 b = *reinterpret_cast<const uint2*>(column + (2 * s + (g & 1)) * 32);
      GroupOfX even = mine[2 * s], odd = mine[2 * s + 1];
      // Even columns are right in the products of the step's first group, odd ones in those of its second.
      int32_t first[4], second[4];
      first[0] = first[2] = start_of<DT>(even.all), second[1] = second[3] = start_of<DT>(odd.all);
      first[1] = first[3] = second[0] = second[2] = 0;
      operand(codes, 0, w);
      multiply_bytes(first, w, b.x, b.y);
      operand(codes, 1, w);
      multiply_bytes(second, w, b.x, b.y);
#pragma unroll
      for (int r = 0; r < 2; r++) {
        float u = of(scale[2 * r], s) * (__int_as_float(first[2 * r]) - magic), v = of(scale[2 * r + 1], s) * (__int_as_float(second[2 * r + 1]) - magic);
        if constexpr (has_bias(DT)) u = fmaf(of(bias[2 * r], s), even.all, u), v = fmaf(of(bias[2 * r + 1], s), odd.all, v);
        acc[r] = fmaf(even.scale, u, fmaf(odd.scale, v, acc[r]));
      }
    } else {
      if (s % 2 == 0) load_scales<DT>(cell, lane, s / 2, scale, bias);
#pragma unroll
      for (int k = 0; k < 2; k++) {
        uint2 b = *reinterpret_cast<const uint2*>(column + (2 * s + k) * 32);
        GroupOfX x = mine[2 * s + k];
        bool has = (g & 1) == t >> 1;
        int owner = (s & 1) * 2 + k;
        int32_t c[4];
        c[0] = c[2] = start_of<DT>(x.low), c[1] = c[3] = start_of<DT>(x.high);
        operand(codes, k, w);
        multiply_bytes(c, w, has ? b.x : 0, has ? b.y : 0);
#pragma unroll
        for (int r = 0; r < 2; r++) {
          float u = of(scale[2 * r], owner) * (__int_as_float(c[2 * r]) - magic), v = of(scale[2 * r + 1], owner) * (__int_as_float(c[2 * r + 1]) - magic);
          if constexpr (has_bias(DT)) u = fmaf(of(bias[2 * r], owner), x.low, u), v = fmaf(of(bias[2 * r + 1], owner), x.high, v);
          acc[r] = fmaf(x.scale, u + v, acc[r]);
        }
      }
    }
  }
}

// Where a warp is. Its tiles are numbered through all groups: number n is tile n % items of group n / items.
struct Flow {
  int32_t slot, turn;
  uint32_t parity;
  int32_t to, number, item, group, unit;  // end of all; of the next copy
};

// The next copy's expert; w.from is null where there is none.
__device__ __forceinline__ void find_expert(const FewArgs& a, Share& w, const PairsShared& s, int32_t first_cell, int32_t group) {
  bool is_up = w.lane >= w.own;
  const FewMember& m = a.member[is_up && a.kind == FewKind::glu ? 1 : 0];
  int32_t expert = s.id[s.leader[group]], cell = first_cell + (is_up ? w.lane - w.own : w.lane);
  w.from = expert < 0 ? nullptr : m.w.data + int64_t(expert) * m.w.expert_bytes + int64_t(m.first_tile) * w.tile_bytes + cell * m.cell_bytes;
}

// Starts up to `count` copies into neighbouring slots, of one tile; returns how many.
__device__ __forceinline__ int32_t fetch_next(const FewArgs& a, Share& w, const PairsShared& s, const OneShared& ring, int32_t first_cell, Flow& f, int32_t slot, int32_t count) {
  count = min(count, w.units - f.unit);
  fetch_units(a, w, ring, f.unit, count, f.item, slot);
  if ((f.unit += count) < w.units) return count;
  f.unit = 0, f.number++;
  if (++f.item == a.items) {
    f.item = 0, f.group++;
    if (f.number < f.to) find_expert(a, w, s, first_cell, f.group);
  }
  return count;
}

// The pairs of a group: lane j knows the j-th; the others, the first.
struct Members {
  int32_t pair, count;
  float factor[2];
};

// Results of one tile, a warp a pair: lanes 16 ... 31 have the values of up.
template <FewKind kind>
__device__ __forceinline__ void store_pairs(const FewArgs& a, const Members& m, int32_t item, const float* partial, int32_t lane) {
  constexpr int parts = parts_of<kind>;
  int32_t warp = threadIdx.x >> 5, warps = blockDim.x >> 5, part = parts == 2 ? lane >> 4 : 0, row = lane & 15, j = item * tile_rows + row;
  for (int32_t n = warp; n < m.count; n += warps) {
    const float* from = partial + (part * group_pairs + n) * tile_rows + row;
    float value = 0;
    for (int32_t p = 0; p < warps; p++) value += from[p * (parts * group_pairs * tile_rows)];
    value *= parts == 2 && part ? m.factor[1] : m.factor[0];
    if constexpr (kind == FewKind::glu) {
      float up = __shfl_down_sync(0xffffffffu, value, 16);
      value = activate(value, a.activation) * up;
    }
    int32_t pair = __shfl_sync(0xffffffffu, m.pair, n), k = a.ids.d2;
    if (lane < tile_rows && j < a.member[0].outputs) a.member[0].dst.f32(pair / k)[int64_t(pair % k) * a.member[0].outputs + j] = value;
  }
}

// Tiles [item, item + tiles) of a group whose x is in shared memory.
template <int DT, FewKind kind>
__device__ __forceinline__ void multiply_group(const FewArgs& a, Share& w, const PairsShared& s, const OneShared& ring, const Members& m, bool known, int32_t first_cell, int32_t item, int32_t tiles, Flow& f) {
  constexpr int parts = parts_of<kind>;
  int32_t warp = threadIdx.x >> 5, warps = blockDim.x >> 5, g = w.lane >> 2, t = w.lane & 3;
  for (int32_t end = item + tiles; item < end; item++) {
    float* partial = s.partial + f.turn * (warps * parts * group_pairs * tile_rows);
#pragma unroll 1
    for (int part = 0; part < parts; part++) {
      float acc[2] = {0, 0};
#pragma unroll 1
      for (int32_t i = 0; i < w.own; i++) {
        barrier_wait(s.barrier + f.slot, f.parity);
        const uint8_t* cell = s.ring + f.slot * a.stage_bytes;
        const int8_t* q = s.q + i * x_bytes;
        const GroupOfX* numbers = s.numbers + i * x_numbers;
        if (known) multiply_pairs<DT>(cell, q, numbers, w.lane, acc);
        if (f.number < f.to) {
          __syncwarp();
          fetch_next(a, w, s, ring, first_cell, f, f.slot, 1);
        }
        if (++f.slot == a.stages) f.slot = 0, f.parity ^= 1;
      }
      float* mine = partial + ((warp * parts + part) * group_pairs + t) * tile_rows + g;
      mine[0] = acc[0], mine[8] = acc[1];
    }
    // Partials lie in two places in turn: a place is written again only after the barrier of the tile between.
    __syncthreads();
    store_pairs<kind>(a, m, item, partial, w.lane);
    f.turn ^= 1;
  }
}

// By one warp: ranks of the pairs, in order, and the groups' leaders. Returns how many groups.
__device__ __forceinline__ int32_t find_groups(const PairsShared& s, int32_t pairs, int32_t experts, int32_t lane) {
  int32_t groups = 0;
  for (int32_t base = 0; base < pairs; base += 32) {
    int32_t p = base + lane, id = p < pairs ? s.id[p] : -2;
    uint32_t same = __match_any_sync(0xffffffffu, id), before_me = (1u << lane) - 1;
    int32_t bin = id < 0 ? experts : id, before = p < pairs ? s.seen[bin] : 0, rank = before + __popc(same & before_me);
    __syncwarp();
    if (p < pairs) {
      s.rank[p] = uint16_t(rank);
      if (!(same & before_me)) s.seen[bin] = uint16_t(before + __popc(same));
    }
    uint32_t leads = __ballot_sync(0xffffffffu, p < pairs && rank % group_pairs == 0);
    if (leads >> lane & 1) s.leader[groups + __popc(leads & before_me)] = uint16_t(p);
    groups += __popc(leads);
    __syncwarp();
  }
  return groups;
}

// Finds a group's pairs, and rounds this warp's part of their x.
__device__ __forceinline__ void take_group(const FewArgs& a, const Share& w, const PairsShared& s, int32_t pairs, int32_t first_cell, int32_t group, Members& m) {
  int32_t leader = s.leader[group], id = s.id[leader], rank = s.rank[leader], k = a.ids.d2;
  m.pair = leader, m.count = 0;
  for (int32_t base = leader & ~31; base < pairs && m.count < group_pairs; base += 32) {
    int32_t p = base + w.lane, place = p < pairs && s.id[p] == id ? s.rank[p] - rank : -1;
    for (uint32_t found = __ballot_sync(0xffffffffu, place >= 0 && place < group_pairs); found; found &= found - 1, m.count++) {
      if (w.lane == m.count) m.pair = base + __ffs(int(found)) - 1;
    }
  }
  const float* mine = a.x.f32(m.pair / k) + (a.x.d1 > 1 ? int64_t(m.pair % k) * a.columns : 0);
  if (id < 0) return;
  for (int32_t i = 0; i < w.own; i++) {
    // Halves of a cell: four values a lane.
#pragma unroll
    for (int j = 0; j < group_pairs; j++) {
      if (j >= m.count) break;
      const float* x = reinterpret_cast<const float*>(__shfl_sync(0xffffffffu, reinterpret_cast<uint64_t>(mine), j));
#pragma unroll
      for (int half = 0; half < 2; half++) {
        int32_t in = half * 128 + w.lane * 4, at = (first_cell + i) * cell_columns + in;
        float4 v = make_float4(0, 0, 0, 0);
        if (at < a.columns) v = (reinterpret_cast<uintptr_t>(x) & 15) == 0 ? __ldcg(reinterpret_cast<const float4*>(x + at)) : make_float4(__ldcg(x + at), __ldcg(x + at + 1), __ldcg(x + at + 2), __ldcg(x + at + 3));
        GroupOfX group;
        uint32_t bytes = round_group(v, group);
        *reinterpret_cast<uint32_t*>(s.q + i * x_bytes + j * pair_bytes + in) = bytes;
        if ((w.lane & 7) == 0) s.numbers[i * x_numbers + j * pair_numbers + half * 4 + w.lane / 8] = group;
      }
    }
  }
  m.factor[0] = a.member[0].w.factor(id);
  if (a.kind == FewKind::glu) m.factor[1] = a.member[1].w.factor(id);
}

template <FewKind kind>
__global__ void __launch_bounds__(pairs_warps * 32, 2) pairs_kernel(const StepRef* step, const __grid_constant__ FewArgs a, int32_t most) {
  extern __shared__ uint4 dynamic[];
  __shared__ int32_t found;
  constexpr int parts = parts_of<kind>;
  const int32_t warp = threadIdx.x >> 5, warps = blockDim.x >> 5, tid = threadIdx.x, k = a.ids.d2, experts = a.member[0].w.experts, first_cell = warp * a.each;
  PairsShared s(dynamic, a, parts, most, warps, warp);
  OneShared ring(dynamic, a, warps, warp);
  ring.barrier = s.barrier;  // of that, copies need these two
  Share w;
  w.lane = tid & 31;
  w.own = min(a.each, a.cells - first_cell), w.units = w.own * parts;
  w.tile_bytes = int32_t(a.member[0].w.row_bytes * tile_rows);
  w.bytes = first_cell + (w.lane < w.own ? w.lane : w.lane - w.own) + 1 == a.cells ? a.member[0].last_bytes : a.member[0].cell_bytes;
  w.from = nullptr;
  if (w.lane == 0) {
    for (int32_t i = 0; i < a.stages; i++) barrier_make(s.barrier + i);
    barriers_made();
  }
  for (int32_t e = tid; e <= experts; e += blockDim.x) s.seen[e] = 0;
  await_previous();
  let_next_start();

  int32_t pairs = min(max(count_of(step, a.member[0].dst), 0) * k, most);
  for (int32_t p = tid; p < pairs; p += blockDim.x) {
    int32_t id = __ldcg(a.ids.i32(p / k) + p % k);
    s.id[p] = id >= 0 && id < experts ? id : -1;
  }
  __syncthreads();
  if (warp == 0) {
    int32_t groups = find_groups(s, pairs, experts, w.lane);
    if (w.lane == 0) found = groups;
  }
  __syncthreads();

  int64_t all = int64_t(found) * a.items;
  int32_t number = int32_t(all * blockIdx.x / gridDim.x), to = int32_t(all * (blockIdx.x + 1) / gridDim.x);
  if (number == to) return;
  int32_t group = number / a.items, item = number - group * a.items;
  Flow f{0, 0, 0, to, number, item, group, 0};
  find_expert(a, w, s, first_cell, group);
  for (int32_t slot = 0; slot < a.stages && f.number < to;) slot += fetch_next(a, w, s, ring, first_cell, f, slot, a.stages - slot);

  for (; number < to; group++, item = 0) {
    Members m{};
    take_group(a, w, s, pairs, first_cell, group, m);
    __syncwarp();
    bool known = s.id[s.leader[group]] >= 0;
    int32_t tiles = min(to - number, a.items - item);
    number += tiles;
#define BAO_CASE(name) case BAO_##name: multiply_group<BAO_##name, kind>(a, w, s, ring, m, known, first_cell, item, tiles, f); break
    switch (a.member[0].w.dtype) {
      BAO_CASE(Q4_0); BAO_CASE(Q4_1); BAO_CASE(Q5_0); BAO_CASE(Q5_1); BAO_CASE(Q8_0); BAO_CASE(Q2_K); BAO_CASE(Q3_K); BAO_CASE(Q4_K); BAO_CASE(Q5_K);
      BAO_CASE(Q6_K); BAO_CASE(IQ4_NL); BAO_CASE(IQ4_XS); BAO_CASE(MXFP4); BAO_CASE(NVFP4);
    }
#undef BAO_CASE
    __syncwarp();
  }
}

}  // namespace few
}  // namespace bao
