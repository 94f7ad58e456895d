// The decode product of one row, or of one (row, expert) pair of several, the grid's y. A block's warps share a tile of 16 weight rows; each has its own cells of 16 x 256, which it copies to shared memory before
// the launch in front has ended, and its own part of x, which it rounds to int8 itself. Nothing here writes scratch or needs another launch.
#pragma once
#include "few_round.cuh"

namespace bao {
namespace few {

constexpr int one_warps = 16;

template <FewKind kind>
constexpr int parts_of = kind == FewKind::glu ? 2 : 1;

// Shared memory, in this order. A unit is a cell of x: of a sum, of all slots' one after the other.
struct OneShared {
  uint8_t* ring;       // [warps][stages][stage_bytes]
  GroupOfX* groups;    // [warps][each * 8]
  int8_t* q;           // [warps][each * 256]
  uint64_t* barrier;   // [warps][stages]
  float* partial;      // [2][warps][parts][16]
  __device__ OneShared(uint4* base, const FewArgs& a, int32_t warps, int32_t warp) {
    ring = reinterpret_cast<uint8_t*>(base) + warp * a.stages * a.stage_bytes;
    uint8_t* after = reinterpret_cast<uint8_t*>(base) + warps * a.stages * a.stage_bytes;
    groups = reinterpret_cast<GroupOfX*>(after) + warp * a.each * 8;
    q = reinterpret_cast<int8_t*>(after + warps * a.each * 128 + warp * a.each * 256);
    barrier = reinterpret_cast<uint64_t*>(after + warps * a.each * 384) + warp * a.stages;
    partial = reinterpret_cast<float*>(after + warps * a.each * 384 + warps * a.stages * 8);
  }
};
inline int64_t one_shared(const FewArgs& a, int32_t warps, int32_t parts, int32_t each, int32_t stages) {
  return int64_t(warps) * (stages * (int64_t(a.stage_bytes) + 8) + each * 384 + 2 * parts * tile_rows * 4);
}

// One row of x against N cells of the same columns, in step, so that one's latency hides in the other's; all four steps, because x is zero where a
// last cell has none. acc: this lane's share of rows g and g + 8.
template <int DT, int N>
__device__ __forceinline__ void multiply_cells(const uint8_t* const (&cell)[N], const int8_t* q, const GroupOfX* groups, int lane, float (&acc)[N][2]) {
  using L = Layout<DT>;
  int g = lane >> 2, t = lane & 3;
  if constexpr (!L::sixteen) {
    // Column n of an operand is group n of the cell, where it is one of the step's two. Even columns are right in the products of the step's
    // first group, odd ones in those of its second.
    float scale[N][4], bias[N][4];
    int32_t first[N][4], second[N][4];
    uint2 b = *reinterpret_cast<const uint2*>(q + lane * 8);
    GroupOfX even = groups[2 * t], odd = groups[2 * t + 1];
#pragma unroll
    for (int n = 0; n < N; n++) {
      load_scales<DT>(cell[n], lane, 0, scale[n], bias[n]);
      first[n][0] = first[n][2] = start_of<DT>(even.all), second[n][1] = second[n][3] = start_of<DT>(odd.all);
      first[n][1] = first[n][3] = second[n][0] = second[n][2] = 0;
    }
#pragma unroll
    for (int s = 0; s < 4; s++) {
      bool mine = (g >> 1) == s;
      uint32_t b0 = mine ? b.x : 0, b1 = mine ? b.y : 0;
      Codes<DT> codes[N];
#pragma unroll
      for (int n = 0; n < N; n++) codes[n].load(cell[n] + L::scale_bytes + s * L::step_bytes, lane);
#pragma unroll
      for (int n = 0; n < N; n++) {
        uint32_t w[4];
        operand(codes[n], 0, w);
        multiply_bytes(first[n], w, b0, b1);
        operand(codes[n], 1, w);
        multiply_bytes(second[n], w, b0, b1);
      }
    }
#pragma unroll
    for (int n = 0; n < N; n++) {
#pragma unroll
      for (int r = 0; r < 2; r++) {
        float u = scale[n][2 * r] * (__int_as_float(first[n][2 * r]) - magic), v = scale[n][2 * r + 1] * (__int_as_float(second[n][2 * r + 1]) - magic);
        if constexpr (has_bias(DT)) u = fmaf(bias[n][2 * r], even.all, u), v = fmaf(bias[n][2 * r + 1], odd.all, v);
        acc[n][r] = fmaf(even.scale, u, fmaf(odd.scale, v, acc[n][r]));
      }
    }
  } else {
    // Column n of an operand is half n & 1 of group n / 2, whose elements are those of units 0, 1 or 2, 3.
#pragma unroll
    for (int part = 0; part < 2; part++) {
      float scale[N][4], bias[N][4];
      int32_t c[N][4];
      uint2 b = *reinterpret_cast<const uint2*>(q + (part * 4 + (g >> 1)) * 32 + t * 8);
      int column = (g & 1) == (t >> 1) ? g >> 1 : -1;
      GroupOfX x = groups[part * 4 + t];
#pragma unroll
      for (int n = 0; n < N; n++) {
        load_scales<DT>(cell[n], lane, part, scale[n], bias[n]);
        c[n][0] = c[n][2] = start_of<DT>(x.low), c[n][1] = c[n][3] = start_of<DT>(x.high);
      }
#pragma unroll
      for (int s = 0; s < 2; s++) {
        Codes<DT> codes[N];
#pragma unroll
        for (int n = 0; n < N; n++) codes[n].load(cell[n] + L::scale_bytes + (part * 2 + s) * L::step_bytes, lane);
#pragma unroll
        for (int k = 0; k < 2; k++) {
          bool mine = column == 2 * s + k;
          uint32_t b0 = mine ? b.x : 0, b1 = mine ? b.y : 0;
#pragma unroll
          for (int n = 0; n < N; n++) {
            uint32_t w[4];
            operand(codes[n], k, w);
            multiply_bytes(c[n], w, b0, b1);
          }
        }
      }
#pragma unroll
      for (int n = 0; n < N; n++) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
          float u = scale[n][2 * r] * (__int_as_float(c[n][2 * r]) - magic), v = scale[n][2 * r + 1] * (__int_as_float(c[n][2 * r + 1]) - magic);
          if constexpr (has_bias(DT)) u = fmaf(bias[n][2 * r], x.low, u), v = fmaf(bias[n][2 * r + 1], x.high, v);
          acc[n][r] = fmaf(x.scale, u + v, acc[n][r]);
        }
      }
    }
  }
}

