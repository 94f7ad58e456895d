// What the matmul and expert files share: activations as products read them, and one product of a weight with rows or with (row, slot) pairs.
#pragma once
#include "encode.h"

namespace bao {

// How the products of an op round their x; decided when recorded. Apple's GPUs have no integer dot products, so the device's choice is bf16: a product of one
// row, or of pairs one by one, rounds x as it reads it, others read a copy in scratch. int8 (forced, for tests): a copy of the values that the numbers stand for.
struct Rounding {
  int64_t int8_at, bf16_at;  // scratch of the copies, -1: none
  int32_t fast;              // 0 f32, 1 int8, 2 bf16
};
Rounding reserve_rounding(Builder& builder, const Tensor& x, std::initializer_list<const WeightRef*> weights);

// x (rows, slots, columns) as products with several weights read it: encodes the copies that they need. together: rows share what is read of a weight.
class Activations {
 public:
  Activations(const Tensor& x, int32_t columns, const Rounding& rounding, bool together, const Run& run);
  const Tensor& of(const WeightRef& w) const;
  int32_t form(const WeightRef& w) const;  // X_*

 private:
  Tensor x_, int8_, bf16_;
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

// Columns [to, to + count) of dst (rows, 1 or k, d2) = rows [first, first + count) of w times x, which is (rows, 1 or k, w.columns). With ids (rows, 1, k): of
// each slot's expert.
struct Product {
  Tensor dst, x;
  WeightRef w;
  int32_t first, count;
  int32_t form;   // of x: X_*
  Tensor ids;     // without data: one weight for all rows
  Groups groups;  // with words: of these ids
  int32_t to = 0;
};
void encode_product(const Product& product, const Run& run);

// dst = activation(product) * the same product with rows [up_first, ...) of up, in one launch. False where no kernel does that: several rows that are no pairs, or two types.
bool encode_product_glu(const Product& product, const WeightRef& up, int32_t up_first, int32_t activation, const Run& run);

// dst (rows, 1, count) = sum over slots of weights (rows, 1, k) * product, in one launch; false likewise.
bool encode_product_sum(const Product& product, const Tensor& weights, const Run& run);

// The product of one weight with all of x's columns as one row.
Product product_of(const Tensor& dst, const WeightRef& w, int32_t first, int32_t count, const Activations& x);

void encode_topk(const TopkSoftmaxArgs&, const Run&);

}  // namespace bao
