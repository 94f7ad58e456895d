// The tensor-core product as a template over weight type. A warp has 32 rows of the weight: 64 columns of them a step go from memory to registers,
// become f16 there and are operand A as they are; activations pass through shared memory, swizzled in rows of 128 bytes.
#pragma once
#include "mma.cuh"
#include "mma_warpgroup.cuh"

namespace bao {
namespace mma {

constexpr int stages = 5, ahead = 3, stage_bytes = mma_items * mma_step * 2;
constexpr int shared_bytes = 1024 + stages * stage_bytes + mma_items * 12;

__device__ __forceinline__ uint32_t shared_address(const void* p) { return uint32_t(__cvta_generic_to_shared(p)); }
__device__ __forceinline__ void copy16(uint32_t to, const void* from) { asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory"); }
__device__ __forceinline__ void copies_end() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N>
__device__ __forceinline__ void copies_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

__device__ __forceinline__ void load_matrices(uint32_t (&b)[4], uint32_t at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3]) : "r"(at));
}

__device__ __forceinline__ void multiply(float* d, const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ __half2 as_half2(uint32_t v) { return *reinterpret_cast<__half2*>(&v); }
__device__ __forceinline__ uint32_t as_word(__half2 v) { return *reinterpret_cast<uint32_t*>(&v); }

// ---- weights: the operands of one lane, of rows g and g + 8 of two tiles of 16 rows. operand(i, s, high) gives, of row g + 8 * high of tile i, elements
// 4 (s & 1) + {0, 2} (even) and + {1, 3} (odd) of unit t of group s >> 1 of the step: see units.h, and mma.cu for activations in that order.

// 2^10 + u for bytes 0 and 2 of a word.
__device__ __forceinline__ uint32_t even_bytes(uint32_t w) { return (w & 0x00FF00FFu) | 0x64006400u; }

template <int DT>
struct Weights {
  using L = Layout<DT>;
  static constexpr int parts = L::sixteen ? 2 : 1;
  static constexpr bool is_signed = L::bytes || DT == BAO_IQ4_NL || DT == BAO_IQ4_XS || DT == BAO_MXFP4 || DT == BAO_NVFP4;
  const uint8_t* tile[2];
  int32_t lane;
  Codes<DT> now[2], next[2];
  uint32_t touched[2];
  // Of this lane's groups of the cell, as load_scales gives them, two f16 a word: [tile][part][row g, g + 8]. Then those of the step: [tile][row].
  uint32_t cell_scale[2][parts][2], cell_bias[2][parts][2], scale[2][2][parts], bias[2][2][parts];

  __device__ __forceinline__ void init(const WeightRef& w, int32_t expert, int32_t row, int i) { tile[i] = tile_of_row(w, expert, row); }
  // Codes of a step come a step ahead.
  __device__ __forceinline__ void fetch(int32_t step) {
#pragma unroll
    for (int i = 0; i < 2; i++) next[i].load(tile[i] + int64_t(step >> 2) * L::cell_bytes + L::scale_bytes + (step & 3) * L::step_bytes, lane);
  }
  __device__ __forceinline__ void begin(int32_t step, int32_t steps) {
    int32_t quarter = step & 3;
    if (quarter == 0) {
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const uint8_t* cell = tile[i] + int64_t(step >> 2) * L::cell_bytes;
        if (step > 0) asm volatile("" ::"r"(touched[i]));
#pragma unroll
        for (int part = 0; part < parts; part++) {
          float f[4], b[4] = {};
          load_scales<DT>(cell, lane, part, f, b);
#pragma unroll
          for (int high = 0; high < 2; high++) {
            cell_scale[i][part][high] = as_word(__floats2half2_rn(f[2 * high], f[2 * high + 1]));
            if (has_bias(DT)) cell_bias[i][part][high] = as_word(__floats2half2_rn(b[2 * high], b[2 * high + 1]));
          }
        }
        // The next cell's scales are on their way to the cache while this cell is multiplied.
        if (step + 4 < steps) touched[i] = __ldg(reinterpret_cast<const uint32_t*>(cell + L::cell_bytes + lane * (L::scale_bytes / 32 & ~3)));
      }
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
      now[i] = next[i];
#pragma unroll
      for (int high = 0; high < 2; high++) {
        if constexpr (L::sixteen) {
          // Of 16 columns each: those of group k of 32 lie with lane 2 (quarter & 1) + k.
#pragma unroll
          for (int k = 0; k < 2; k++) {
            scale[i][high][k] = __shfl_sync(0xffffffffu, quarter < 2 ? cell_scale[i][0][high] : cell_scale[i][1][high], 2 * (quarter & 1) + k, 4);
            if (has_bias(DT)) bias[i][high][k] = __shfl_sync(0xffffffffu, quarter < 2 ? cell_bias[i][0][high] : cell_bias[i][1][high], 2 * (quarter & 1) + k, 4);
          }
        } else {
          scale[i][high][0] = __shfl_sync(0xffffffffu, cell_scale[i][0][high], quarter, 4);
          if (has_bias(DT)) bias[i][high][0] = __shfl_sync(0xffffffffu, cell_bias[i][0][high], quarter, 4);
        }
      }
    }
  }
  // The f16 of group k of 32, twice.
  __device__ __forceinline__ __half2 of_group(const uint32_t (&v)[parts], int k) const {
    if constexpr (L::sixteen) return as_half2(__byte_perm(v[k], 0, lane & 2 ? 0x3232 : 0x1010));
    return as_half2(__byte_perm(v[0], 0, k ? 0x3232 : 0x1010));
  }
  __device__ __forceinline__ void operand(int i, int s, int high, uint32_t& even, uint32_t& odd) const {
    __half2 a, b, f = of_group(scale[i][high], s >> 1);
    if constexpr (L::nibbles && !L::two && !L::one && !is_signed) {
      // High nibbles where they are: 2^10 + 16 u.
      const uint4& v = now[i].low[0];
      uint32_t w = s < 2 ? (high ? v.y : v.x) : (high ? v.w : v.z), mask = s & 1 ? 0x00F000F0u : 0x000F000Fu;
      __half2 x = as_half2((w & mask) | 0x64006400u), y = as_half2((w >> 8 & mask) | 0x64006400u);
      const __half2 down = __float2half2_rn(0.0625f), high_offset = __float2half2_rn(-64.0f - L::offset), offset = __float2half2_rn(1024.0f + L::offset);
      a = s & 1 ? __hfma2(x, down, high_offset) : __hsub2(x, offset), b = s & 1 ? __hfma2(y, down, high_offset) : __hsub2(y, offset);
    } else {
      const __half2 offset = __float2half2_rn(is_signed ? 1152.0f : 1024.0f + L::offset);
      uint32_t w = now[i].word(s >> 1, s & 1, high) ^ (is_signed ? 0x80808080u : 0u);
      a = __hsub2(as_half2(even_bytes(w)), offset), b = __hsub2(as_half2(even_bytes(w >> 8)), offset);
    }
    if constexpr (has_bias(DT)) {
      __half2 add = of_group(bias[i][high], s >> 1);
      even = as_word(__hfma2(a, f, add)), odd = as_word(__hfma2(b, f, add));
    } else {
      even = as_word(__hmul2(a, f)), odd = as_word(__hmul2(b, f));
    }
  }
};