// What a warp has of every item. Lane i knows unit i: its cells one after the other, of a GLU each of gate, then of up.
struct Share {
  const uint8_t* from;  // of tile 0; null: an unknown expert
  int32_t bytes, own, units, tile_bytes, lane;
  int32_t item, items, stride;  // the block's first, the end, from one to the next
};

// Starts copies of units [i, i + count) of an item into slots from `slot` on. Whole warps.
__device__ __forceinline__ void fetch_units(const FewArgs& a, const Share& w, const OneShared& s, int32_t i, int32_t count, int32_t item, int32_t slot) {
  const uint8_t* from = w.from + int64_t(item) * w.tile_bytes;
#if __CUDA_ARCH__ >= 900
  int32_t k = w.lane - i;
  if (k >= 0 && k < count) copy_whole(s.ring + (slot + k) * a.stage_bytes, from, w.from ? w.bytes : 0, s.barrier + slot + k);
#else
  for (int32_t k = 0; k < count; k++) {
    uint64_t source = __shfl_sync(0xffffffffu, reinterpret_cast<uint64_t>(from), i + k);
    int32_t bytes = __shfl_sync(0xffffffffu, w.from ? w.bytes : 0, i + k);
    copy_shared(s.ring + (slot + k) * a.stage_bytes, reinterpret_cast<const void*>(source), uint32_t(bytes), s.barrier + slot + k);
  }
#endif
}

// Where copies have got to.
struct Cursor { int32_t unit, item; };

__device__ __forceinline__ Cursor fetch_first(const FewArgs& a, const Share& w, const OneShared& s) {
  Cursor next{0, w.item};
  for (int32_t slot = 0; slot < a.stages && next.item < w.items;) {
    int32_t count = min(w.units, a.stages - slot);
    fetch_units(a, w, s, 0, count, next.item, slot);
    slot += count, next.unit = count;
    if (count == w.units) next.unit = 0, next.item += w.stride;
  }
  return next;
}

