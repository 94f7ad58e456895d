// Tensor-core products for many rows: what recording and launching them takes. Weights of any quantised type, F16 or BF16 become f16 in registers;
// activations are rounded to bf16, scaled by a power of two a row, and kept as f16: rows beyond 65504 survive. f32 sums.
#pragma once
#include "matmul.h"

namespace bao {

// A unit of work: 256 rows of the weight (128 of gate and 128 of up) by up to 128 items: rows of x, or (row, slot) pairs of one expert.
constexpr int32_t mma_rows = 256, mma_items = 128, mma_step = 64, mma_threads = 256;
// At and below this many rows a mat-vec is used.
constexpr int32_t mma_least_rows = 17;

// Activations in f16: [item][pitch] halves, and a float an item that gives the row its size back.
struct MmaInput {
  const void* x;
  const float* scale;
  int32_t pitch;  // columns rounded up to 64
  int32_t slots;  // of x: 1, or one for each slot of ids
};
// Pairs by expert: words[0] tiles; from word 4 (expert, first, count) each; then the order of pairs. Null words: no experts.
struct MmaGroups {
  const int32_t* words;
  int32_t most_tiles, slots;
};

struct MmaMember {
  Tensor dst;
  WeightRef w, up;          // up present: dst = act(w x) * (up x); both of one type
  int32_t first, up_first;  // first row that counts
  int32_t outputs;          // how many
  int32_t start;            // of its units among those of a tile of items
};

// Products of one x in one launch: up to three members of one type, or one for experts.
struct MmaProduct {
  MmaMember member[3];
  int32_t members;
  int32_t blocks, whole;  // units of a tile; of them those of which more than half counts: the others come last
  int32_t items;          // of a tile, without experts
  int32_t activation;
  bool beside;            // needs nothing of the launch before it, which is a product of the same x: it may run at the same time
  MmaInput x;
  MmaGroups groups;
};

// ---- for the ops: what an op keeps for its launches of many rows, made when it is recorded. on: whether all its weights are served.
struct Many {
  bool on;
  int64_t x, scale, groups, parts, up_parts;  // scratch
};
Many record_many(Builder&, const MatmulArgs&);
Many record_many(Builder&, const MatmulGroupArgs&);
Many record_many(Builder&, const MatmulGluArgs&);
Many record_many(Builder&, const MoeMatmulArgs&);
Many record_many(Builder&, const MoeMatmulGluArgs&);
Many record_many(Builder&, const MoeMatmulSumArgs&);
Many record_many(Builder&, const RouterArgs&);  // mma_f32.cu

// Launches the whole op; false, and nothing launched, when it is for another kernel: few rows, exact or int8 activations, a type not served.
bool launch_many(const MatmulArgs&, const Many&, const Run&);
bool launch_many(const MatmulGroupArgs&, const Many&, const Run&);
bool launch_many(const MatmulGluArgs&, const Many&, const Run&);
bool launch_many(const MoeMatmulArgs&, const Many&, const Run&);
bool launch_many(const MoeMatmulGluArgs&, const Many&, const Run&);
bool launch_many(const MoeMatmulSumArgs&, const Many&, const Run&);
bool launch_many(const RouterArgs&, const Many&, const Run&);

// ---- mma.cu
int32_t mma_pitch(int32_t columns);
int64_t mma_group_words(int64_t pairs, int32_t experts);
// Rounds x; with ids also groups their pairs by expert. An x of one slot serves all slots of ids.
MmaInput mma_round(const Tensor& x, int32_t columns, const Tensor& ids, int32_t experts, const Many& many, MmaGroups* groups, const Run& run);
// Adds rows [first, first + outputs) of a weight (and of up) to a product of one type; dst's rows are all its columns, or a slot's.
void mma_member(MmaProduct& product, const Tensor& dst, const WeightRef& w, int32_t first, const WeightRef& up, int32_t up_first, int32_t outputs);
void mma_product(MmaProduct& product, const Run& run);
void mma_sum(const Tensor& dst, const Tensor& parts, const Tensor& weights, const Run& run);  // as moe_sum

// By weight type, one file a family: compile time.
bool mma_launch_k(const MmaProduct&, const Run&);      // Q2_K ... Q6_K
bool mma_launch_old(const MmaProduct&, const Run&);    // Q4_0 ... Q8_0
bool mma_launch_other(const MmaProduct&, const Run&);  // F16, BF16, IQ4, MXFP4, NVFP4

}  // namespace bao