// F16 as it is; BF16 to nearest f16: below 2^-14 with fewer bits, beyond 65504 infinity. Rows as in the file.
template <int DT>
struct Plain16 {
  const uint8_t* row[2][2];
  int32_t lane, units;
  uint4 now[2][2][2], next[2][2][2];  // [tile][row][group]
  __device__ __forceinline__ void init(const WeightRef& w, int32_t expert, int32_t first, int i) {
    units = w.columns / 8;
#pragma unroll
    for (int high = 0; high < 2; high++) row[i][high] = w.row(expert, min(first + (lane >> 2) + 8 * high, w.rows - 1));
  }
  __device__ __forceinline__ void fetch(int32_t step) {
#pragma unroll
    for (int n = 0; n < 8; n++) {
      int32_t u = step * 8 + (n & 1) * 4 + (lane & 3);
      next[n >> 2][n >> 1 & 1][n & 1] = u < units ? __ldg(reinterpret_cast<const uint4*>(row[n >> 2][n >> 1 & 1]) + u) : make_uint4(0, 0, 0, 0);
    }
  }
  __device__ __forceinline__ void begin(int32_t, int32_t) {
#pragma unroll
    for (int n = 0; n < 8; n++) now[n >> 2][n >> 1 & 1][n & 1] = next[n >> 2][n >> 1 & 1][n & 1];
  }
  __device__ __forceinline__ void operand(int i, int s, int high, uint32_t& even, uint32_t& odd) const {
    const uint4& v = now[i][high][s >> 1];
    uint32_t a = s & 1 ? v.z : v.x, b = s & 1 ? v.w : v.y;
    if constexpr (DT == BAO_F16) {
      even = __byte_perm(a, b, 0x5410), odd = __byte_perm(a, b, 0x7632);
    } else {
      even = as_word(__floats2half2_rn(__uint_as_float(a << 16), __uint_as_float(b << 16)));
      odd = as_word(__floats2half2_rn(__uint_as_float(a & 0xFFFF0000u), __uint_as_float(b & 0xFFFF0000u)));
    }
  }
};
template <> struct Weights<BAO_F16> : Plain16<BAO_F16> {};
template <> struct Weights<BAO_BF16> : Plain16<BAO_BF16> {};

