// What the matmul and expert files share: activations as products read them, and one product of a weight with rows or with (row, slot) pairs.
#pragma once
#include "encode.h"

namespace bao {

// How the products of an op round their x; decided when recorded. Apple's GPUs have no integer dot products, so the device's choice is bf16, which kernels
// apply as they read. int8 (forced, for tests) is a copy of x in scratch: the values that the int8 numbers stand for.
struct Rounding {
  int64_t int8_at;  // scratch of the copy, -1: none
  int32_t fast;     // 0 f32, 1 int8, 2 bf16
};
Rounding reserve_rounding(Builder& builder, const Tensor& x, std::initializer_list<const WeightRef*> weights);

// x (rows, d1, d2) as products with several weights read it: encodes the copy, if one of them needs it.
class Activations {
 public:
  Activations(const Tensor& x, const Rounding& rounding, const Run& run);
  const Tensor& of(const WeightRef& w) const;
  bool bf16(const WeightRef& w) const;

 private:
  Tensor x_, int8_;
  int32_t fast_;
};

// Pairs (row, slot) grouped by expert in tiles, on the device: words of scratch, for products of many pairs. Encoded once for all products of an op.
struct Groups {
  int32_t* words;  // null: none
  int64_t bytes;
  int32_t most_tiles, order_at;
};
int64_t reserve_groups(Builder& builder, const Tensor& ids, int32_t experts);
Groups encode_groups(const Tensor& ids, int32_t experts, int64_t scratch, const Run& run);

// dst (rows, 1 or k, count) = rows [first, first + count) of w times x, which is (rows, 1 or k, w.columns). With ids (rows, 1, k): of each slot's expert.
struct Product {
  Tensor dst, x;
  WeightRef w;
  int32_t first, count;
  bool bf16;      // x is rounded to bf16
  Tensor ids;     // without data: one weight for all rows
  Groups groups;  // with words: of these ids
};
void encode_product(const Product& product, const Run& run);

// dst = activation(product) * the same product with rows [up_first, ...) of up, in one launch. False where no kernel does that: many rows, or two types.
bool encode_product_glu(const Product& product, const WeightRef& up, int32_t up_first, int32_t activation, const Run& run);

// dst (rows, 1, count) = sum over slots of weights (rows, 1, k) * product, in one launch; false likewise.
bool encode_product_sum(const Product& product, const Tensor& weights, const Run& run);

// The product of one weight with all of x's columns as one row.
Product product_of(const Tensor& dst, const WeightRef& w, int32_t first, int32_t count, const Activations& x);

void encode_topk(const TopkSoftmaxArgs&, const Run&);

}  // namespace bao
