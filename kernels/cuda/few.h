// Products of quantised weights with few rows of int8 activations (decode): one launch an op, bound by the bytes of the weights. What an op fills in,
// and how the launch is cut. Kernels: few_kernel.cuh.
#pragma once
#include "units.h"

namespace bao {

constexpr int32_t few_rows = 32, few_rounds = 8192, few_warps = 8, few_stages = 3;

// One group of 32 activations: their scale, and the sums of their bytes (first 16, last 16, all).
struct alignas(16) GroupOfX { float scale, low, high, all; };

// An output tile of 16 rows is an item. Its units of work are the cells of its parts: one part for a plain product, gate and up, or all slots of a sum.
enum class FewKind : int32_t { plain, glu, sum };

struct FewMember {
  Tensor dst;            // of gate only in a GLU
  WeightRef w;
  int32_t outputs;       // rows of w that count, from tile first_tile on
  int32_t first_tile;
  int32_t cell_bytes, last_bytes;  // of a whole cell, of a tile's last one
  int32_t start;         // its first item, after those of the members before
  int32_t end, first_block, blocks;  // one row: its last item, and the blocks that take its items in turns
};

struct FewArgs {
  FewKind kind;
  int32_t activation;
  int32_t members;
  FewMember member[3];
  Tensor x;                 // (rows, 1 or k, columns)
  Tensor ids, weights;      // (rows, 1, k) of expert products; weights of sums
  const int8_t* q;          // rounded by a launch before: [row][columns], and groups likewise; null: the kernel rounds x
  const GroupOfX* groups;
  int32_t columns, steps, cells;
  int32_t items;            // tiles of all members (each once for every slot, or pair: the grid's y)
  int32_t split;            // warps that share an item: a power of two
  int32_t stage_bytes;      // of one cell in shared memory
  int32_t x_rows;           // rows in shared memory
  int32_t each, stages;     // one row: units of a warp, cells of a warp that are in shared memory or on their way
  bool apart;               // beside the launch before: the kernel waits for that one's end before its own
  bool halves;              // activations may be f16 instead of int8
  bool late;                // lets the next launch start after its own wait only
  bool settled;             // ids and weights are there before the wait
};

// Fills in a product of x; `columns` of a row (or of a slot of it).
FewArgs few_args(FewKind kind, const Tensor& x, int32_t columns);
// Adds rows [first, first + outputs) of w. False: not a weight that these kernels read.
bool few_member(FewArgs& a, const Tensor& dst, const WeightRef& w, int32_t first, int32_t outputs);
int64_t reserve_few(Builder& b, const Tensor& x);  // scratch for rounded rows
// False, and nothing launched: too many rows, or too long ones for shared memory.
bool launch_few(FewArgs& a, int64_t scratch, const Run& run);

// few_1.cu: one row, or pairs one by one. few_8.cu, few_16.cu: up to 8 and 16 rows.
bool launch_few_1(FewArgs& a, int64_t limit, const Run& run);
// few_pairs.cu: pairs of several rows, an expert read once for up to four of its pairs. few_shares: whether that pays, and is possible.
bool few_shares(int32_t rows, const Tensor& ids, int32_t experts);
bool launch_few_pairs(FewArgs& a, int64_t limit, const Run& run);
// few_rows.cu: several rows in f16.
bool launch_few_rows(FewArgs& a, int64_t limit, const Run& run);
void launch_few_8(const FewArgs& a, dim3 grid, size_t shared, int limit, const Run& run);
void launch_few_16(const FewArgs& a, dim3 grid, size_t shared, int limit, const Run& run);

// ---- few_ops.cu, for the ops: what an op keeps for its launches of few rows. on: whether precision and weights are served.
struct Few {
  bool on;
  int64_t x, parts;  // scratch
};
Few record_few(Builder&, const MatmulArgs&);
Few record_few(Builder&, const MatmulGroupArgs&);
Few record_few(Builder&, const MatmulGluArgs&);
Few record_few(Builder&, const MoeMatmulArgs&);
Few record_few(Builder&, const MoeMatmulGluArgs&);
Few record_few(Builder&, const MoeMatmulSumArgs&);

// Launches the whole op; false, and nothing launched, when it is for another kernel.
bool launch_few(const MatmulArgs&, const Few&, const Run&);
bool launch_few(const MatmulGroupArgs&, const Few&, const Run&);
bool launch_few(const MatmulGluArgs&, const Few&, const Run&);
bool launch_few(const MoeMatmulArgs&, const Few&, const Run&);
bool launch_few(const MoeMatmulGluArgs&, const Few&, const Run&);
bool launch_few(const MoeMatmulSumArgs&, const Few&, const Run&);

}  // namespace bao