// What a block works on.
struct Tile {
  int32_t expert, first, count;
  const int32_t* order;
};

__device__ __forceinline__ Tile tile_of(const StepRef* step, const MmaProduct& p) {
  int32_t rows = count_of(step, p.dst), b = blockIdx.x;
  if (!p.groups.words) return Tile{0, b * mma_items, min(mma_items, rows - b * mma_items), nullptr};
  if (rows <= 0 || b >= p.groups.words[0]) return Tile{0, 0, 0, nullptr};
  const int32_t* t = p.groups.words + 4 + 3 * b;
  return Tile{t[0], t[1], t[2], p.groups.words + 4 + 3 * p.groups.most_tiles};
}

// The first row of dst's item, without the column.
__device__ __forceinline__ float* output_of(const MmaProduct& p, int32_t item) {
  if (!p.groups.words) return p.dst.f32(item);
  return p.dst.f32(item / p.groups.slots) + int64_t(item % p.groups.slots) * p.outputs;
}

// A tile of at most NT * 16 items.
template <int DT, int NT>
__device__ __forceinline__ void product(const MmaProduct& p, const Tile& tile, uint32_t ring, const int32_t* item, const float* unscale, const int32_t* place) {
  int32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3, steps = p.x.pitch / mma_step;
  bool glu = p.up.present();
  // The warp's two tiles of the weight: neighbours, or one of gate and one of up. Tiles beyond the last are read as the last one, and not written.
  int32_t row[2], last = (p.outputs - 1) & ~(tile_rows - 1);
#pragma unroll
  for (int i = 0; i < 2; i++) row[i] = glu ? blockIdx.y * (mma_rows / 2) + warp * 16 : blockIdx.y * mma_rows + warp * 32 + 16 * i;
  Weights<DT> weights;
  weights.lane = lane;
#pragma unroll
  for (int i = 0; i < 2; i++) weights.init(glu && i ? p.up : p.w, tile.expert, (glu && i ? p.up_first : p.first) + min(row[i], last), i);

  // Copies of a stage: up to 4 of 16 bytes a thread. In the place of items beyond the last any row of x does.
  constexpr int copies = NT * 16 * 8 / mma_threads;
  const char* source[copies];
#pragma unroll
  for (int i = 0; i < copies; i++) {
    int32_t n = (threadIdx.x >> 3) + 32 * i;
    source[i] = static_cast<const char*>(p.x.x) + int64_t(place[n]) * p.x.pitch * 2 + (threadIdx.x & 7) * 16;
  }
  uint32_t copy_to = (threadIdx.x >> 3) * 128 + (((threadIdx.x & 7) ^ (threadIdx.x >> 3 & 7)) << 4);
  auto copy = [&](int32_t step, int32_t stage) {
#pragma unroll
    for (int i = 0; i < copies; i++) copy16(ring + stage * stage_bytes + i * 4096 + copy_to, source[i] + int64_t(step) * (mma_step * 2));
  };

  float acc[2][NT * 8] = {};
  weights.fetch(0);
#pragma unroll
  for (int s = 0; s < ahead; s++) {
    if (s < steps) copy(s, s);
    copies_end();
  }
  uint32_t fragment[2][2][4];
  int32_t stage = 0, fill = ahead;
  for (int32_t step = 0; step < steps; step++) {
    copies_wait<ahead - 1>();
#ifdef BAO_WARPGROUP
    copies_seen();
#endif
    __syncthreads();
    weights.begin(step, steps);
    if (step + 1 < steps) weights.fetch(step + 1);
    // Its last readers were at step + ahead - stages: two barriers ago.
    if (step + ahead < steps) copy(step + ahead, fill);
    copies_end();
#ifdef BAO_WARPGROUP
    uint64_t b = describe(ring + stage * stage_bytes);
#else
    uint32_t at = ring + stage * stage_bytes + ((lane >> 4) * 8 + (lane & 7)) * 128;
#endif
#pragma unroll
    for (int s = 0; s < 4; s++) {
      uint32_t (&a)[2][4] = fragment[s & 1];
#pragma unroll
      for (int i = 0; i < 4; i++) weights.operand(i >> 1, s, i & 1, a[i >> 1][i & 1], a[i >> 1][2 + (i & 1)]);
#ifdef BAO_WARPGROUP
      // While these run, the other fragment is made; the products that read it have ended.
#pragma unroll
      for (int i = 0; i < 8; i++) settle(a[i >> 2][i & 3]);
      warpgroup_begin();
      multiply_group<NT>(acc[0], a[0], b + 2 * s);
      multiply_group<NT>(acc[1], a[1], b + 2 * s);
      warpgroup_end();
      warpgroup_wait<1>();
#else
      uint32_t from = at + (((2 * s + (lane >> 3 & 1)) ^ (lane & 7)) << 4);
#pragma unroll
      for (int n = 0; n < NT; n++) {
        uint32_t b[4];
        load_matrices(b, from + n * 2048);
        multiply(acc[0] + n * 8, a[0], b[0], b[1]);
        multiply(acc[1] + n * 8, a[1], b[0], b[1]);
        multiply(acc[0] + n * 8 + 4, a[0], b[2], b[3]);
        multiply(acc[1] + n * 8 + 4, a[1], b[2], b[3]);
      }
#endif
    }
    stage = stage + 1 == stages ? 0 : stage + 1;
    fill = fill + 1 == stages ? 0 : fill + 1;
  }
#ifdef BAO_WARPGROUP
  warpgroup_wait<0>();
#pragma unroll
  for (int i = 0; i < NT * 8; i++) settle(acc[0][i]), settle(acc[1][i]);
#endif

  // Eight lanes write 8 neighbours of an item's row.
  float factor = p.w.factor(tile.expert), up_factor = glu ? p.up.factor(tile.expert) : factor;
#pragma unroll
  for (int n = 0; n < NT * 2; n++) {
#pragma unroll
    for (int e = 0; e < 2; e++) {
      int32_t at = n * 8 + 2 * t + e;
      if (at >= tile.count) continue;
      float *dst = output_of(p, item[at]), size = unscale[at];
#pragma unroll
      for (int high = 0; high < 2; high++) {
        float a = acc[0][n * 4 + 2 * high + e] * (size * factor), b = acc[1][n * 4 + 2 * high + e] * (size * up_factor);
        int32_t j = row[0] + g + 8 * high;
        if (glu) {
          if (j < p.outputs) dst[j] = activate(a, p.activation) * b;
        } else {
          if (j < p.outputs) dst[j] = a;
          if (j + 16 < p.outputs) dst[j + 16] = b;
        }
      }
    }
  }
}

