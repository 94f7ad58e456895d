// The tensor-core product as a template over weight type. Blocks stay and take units of work in turn; a warp has 32 rows of a unit's weight, whose codes go
// from memory to registers and become f16 there; activations pass through shared memory, swizzled in rows of 128 bytes.
#pragma once
#include "mma_warpgroup.cuh"
#include "mma_weights.cuh"

namespace bao {
namespace mma {

constexpr int stages = 5, ahead = 3, stage_bytes = mma_items * mma_step * 2;

// What is known of a unit, gathered while the unit before it is multiplied.
struct Notes {
  int32_t expert, first, count, unused;
  float factor[2];
  int32_t pair[mma_items], place[mma_items];  // place: in x
  float unscale[mma_items];
  alignas(16) int64_t offset[mma_items];      // in bytes, of dst
};
constexpr int shared_bytes = 1024 + stages * stage_bytes + 2 * int(sizeof(Notes));

__device__ __forceinline__ uint32_t shared_address(const void* p) { return uint32_t(__cvta_generic_to_shared(p)); }
__device__ __forceinline__ void copy16(uint32_t to, const void* from) { asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory"); }
__device__ __forceinline__ void copy4(void* to, const void* from) { asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(to)), "l"(from) : "memory"); }
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

// As activate(), within a few roundings: gelu(x) = x * sigmoid(2 u) with u the argument of its tanh.
__device__ __forceinline__ float activate_fast(float x, int32_t activation) {
  float z = activation == BAO_ACTIVATION_SILU ? x : 1.5957691216057308f * x * (1.0f + 0.044715f * x * x), power, inverse;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(z * -1.4426950408889634f));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(1.0f + power));
  return x * inverse;
}

// A block's place in its work, the same for all its threads.
struct Unit {
  int32_t tile, block, member;
  __device__ __forceinline__ Unit(const MmaProduct& p, int32_t number, int32_t tiles) {
    int32_t halves = number - tiles * p.whole;
    if (halves < 0) tile = number / p.whole, block = number - tile * p.whole;
    else tile = halves / max(p.blocks - p.whole, 1), block = p.whole + halves - tile * (p.blocks - p.whole);
    member = (p.members > 1 && block >= p.member[1].start) + (p.members > 2 && block >= p.member[2].start);
    block -= p.member[member].start;
  }
};

// The warp's two tiles of the weight: neighbours, or one of gate and one of up. Tiles beyond the last are read as the last one, and not written.
template <class F>
__device__ __forceinline__ void each_tile(const MmaMember& m, int32_t block, F&& f) {
  int32_t warp = threadIdx.x >> 5, last = (m.outputs - 1) & ~(tile_rows - 1);
  bool glu = m.up.present();
  int32_t row = glu ? block * (mma_rows / 2) + warp * 16 : block * mma_rows + warp * 32;
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const WeightRef& w = glu && i ? m.up : m.w;
    f(w, (glu && i ? m.up_first : m.first) + min(row + (glu ? 0 : 16 * i), last), i);
  }
}

// Writes a unit of NT * 16 items at most. acc: of tile i, rows g and g + 8, items 8 n + 2 t and + 1. Eight lanes write 8 neighbours of an item's row.
template <int NT>
__device__ __forceinline__ void store(const MmaMember& m, int32_t block, int32_t activation, const Notes& notes, const float (&acc)[2][NT * 8]) {
  const int32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3, count = notes.count;
  const bool glu = m.up.present();
  const float factor = notes.factor[0], up_factor = notes.factor[1];
  const int32_t j = g + (glu ? block * (mma_rows / 2) + warp * 16 : block * mma_rows + warp * 32), wanted = m.outputs - j;
  char* const to_row = m.dst.data + int64_t(j) * 4;
  auto each = [&](auto&& f) {
#pragma unroll
    for (int n = 0; n < NT * 2; n++) {
#pragma unroll
      for (int e = 0; e < 2; e++) {
        int32_t at = n * 8 + 2 * t + e;
        f(n * 4 + e, reinterpret_cast<float*>(to_row + notes.offset[at]), notes.unscale[at], at < count ? wanted : 0);
      }
    }
  };
  if (glu) {
    each([&](int i, float* to, float size, int32_t rows) {
#pragma unroll
      for (int high = 0; high < 2; high++) {
        float value = activate_fast(acc[0][i + 2 * high] * (size * factor), activation) * (acc[1][i + 2 * high] * (size * up_factor));
        if (8 * high < rows) to[8 * high] = value;
      }
    });
  } else {
    each([&](int i, float* to, float size, int32_t rows) {
#pragma unroll
      for (int k = 0; k < 4; k++) {
        float value = acc[k >> 1][i + 2 * (k & 1)] * (size * factor);
        if (8 * k < rows) to[8 * k] = value;
      }
    });
  }
}

