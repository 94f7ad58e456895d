// What the matmul files share: activations as a matmul reads them, and one product of a weight with rows or with (row, slot) pairs.
// Up to `vector_rows` rows go through a mat-vec (each weight row read once per 4 rows of x), more through tiles; experts likewise by pairs.
#pragma once
#include "units.h"

namespace bao {

// Rows of activations. f32: read from x or from a copy rounded to bf16; int8: one f32 scale per 32 values. (row, slot) of `slots` slots a row.
struct Activations {
  const char* f32;
  int64_t stride;   // bytes between rows of f32
  const int8_t* q;  // null: f32. [row][slot][columns]
  const float* d;   // [row][slot][columns / 32]
  int32_t slots, columns;
  __device__ const float* row(int64_t r, int32_t slot) const {
    return reinterpret_cast<const float*>(f32 + r * stride) + int64_t(slots == 1 ? 0 : slot) * columns;
  }
  __device__ int64_t packed(int64_t r, int32_t slot) const { return r * slots + (slots == 1 ? 0 : slot); }
};

// Scratch of one rounding of x: 0 none, 1 int8, 2 bf16. Reserved when recorded, filled by a launch.
struct Rounded { int64_t at, scales; int32_t rounding; };
Rounded reserve_rounded(Builder& builder, const Tensor& x, int32_t rounding);
Activations launch_round(const Tensor& x, const Rounded& rounded, const Run& run);
int32_t rounding_of(const WeightRef& w, int32_t fast);  // as the contract says for this weight's type

struct Product {
  Tensor dst;          // (rows, 1 or k, w.rows)
  WeightRef w;
  Activations x;
  int32_t row_offset;  // first row of w that counts: the up half of a packed gate
  int32_t rows_of_w;   // how many of them
  // Experts: ids (rows, 1, k), null data for a plain matmul; pairs grouped by expert in `order` when there are many.
  Tensor ids;
  const int32_t* groups;  // device memory, see moe.cu: null: one mat-vec a pair
  int32_t most_tiles;
};

constexpr int32_t vector_rows = 8, vector_pairs = 64, tile = 64;

void launch_product(const Product& product, const Run& run);  // dispatch over types and sizes
void launch_exact(const Product& product, const Run& run);    // f32 activations (matmul_f32.cu)
void launch_int8(const Product& product, const Run& run);     // int8 activations (matmul_int8.cu)

// moe.cu: groups of pairs by expert. Layout of `groups`: [0] tiles; [1 ... tiles] of (expert, first, count) from word 4 on; then the order of pairs.
struct GroupLayout {
  int64_t tiles_at, order_at, counts_at, cursor_at, words;
  int32_t most_tiles;
};
GroupLayout group_layout(int64_t pairs, int32_t experts);
const int32_t* launch_group(const Tensor& ids, int32_t experts, int64_t scratch, const Run& run, int32_t* most_tiles);
int64_t reserve_groups(Builder& builder, const Tensor& ids, int32_t experts);

}  // namespace bao
