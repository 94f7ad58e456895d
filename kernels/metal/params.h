// Structs that the host fills and kernels read: one definition for both. Plain numbers only; sizes in elements unless a name says bytes.
// Included by the host and, as text, by every .metal file.
#ifndef BAO_METAL_PARAMS_H
#define BAO_METAL_PARAMS_H

#if !defined(__METAL_VERSION__)
#include <stdint.h>
#endif

namespace bao {

// Buffer indices that all kernels share. Operands have 0 ... 23.
enum {
  AT_PARAMS = 24,   // the op's own struct
  AT_LAYOUT = 25,   // StepLayout
  AT_CURRENT = 26,  // [CURRENT_*] words, written when a step starts
  AT_REGION = 27,   // the step block's device region
  AT_SLOT = 28,     // the checked copy of the slot
  AT_HOST = 29,     // the slot itself: its cancel word and RESULT
  AT_REPORT = 30    // [REPORT_*] words of this stream and slot
};

// The running submit of a step block. ROWS and OUTPUTS are -1 in a step that failed or was cancelled: everything after it leaves. NUMBER: of the last
// submit that has begun. A submit begins only behind its predecessor: when a command buffer fails, what follows must not run on tables that it left out.
enum { CURRENT_ROWS = 0, CURRENT_OUTPUTS = 1, CURRENT_NUMBER = 2, CURRENT_OUTCOME = 8 /* one word a slot */, CURRENT_WORDS = 16 };
enum { REPORT_STATUS = 0, REPORT_REASON = 1, REPORT_ROW = 2, REPORT_SEQUENCE = 3, REPORT_POSITION = 4, REPORT_INDEX = 5, REPORT_TABLE = 6, REPORT_WORDS = 8 };
enum { REASON_NONE = 0, REASON_EARLIER = 1, REASON_NO_ID = 2, REASON_NO_PAGE = 3, REASON_NOT_BEGUN = 4 /* its predecessor has not begun */ };

// Where things lie, in words: in the region, then in the slot, then in the host's slot.
struct StepLayout {
  int32_t table[4], pages[4];
  int32_t next_id, length, history, history_count, row_id, row_position;
  int32_t row_sequence, output_row, sampler, bias;
  int32_t result;
  int32_t vocabulary;
};

// A view without its address. stride: between rows.
struct Rows {
  int64_t stride;
  int32_t rows_of, d0, d1, d2;  // d0 = 0: absent
};

// A weight without its address, which is a multiple of 16.
struct WeightRows {
  int64_t row_bytes, expert_bytes;
  int32_t rows, columns, experts;
  int32_t factor_count;  // 0: none
};

// One layer of a KV pool; its address is the layer's.
struct PoolLayer {
  int64_t page_stride_bytes, plane_bytes, scales_bytes;
  int32_t table, kv_heads, head_dim, dtype;
};

struct BeginParams {
  int32_t slot, serial, continues, samplers, number, predecessor;
  int32_t window[4], committed[4];
  int32_t row_id, row_position, page_delta, sequence_delta;  // of the slot, in words
};
struct CancelParams { int32_t slot, serial; };

// norm.metal: views by buffer index; a bit of `present` for each operand that is there.
struct NormParams {
  Rows v[6];
  float eps, scale, scale1;
  int32_t present;
};

struct ElementParams { Rows dst, a, b; float factor; };
struct GluParams { Rows dst, gate, up; int32_t activation; };
struct EmbedParams { Rows dst; WeightRows w; float scale; };

// matmul.metal: see Product in matmul.h. `count` results of each row from column `to` on. order_at: where the groups list their pairs, 0: none.
struct ProductParams {
  Rows dst, x, ids, weights;
  WeightRows w, up;
  int32_t first, up_first, to, count, form, activation, order_at;
};
// What products read of x: f32, f32 to be rounded to bf16, or two columns a word, each row and slot padded to 8 columns with zeros.
enum { X_F32 = 0, X_ROUNDED = 1, X_PACKED = 2 };
struct RoundParams { Rows dst, x; int32_t columns; };
enum { PRODUCT_FEW = 16 /* rows up to which each is summed by a mat-vec */, PRODUCT_TILE = 32 /* rows or pairs of a tile */, GROUP_TILES = 4 /* where the groups list their tiles */ };

// One launch of rope.metal's table: columns from `first` on, whose inverse frequencies come with it.
struct RopeTableParams { Rows dst; int32_t first; };
struct RopeParams { Rows dst, x, table; int32_t mode; };

struct AppendParams { Rows k, v; PoolLayer pool; };
struct HeadParams {
  Rows q, k, v, table;
  PoolLayer pool;
  int32_t mode, norm_v, has_wq, has_wk;
  float eps;
};
struct PageCopyParams { PoolLayer pool; int32_t destination, source, bytes, scale_bytes; };

// Neighbouring rows of an op in a launch's list; first: the number of their first item, a row or a tile.
struct RowRange { int32_t row, rows, first; };
// first: the launch's first item; ranges: how many come with it. splits: at most, of a row; 1: outputs are written directly. lanes, shares: see attention_row.
struct AttentionParams { Rows dst, q; PoolLayer pool; int32_t window, ranges, first, splits, lanes, shares; float scale; };

// Words of a sampler record and of a RESULT row, as in bao.h.
enum {
  SAMPLER_TEMPERATURE = 0, SAMPLER_TOP_K = 1, SAMPLER_TOP_P = 2, SAMPLER_MIN_P = 3, SAMPLER_REPETITION = 4, SAMPLER_PRESENCE = 5, SAMPLER_FREQUENCY = 6,
  SAMPLER_SEED_LOW = 7, SAMPLER_SEED_HIGH = 8, SAMPLER_TOP_LOGPROBS = 9, SAMPLER_FLAGS = 10, SAMPLER_BIAS_START = 11, SAMPLER_BIAS_COUNT = 12, SAMPLER_WORDS = 16
};
enum { SAMPLE_MASK = 1, SAMPLE_HOLD = 2 };
enum { RESULT_ID = 0, RESULT_FINITE = 1, RESULT_LOGPROB = 2, RESULT_TOP_COUNT = 3, RESULT_TOP_IDS = 4, RESULT_TOP_LOGPROBS = 24, RESULT_LOG_SUM = 44, RESULT_WORDS = 48 };
struct LogitsParams { Rows logits, mask; };
struct DrawParams { Rows logits; int32_t chunks; };  // of 4096 ids, in which candidates were looked for; 0: they were not

struct TopkParams { Rows ids, weights, logits; int32_t renormalise; };
struct SlotSumParams { Rows dst, x, weights; };
struct GroupParams { Rows ids; int32_t experts, order_at, counts_at; };

}  // namespace bao

#endif