// Waits for copies that nobody will use.
__device__ __forceinline__ void drain(const FewArgs& a, const Share& w, const OneShared& s) {
  int32_t slot = 0;
  for (int32_t item = w.item; item < w.items && slot < a.stages; item += w.stride) {
    for (int32_t i = 0; i < w.units && slot < a.stages; i++) barrier_wait(s.barrier + slot++, 0);
  }
}

constexpr int round_batch = 2;  // cells that are loaded and rounded in step

// Eight values of x a lane, of a batch's cells; zeros where `in` says so. Blocks of a multiprocessor share them in its cache, but for a launch that is
// apart: the cache is fresh after a wait only.
__device__ __forceinline__ void load_x(const float* const (&from)[round_batch], const bool (&in)[round_batch], bool aligned, bool apart, float4 (&v)[2 * round_batch]) {
#pragma unroll
  for (int j = 0; j < round_batch; j++) v[2 * j] = v[2 * j + 1] = make_float4(0, 0, 0, 0);
  if (aligned && !apart) {
#pragma unroll
    for (int j = 0; j < round_batch; j++) {
      const float4* p = reinterpret_cast<const float4*>(from[j]);
      if (in[j]) v[2 * j] = __ldca(p), v[2 * j + 1] = __ldca(p + 1);
    }
  } else if (aligned) {
#pragma unroll
    for (int j = 0; j < round_batch; j++) {
      const float4* p = reinterpret_cast<const float4*>(from[j]);
      if (in[j]) v[2 * j] = __ldcg(p), v[2 * j + 1] = __ldcg(p + 1);
    }
  } else {
#pragma unroll
    for (int j = 0; j < round_batch; j++) {
      const float* p = from[j];
      if (in[j]) v[2 * j] = make_float4(__ldcg(p), __ldcg(p + 1), __ldcg(p + 2), __ldcg(p + 3)), v[2 * j + 1] = make_float4(__ldcg(p + 4), __ldcg(p + 5), __ldcg(p + 6), __ldcg(p + 7));
    }
  }
}

// n / d as IEEE has it, for d and n / d well within the range of normal floats: what a division does, without its look for the others.
__device__ __forceinline__ float divided(float n, float d) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(d));
  r = fmaf(r, fmaf(-d, r, 1.0f), r);
  float q = __fmul_rn(n, r);
  return fmaf(r, fmaf(-d, q, n), q);
}

// Rounds a batch of `count` cells of x: a group of 32 to four lanes. One division a lane: even lanes have the inverse of the scale, odd ones the scale.
__device__ __forceinline__ void round_cells(const float4 (&v)[2 * round_batch], int32_t count, const float (&weight)[round_batch], int lane, int8_t* q, GroupOfX* groups) {
  constexpr int B = round_batch;
  auto size = [](float f) { return __float_as_uint(f) & 0x7FFFFFFFu; };
  const bool is_odd = lane & 1;
  uint32_t largest[B];
  float mine[B], inverse[B], scale[B];
  uint2 bytes[B];
  int32_t sum[B], rest[B];
#pragma unroll
  for (int j = 0; j < B; j++) {
    const float4 x = v[2 * j], y = v[2 * j + 1];
    largest[j] = max(max(max(size(x.x), size(x.y)), max(size(x.z), size(x.w))), max(max(size(y.x), size(y.y)), max(size(y.z), size(y.w))));
  }
#pragma unroll
  for (int o = 1; o < 4; o <<= 1) {
#pragma unroll
    for (int j = 0; j < B; j++) largest[j] = max(largest[j], __shfl_xor_sync(0xffffffffu, largest[j], o));
  }
  bool usual = true;  // zero, infinity and NaN are answered below whatever the quotient
#pragma unroll
  for (int j = 0; j < B; j++) usual = usual && (largest[j] == 0 || largest[j] >= 0x7F800000u || (largest[j] >= 0x20000000u && largest[j] < 0x60000000u));
  if (__all_sync(0xffffffffu, usual)) {
#pragma unroll
    for (int j = 0; j < B; j++) {
      const float most = __uint_as_float(largest[j]);
      mine[j] = divided(is_odd ? most : 127.0f, is_odd ? 127.0f : most);
    }
  } else {
#pragma unroll 1
    for (int j = 0; j < B; j++) {
      const float most = __uint_as_float(j ? largest[B - 1] : largest[0]), found = __fdiv_rn(is_odd ? most : 127.0f, is_odd ? 127.0f : most);
      if (j) mine[B - 1] = found;
      else mine[0] = found;
    }
  }
#pragma unroll
  for (int j = 0; j < B; j++) {
    const float other = __shfl_xor_sync(0xffffffffu, mine[j], 1);
    inverse[j] = is_odd ? other : mine[j], scale[j] = is_odd ? mine[j] : other;
    if (largest[j] >= 0x7F800000u) scale[j] = __int_as_float(0x7fc00000), inverse[j] = 0;
    if (largest[j] == 0) scale[j] = 0;
    if (!(size(inverse[j]) < 0x7F800000u)) inverse[j] = 0;  // of zero, or of a denormal
  }
#pragma unroll
  for (int j = 0; j < B; j++) {
    // Adding 1.5 * 2^23 rounds to an integer, halves to even: its low byte is the value's.
    auto pack = [&](float4 v) {
      uint32_t a = __float_as_uint(__fadd_rn(__fmul_rn(v.x, inverse[j]), magic)), b = __float_as_uint(__fadd_rn(__fmul_rn(v.y, inverse[j]), magic));
      uint32_t c = __float_as_uint(__fadd_rn(__fmul_rn(v.z, inverse[j]), magic)), d = __float_as_uint(__fadd_rn(__fmul_rn(v.w, inverse[j]), magic));
      return __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410);
    };
    bytes[j] = make_uint2(pack(v[2 * j]), pack(v[2 * j + 1]));
    sum[j] = __dp4a(int32_t(bytes[j].x), 0x01010101, __dp4a(int32_t(bytes[j].y), 0x01010101, 0));
  }