template <int DT>
__global__ void __launch_bounds__(mma_threads, 1) mma_kernel(const StepRef* step, MmaProduct p) {
  extern __shared__ uint8_t dynamic[];
  uint8_t* ring = dynamic + (-shared_address(dynamic) & 1023u);
  int32_t* item = reinterpret_cast<int32_t*>(ring + stages * stage_bytes);
  float* unscale = reinterpret_cast<float*>(item + mma_items);
  int32_t* place = item + 2 * mma_items;  // in p.x
  await_previous();
  let_next_start();
  Tile tile = tile_of(step, p);
  if (tile.count <= 0) return;
  if (threadIdx.x < mma_items) {
    int32_t n = threadIdx.x, i = n >= tile.count ? -1 : tile.order ? tile.order[tile.first + n] : tile.first + n;
    int32_t at = i < 0 ? 0 : tile.order && p.x.slots == 1 ? i / p.groups.slots : i;
    item[n] = i, place[n] = at, unscale[n] = i < 0 ? 0.0f : p.x.scale[at];
  }
  __syncthreads();
  if (tile.expert >= p.w.experts) {  // pairs whose id is none
    int32_t rows = p.up.present() ? mma_rows / 2 : mma_rows, j0 = blockIdx.y * rows, width = min(rows, p.outputs - j0);
    for (int32_t i = threadIdx.x; i < tile.count * width; i += mma_threads) output_of(p, item[i / width])[j0 + i % width] = 0.0f;
    return;
  }
  uint32_t at = shared_address(ring);
  if (tile.count > 64) product<DT, 8>(p, tile, at, item, unscale, place);
  else if (tile.count > 32) product<DT, 4>(p, tile, at, item, unscale, place);
  else product<DT, 2>(p, tile, at, item, unscale, place);
}

template <int DT>
void launch_one(const MmaProduct& p, const Run& run) {
  // Asked for again at every launch: it is cheap, and true for whichever device is current.
  cudaFuncSetAttribute(mma_kernel<DT>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  unsigned tiles = p.groups.words ? unsigned(p.groups.most_tiles) : blocks_of(run.bound(p.dst), mma_items);
  launch(run, mma_kernel<DT>, dim3(tiles, blocks_of(p.outputs, p.up.present() ? mma_rows / 2 : mma_rows)), dim3(mma_threads), shared_bytes, run.step, p);
}

// Launches the kernel of the product's type when it is one of Types.
template <int... Types>
bool launch_among(const MmaProduct& p, const Run& run) {
  return ((p.w.dtype == Types ? (launch_one<Types>(p, run), true) : false) || ...);
}

}  // namespace mma
}  // namespace bao