template <int DT>
__global__ void __launch_bounds__(mma_threads, 1) mma_kernel(const StepRef* step_ref, const __grid_constant__ MmaProduct p) {
  extern __shared__ uint8_t dynamic[];
  uint8_t* memory = dynamic + (-shared_address(dynamic) & 1023u);
  const uint32_t ring = shared_address(memory);
  Notes* const both = reinterpret_cast<Notes*>(memory + stages * stage_bytes);
  const int32_t tid = threadIdx.x, lane = tid & 31;
  const int32_t* const words = p.groups.words;
  const int32_t steps_all = p.x.pitch / mma_step;

  Weights<DT> weights;
  weights.lane = lane;
  auto first_weights = [&](const MmaMember& m, int32_t block, int32_t expert) {
    each_tile(m, block, [&](const WeightRef& w, int32_t row, int i) { weights.init(w, expert, row, i); });
    weights.fetch(0);
  };
  // Weights of a known place are on their way before the launch before this one has ended.
  if (!words) {
    Unit u(p, blockIdx.x, gridDim.x);
    first_weights(p.member[u.member], u.block, 0);
  }
  if (!p.beside) await_previous();
  let_next_start();

  const int32_t rows = count_of(step_ref, p.member[0].dst);
  const int32_t tiles = rows <= 0 ? 0 : words ? words[0] : (rows + p.items - 1) / p.items;
  int32_t number = blockIdx.x;
  if (number >= tiles * p.blocks) {
    if (p.beside) await_previous();
    return;
  }

  // ---- notes of the unit of a number, in three parts: each needs what the one before has copied
  auto note_tile = [&](Notes& n, int32_t number) {
    int32_t tile = Unit(p, number, tiles).tile;
    if (words) {
      if (tid < 3) copy4(&n.expert + tid, words + 4 + 3 * tile + tid);
    } else if (tid == 0) {
      n.expert = 0, n.first = tile * p.items, n.count = min(p.items, rows - n.first);
    }
  };
  auto note_items = [&](Notes& n, int32_t number) {
    Unit u(p, number, tiles);
    const MmaMember& m = p.member[u.member];
    int32_t expert = n.expert, at = n.first + min(tid, n.count - 1);
    if (tid < mma_items) {
      if (words) copy4(n.pair + tid, words + 4 + 3 * p.groups.most_tiles + at);
      else n.pair[tid] = at;
    } else if (tid < mma_items + 2) {
      const WeightRef& w = tid == mma_items ? m.w : m.up;
      if (w.factors && expert < w.experts) copy4(n.factor + (tid - mma_items), w.factors + (w.factor_count == 1 ? 0 : expert));
      else n.factor[tid - mma_items] = 1.0f;
    }
    if (expert < m.w.experts) each_tile(m, u.block, [&](const WeightRef& w, int32_t row, int) { Weights<DT>::announce_row(w, expert, row, steps_all, lane); });
  };
  auto note_places = [&](Notes& n, int32_t number) {
    if (tid >= mma_items) return;
    const MmaMember& m = p.member[Unit(p, number, tiles).member];
    int32_t pair = n.pair[tid], row = words ? pair / p.groups.slots : pair, slot = words ? pair - row * p.groups.slots : 0, place = p.x.slots == 1 ? row : pair;
    n.place[tid] = place, n.offset[tid] = row * m.dst.stride + int64_t(slot) * m.outputs * 4;
    copy4(n.unscale + tid, p.x.scale + place);
  };
  auto settled = [&] {
    copies_end();
    copies_wait<0>();
    __syncthreads();
  };

  // ---- copies of activations: up to 4 of 16 bytes a thread and stage. In the place of items beyond the last, the last one again.
  uint32_t source[4];  // of 16 bytes each
  const uint32_t copy_to = (tid >> 3) * 128 + (((tid & 7) ^ (tid >> 3 & 7)) << 4);
  auto copy = [&](int32_t width, int32_t step, int32_t stage) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      if (32 * i < width) copy16(ring + stage * stage_bytes + i * 4096 + copy_to, static_cast<const char*>(p.x.x) + (int64_t(source[i]) + step * 8) * 16);
    }
  };
  int32_t fill = 0;  // the stage that is filled next
  auto after = [](int32_t stage) { return stage + 1 == stages ? 0 : stage + 1; };
  // Starts on a unit whose notes are complete; returns its steps.
  auto start = [&](const Notes& n, int32_t number, bool fetched) {
    Unit u(p, number, tiles);
    const MmaMember& m = p.member[u.member];
    int32_t steps = n.expert < m.w.experts ? steps_all : 0;  // pairs whose id is no expert: zeros
#pragma unroll
    for (int i = 0; i < 4; i++) source[i] = uint32_t(n.place[(tid >> 3) + 32 * i]) * uint32_t(p.x.pitch / 8) + (tid & 7);
    if (steps && !fetched) first_weights(m, u.block, n.expert);
#pragma unroll
    for (int s = 0; s < ahead; s++) {
      if (s < steps) copy(n.count, s, fill), fill = after(fill);
      copies_end();
    }
    return steps;
  };

  note_tile(both[0], number);
  settled();
  note_items(both[0], number);
  settled();
  note_places(both[0], number);
  settled();
  int32_t turn = 0, stage = 0, steps = start(both[0], number, !words && number < tiles * p.whole);

  while (true) {
    const int32_t next = number + gridDim.x;
    const bool more = next < tiles * p.blocks;
    int32_t next_steps = 0;
    // A warpgroup whose rows all lie beyond the last one only copies.
    bool idle;
    {
      Unit u(p, number, tiles);
      const MmaMember& m = p.member[u.member];
      idle = (m.up.present() ? u.block * (mma_rows / 2) + (tid >> 7) * 64 : u.block * mma_rows + (tid >> 7) * 128) >= m.outputs;
    }

    auto run = [&](auto width_of) {
      constexpr int NT = decltype(width_of)::value;
      float acc[2][NT * 8] = {};
      uint32_t fragment[2][2][4];
      for (int32_t step = 0; step < steps; step++) {
        copies_wait<ahead - 1>();
#ifdef BAO_WARPGROUP
        copies_seen();
#endif
        __syncthreads();
        if (more) {
          if (step == 0) note_tile(both[turn ^ 1], next);
          if (step == ahead) note_items(both[turn ^ 1], next);
          if (step == 2 * ahead) note_places(both[turn ^ 1], next);
        }
        // Its last readers were at step + ahead - stages: two barriers ago.
        if (step + ahead < steps) copy(NT * 16, step + ahead, fill), fill = after(fill);
        copies_end();
        if (!idle) {
          weights.begin(step, steps);
#ifdef BAO_WARPGROUP
          uint64_t b = describe(ring + stage * stage_bytes);
#else
          uint32_t from = ring + stage * stage_bytes + ((lane >> 4) * 8 + (lane & 7)) * 128;
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
            uint32_t at = from + (((2 * s + (lane >> 3 & 1)) ^ (lane & 7)) << 4);
#pragma unroll
            for (int n = 0; n < NT; n++) {
              uint32_t b[4];
              load_matrices(b, at + n * 2048);
              multiply(acc[0] + n * 8, a[0], b[0], b[1]);
              multiply(acc[1] + n * 8, a[1], b[0], b[1]);
              multiply(acc[0] + n * 8 + 4, a[0], b[2], b[3]);
              multiply(acc[1] + n * 8 + 4, a[1], b[2], b[3]);
            }
#endif
            weights.end_part(s, step, steps);
          }
        }
        stage = after(stage);
      }
      // The notes of the next unit, as far as there was no step for them; its first copies and weights are under way while this one is written.
      if (more) {
        if (steps <= 0) settled(), note_tile(both[turn ^ 1], next);
        if (steps <= ahead) settled(), note_items(both[turn ^ 1], next);
        if (steps <= 2 * ahead) settled(), note_places(both[turn ^ 1], next);
      }
      settled();
      if (more) next_steps = start(both[turn ^ 1], next, false);
#ifdef BAO_WARPGROUP
      warpgroup_wait<0>();
#pragma unroll
      for (int i = 0; i < NT * 8; i++) settle(acc[0][i]), settle(acc[1][i]);
#endif
      if (idle) return;
      Unit u(p, number, tiles);
      store<NT>(p.member[u.member], u.block, p.activation, both[turn], acc);
    };
    int32_t count = both[turn].count;
    if (count > 96) run(std::integral_constant<int, 8>{});
    else if (count > 64) run(std::integral_constant<int, 6>{});
    else if (count > 32) run(std::integral_constant<int, 4>{});
    else run(std::integral_constant<int, 2>{});
    if (!more) break;
    number = next, steps = next_steps, turn ^= 1;
  }
  if (p.beside) await_previous();
}

template <int DT>
void launch_one(const MmaProduct& p, const Run& run) {
  // Asked for again at every launch: it is cheap, and true for whichever device is current.
  cudaFuncSetAttribute(mma_kernel<DT>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  int64_t tiles = p.groups.words ? p.groups.most_tiles : blocks_of(run.bound(p.member[0].dst), p.items), units = tiles * p.blocks;
  launch(run, mma_kernel<DT>, dim3(unsigned(units < run.multiprocessors ? units : run.multiprocessors)), dim3(mma_threads), shared_bytes, run.step, p);
}

// Launches the kernel of the product's type when it is one of Types.
template <int... Types>
bool launch_among(const MmaProduct& p, const Run& run) {
  return ((p.member[0].w.dtype == Types ? (launch_one<Types>(p, run), true) : false) || ...);
}

}  // namespace mma
}  // namespace bao