#pragma unroll
  for (int j = 0; j < B; j++) sum[j] += __shfl_xor_sync(0xffffffffu, sum[j], 1);
#pragma unroll
  for (int j = 0; j < B; j++) rest[j] = __shfl_xor_sync(0xffffffffu, sum[j], 2);
#pragma unroll
  for (int j = 0; j < B; j++) {
    if (j >= count) continue;
    *reinterpret_cast<uint2*>(q + j * cell_columns + lane * 8) = bytes[j];
    if ((lane & 3) == 0) groups[j * 8 + (lane >> 2)] = GroupOfX{scale[j] * weight[j], float(sum[j]), float(rest[j]), float(sum[j] + rest[j])};
  }
}

// Where the block's results go.
struct OneOutput {
  float* to;         // row 0 of the member's
  int32_t outputs, start;
  float factor[2];
};

// The value of one output a lane, by one warp: lanes 16 ... 31 have those of up.
template <FewKind kind>
__device__ __forceinline__ void store_tile(const FewArgs& a, const OneOutput& out, int32_t item, const float* partial, int32_t warps, int lane) {
  constexpr int parts = parts_of<kind>;
  float value = 0;
  if (parts == 2 || lane < tile_rows) {
    for (int32_t p = 0; p < warps; p++) value += partial[p * (parts * tile_rows) + lane];
  }
  value *= parts == 2 && lane >= tile_rows ? out.factor[1] : out.factor[0];
  if constexpr (kind == FewKind::glu) {
    float up = __shfl_down_sync(0xffffffffu, value, 16);
    value = activate(value, a.activation) * up;
  }
  int32_t j = (item - out.start) * tile_rows + lane;
  if (lane < tile_rows && j < out.outputs) out.to[j] = value;
}

// Everything a block has to do once its activations are in shared memory.
template <int DT, FewKind kind>
__device__ __forceinline__ void multiply_tiles(const FewArgs& a, const Share& w, const OneShared& s, const OneOutput& out, uint32_t known, Cursor next) {
  constexpr int parts = parts_of<kind>;
  int32_t warp = threadIdx.x >> 5, warps = blockDim.x >> 5, slot = 0, turn = 0;
  uint32_t parity = 0;
  for (int32_t item = w.item; item < w.items; item += w.stride) {
    float* partial = s.partial + turn * (warps * parts * tile_rows);
    float acc[parts][2] = {};
#pragma unroll 1
    for (int32_t j = 0; j < w.own; j++) {
      const uint8_t* cell[parts];
      int32_t from = slot;
#pragma unroll
      for (int part = 0; part < parts; part++) {
        barrier_wait(s.barrier + slot, parity);
        cell[part] = s.ring + slot * a.stage_bytes;
        if (++slot == a.stages) slot = 0, parity ^= 1;
      }
      if (kind != FewKind::sum || (known >> j & 1)) multiply_cells<DT>(cell, s.q + j * cell_columns, s.groups + j * 8, w.lane, acc);
      if (next.item < w.items) {
        __syncwarp();
#pragma unroll 1
        for (int part = 0; part < parts && next.item < w.items; part++) {
          fetch_units(a, w, s, next.unit, 1, next.item, from);
          if (++from == a.stages) from = 0;
          if (++next.unit == w.units) next.unit = 0, next.item += w.stride;
        }
      }
    }
#pragma unroll
    for (int part = 0; part < parts; part++) {
#pragma unroll
      for (int r = 0; r < 2; r++) {
        acc[part][r] += __shfl_xor_sync(0xffffffffu, acc[part][r], 1);
        acc[part][r] += __shfl_xor_sync(0xffffffffu, acc[part][r], 2);
      }
      if ((w.lane & 3) == 0) {
        float* mine = partial + (warp * parts + part) * tile_rows + (w.lane >> 2);
        mine[0] = acc[part][0], mine[8] = acc[part][1];
      }
    }
    // Partials lie in two places in turn: a place is written again only after the barrier of the item between.
    __syncthreads();
    if (warp == warps - 1) store_tile<kind>(a, out, item, partial, warps, w.lane);
    turn ^= 1;
  }
}

template <FewKind kind>
__device__ __forceinline__ void one_product(const StepRef* step, const FewArgs& a, uint4* dynamic) {
  constexpr int parts = parts_of<kind>;
  const bool routed = kind == FewKind::sum || a.ids.present();
  int32_t warp = threadIdx.x >> 5, warps = blockDim.x >> 5, m = 0;
  if constexpr (kind == FewKind::plain) {
    while (m + 1 < a.members && int32_t(blockIdx.x) >= a.member[m + 1].first_block) m++;
  }
  const FewMember& member = a.member[m];
  OneShared s(dynamic, a, warps, warp);
  Share w;
  w.lane = threadIdx.x & 31;
  w.item = member.start + int32_t(blockIdx.x) - member.first_block, w.items = member.end, w.stride = member.blocks;
  int32_t all = kind == FewKind::sum ? a.cells * a.ids.d2 : a.cells, first = warp * a.each;
  w.own = min(a.each, all - first), w.units = w.own * parts;
  w.tile_bytes = int32_t(member.w.row_bytes * tile_rows);
  int32_t slot = 0, cell = first + w.lane / parts;
  if constexpr (kind == FewKind::sum) slot = cell / a.cells, cell -= slot * a.cells;
  bool has = w.lane < w.units;
  w.bytes = cell + 1 == a.cells ? member.last_bytes : member.cell_bytes;
  auto from_expert = [&](int32_t expert) {
    const FewMember& mine = a.member[kind == FewKind::glu ? w.lane & 1 : m];
    w.from = mine.w.data + int64_t(expert) * mine.w.expert_bytes + int64_t(mine.first_tile - (kind == FewKind::plain ? mine.start : 0)) * w.tile_bytes + cell * mine.cell_bytes;
  };
  w.from = nullptr;
  if (w.lane == 0) {
    for (int32_t k = 0; k < a.stages; k++) barrier_make(s.barrier + k);
    barriers_made();
  }
  __syncwarp();

  const int32_t row = !routed ? 0 : kind == FewKind::sum ? int32_t(blockIdx.y) : int32_t(blockIdx.y) / a.ids.d2, pair = int32_t(blockIdx.y) - row * a.ids.d2;
  const float* x = a.x.f32(row) + (kind != FewKind::sum && a.x.d1 > 1 ? int64_t(pair) * a.columns : 0);
  const bool aligned = (reinterpret_cast<uintptr_t>(x) & 15) == 0;
  const float* from[round_batch];
  bool in[round_batch];
  auto aim_x = [&](int32_t j) {
#pragma unroll
    for (int n = 0; n < round_batch; n++) {
      int32_t slot = 0, cell = first + j + n;
      if constexpr (kind == FewKind::sum) slot = cell / a.cells, cell -= slot * a.cells;
      from[n] = x + slot * a.columns + cell * cell_columns + w.lane * 8;
      in[n] = j + n < w.own && w.lane * 8 < a.columns - cell * cell_columns;
    }
  };
  aim_x(0);

  int32_t expert = 0;
  float weight = 1.0f;
  auto choose = [&] {
    if (kind == FewKind::sum ? has : true) expert = __ldcg(a.ids.i32(row) + (kind == FewKind::sum ? slot : pair));
    if (kind == FewKind::sum && has) weight = __ldcg(a.weights.f32(row) + slot);
  };
  Cursor next{};
  auto fetch_chosen = [&] {
    if (expert >= member.w.experts) expert = -1;
    if (expert >= 0) from_expert(expert);
    next = fetch_first(a, w, s);
  };

  // Weights of a known place are on their way before the launch before this one has ended.
  if (!a.late) let_next_start();
  if (!routed) {
    from_expert(0);
    next = fetch_first(a, w, s);
  } else if (kind == FewKind::sum && a.settled) {
    choose();
    fetch_chosen();
  }
  if (!a.apart) await_previous();
  if (a.late) let_next_start();

  // All that is read first is on its way before any of it is used: latency is most of the time here. Without rows it is read in vain.
  float4 v[2 * round_batch];
  load_x(from, in, aligned, a.apart, v);
  const int32_t rows = count_of(step, member.dst);
  if (routed && !a.settled) choose();
  if (row >= rows) {
    if (!routed || a.settled) drain(a, w, s);
    return;
  }
  OneOutput out{member.dst.f32(row), member.outputs, kind == FewKind::plain ? member.start : 0, {1.0f, 1.0f}};
  if (routed) {
    if constexpr (kind != FewKind::sum) {
      out.to += int64_t(pair) * member.outputs;
      if (expert < 0 || expert >= member.w.experts) {  // no such expert: zeros
        for (int32_t n = w.item; n < w.items; n += w.stride) {
          int32_t j = n * tile_rows + int32_t(threadIdx.x);
          if (threadIdx.x < tile_rows && j < out.outputs) out.to[j] = 0.0f;
        }
        return;
      }
    }
    if (!a.settled) fetch_chosen();
    if constexpr (kind == FewKind::sum) weight = has && expert >= 0 ? weight * member.w.factor(expert) : 0.0f;
  }
  uint32_t known = kind == FewKind::sum ? __ballot_sync(0xffffffffu, has && expert >= 0) : 0xffffffffu;
  if constexpr (kind != FewKind::sum) {
    out.factor[0] = member.w.factor(expert);
    if (kind == FewKind::glu) out.factor[1] = a.member[1].w.factor(expert);
  }

  for (int32_t j = 0; j < w.own; j += round_batch) {
    if (j) aim_x(j), load_x(from, in, aligned, a.apart, v);
    float share[round_batch];
#pragma unroll
    for (int n = 0; n < round_batch; n++) share[n] = kind == FewKind::sum ? __shfl_sync(0xffffffffu, weight, min(j + n, 31)) : 1.0f;
    round_cells(v, w.own - j, share, w.lane, s.q + j * cell_columns, s.groups + j * 8);
  }
  __syncwarp();

#define BAO_CASE(name) case BAO_##name: multiply_tiles<BAO_##name, kind>(a, w, s, out, known, next); break
  switch (member.w.dtype) {
    BAO_CASE(Q4_0); BAO_CASE(Q4_1); BAO_CASE(Q5_0); BAO_CASE(Q5_1); BAO_CASE(Q8_0); BAO_CASE(Q2_K); BAO_CASE(Q3_K); BAO_CASE(Q4_K); BAO_CASE(Q5_K);
    BAO_CASE(Q6_K); BAO_CASE(IQ4_NL); BAO_CASE(IQ4_XS); BAO_CASE(MXFP4); BAO_CASE(NVFP4);
  }
#undef BAO_CASE
}

// 64 registers and 32 warps a multiprocessor; of a GLU, with two cells in step, 80 and 24.
template <FewKind kind>
__global__ void __launch_bounds__(kind == FewKind::glu ? 768 : one_warps * 32, kind == FewKind::glu ? 1 : 2) one_kernel(const StepRef* step, const __grid_constant__ FewArgs a) {
  extern __shared__ uint4 dynamic[];
  one_product<kind>(step, a, dynamic);
  if (a.apart) await_previous();
}

}  // namespace few
}  // namespace bao
