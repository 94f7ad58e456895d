// Everything around ops that is no op: stale handles, sizes, pools, and slots filled with nonsense. Worth running under -fsanitize=address.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <unistd.h>
#include <vector>

#include "rig.h"

using namespace rig;

namespace {

// ---- objects

void handles_go_stale() {
  Rig rig(2);
  bao_handle buffer = bao_buffer_create(rig.device, 4096, BAO_BUFFER_HOST_VISIBLE);
  bao_handle x = bao_view_create(buffer, 0, BAO_F32, BAO_ROWS_STEP, 4, 1, 8, 0), y = bao_view_create(buffer, 1024, BAO_F32, BAO_ROWS_STEP, 4, 1, 8, 0);
  expect_status(bao_copy(rig.stream, y, x), BAO_INVALID, "an op outside a recording");
  bao_stream_begin(rig.stream);
  expect_status(bao_copy(rig.stream, y, x), BAO_OK, "copy");
  expect_status(bao_copy(rig.stream, y, buffer), BAO_INVALID, "a buffer for a view");
  expect_status(bao_copy(rig.stream, y, 0), BAO_INVALID, "no operand");
  expect_status(bao_copy(rig.stream, y, NAN), BAO_INVALID, "NaN");
  expect_status(bao_copy(rig.stream, y, 1e300), BAO_INVALID, "a huge handle");
  expect_status(bao_copy(rig.stream, y, x + 0.5), BAO_INVALID, "half a handle");
  expect_status(bao_copy(rig.stream, y, -x), BAO_INVALID, "a negative handle");
  expect(bao_last_status() == (BAO_INVALID | 3 << 8), "the last status is %d", bao_last_status());
  bao_stream_end(rig.stream);
  expect(bao_stream_ops(rig.stream) == 1, "failed ops stayed in the recording: %d ops", bao_stream_ops(rig.stream));
  rig.fill(0, 4);
  float* data = reinterpret_cast<float*>(static_cast<uintptr_t>(bao_buffer_address(buffer)));
  for (int i = 0; i < 32; i++) data[i] = static_cast<float>(i);
  expect_status(bao_submit(rig.stream, 0), BAO_OK, "submit");
  expect_status(rig.finish(rig.stream, 0), BAO_OK, "wait");
  expect(data[256 + 31] == 31, "copied %g", static_cast<double>(data[256 + 31]));
  rig.fill(0, 5);
  expect_status(bao_submit(rig.stream, 0), BAO_INVALID, "more rows than a view holds");
  rig.fill(0, 4);
  expect_status(bao_buffer_free(buffer), BAO_OK, "free");
  expect_status(bao_submit(rig.stream, 0), BAO_INVALID, "a recording that names a freed buffer");
  expect_status(bao_buffer_free(buffer), BAO_INVALID, "free twice");
  bao_stream_begin(rig.stream);
  expect_status(bao_copy(rig.stream, y, x), BAO_INVALID, "a view of a freed buffer");
  bao_handle first = 0;
  for (int i = 0; i < 5000; i++) {
    bao_handle next = bao_buffer_create(rig.device, 1, 0);
    expect(next != 0 && next != first && next < 2147483648.0, "handle %g", next);
    expect_status(bao_buffer_free(next), BAO_OK, "free");
    expect(bao_buffer_address(next) == 0, "a freed buffer has an address");
    first = next;
  }
  expect_status(bao_step_free(rig.step), BAO_OK, "free the step");
  expect_status(bao_stream_begin(rig.stream), BAO_INVALID, "a stream without its step");
  expect_status(bao_stream_free(rig.stream), BAO_OK, "free the stream");
}

void sizes_are_checked() {
  Rig rig(1);
  for (double bytes : {0.0, -1.0, 1.5, double(NAN), double(INFINITY), 1e30}) expect(bao_buffer_create(rig.device, bytes, 0) == 0, "a buffer of %g bytes", bytes);
  expect(bao_buffer_create(rig.device, 9007199254740992.0, 0) == 0 && (bao_last_status() & 0xff) == BAO_OUT_OF_MEMORY, "a buffer of 2^53 bytes");
  bao_handle buffer = bao_buffer_create(rig.device, 1000, 0);
  const int32_t huge = INT32_MAX;
  expect(bao_view_create(buffer, 0, BAO_F32, 0, 10, 5, 5, 0) != 0, "a view that fits exactly");
  expect(bao_view_create(buffer, 4, BAO_F32, 0, 10, 5, 5, 0) == 0, "a view that ends 4 bytes late");
  expect(bao_view_create(buffer, 2, BAO_F32, 0, 1, 1, 1, 0) == 0, "an unaligned view");
  expect(bao_view_create(buffer, 0, BAO_F32, 0, huge, huge, huge, 0) == 0, "a view of 2^93 elements");
  expect(bao_view_create(buffer, 0, BAO_F32, 0, huge, 1, 1, 9007199254740988.0) == 0, "a view with a huge stride");
  expect(bao_view_create(buffer, 0, BAO_F16, 0, 1, 1, 1, 0) == 0, "a view of F16");
  expect(bao_view_create(buffer, 0, BAO_F32, 3, 1, 1, 1, 0) == 0, "a view with rows of kind 3");
  float number = 0;
  expect_status(bao_buffer_write(buffer, 996, &number, 4), BAO_OK, "the last four bytes");
  expect_status(bao_buffer_write(buffer, 997, &number, 4), BAO_INVALID, "one byte beyond");
  expect_status(bao_buffer_read(buffer, 0, nullptr, 4), BAO_INVALID, "to nowhere");
  expect(bao_step_create(rig.device, 9, 1, 1, 1, 1, 0, 1, 0, 0, 0) == 0, "nine slots");
  expect(bao_step_create(rig.device, 1, 1, 1, 65536, 1, 0, huge, 0, 0, 0) == 0, "a huge page table");
  expect(bao_device_open(0, 1, BAO_ISA_NEON + 1, 0, 0) == 0 && bao_device_open(1, 1, 0, 0, 0) == 0 && bao_device_open(0, -1, 0, 0, 0) == 0, "bad devices");
  expect(bao_file_open("\xff\xfe/none") == 0 && std::strstr(bao_last_error(), "??" "/none"), "a path that is no UTF-8");
}

void pools_hold_pages() {
  Rig rig(1);
  for (int32_t dtype : {BAO_F32, BAO_F16, BAO_Q8_0}) {
    bao_handle pool = bao_kv_pool_create(rig.device, 0, 3, 2, 64, dtype, BAO_KV_PLAIN, 0, 1000000);
    expect(pool != 0, "pool of type %d", dtype);
    double bytes = bao_kv_page_bytes(pool), plane = dtype == BAO_F32 ? 64 * 64 * 4 : dtype == BAO_F16 ? 64 * 64 * 2 : 64 * 64 + 64 * 2 * 4;
    expect(bytes == plane * 2 * 2 * 3, "a page of type %d has %g bytes", dtype, bytes);
    std::vector<char> page(static_cast<size_t>(bytes)), back(page.size());
    for (size_t i = 0; i < page.size(); i++) page[i] = static_cast<char>(i * 7 + 1);
    expect_status(bao_kv_page_write(pool, 0, page.data(), bytes), BAO_INVALID, "a page without memory");
    expect_status(bao_kv_pool_commit(pool, 3), BAO_OK, "commit");
    expect_status(bao_kv_pool_commit(pool, 1), BAO_OK, "commit fewer");
    expect_status(bao_kv_page_write(pool, 2, page.data(), bytes), BAO_OK, "write");
    expect_status(bao_kv_page_write(pool, 2, page.data(), bytes - 1), BAO_INVALID, "write less");
    expect_status(bao_kv_page_copy(pool, 1, 2, 64), BAO_OK, "copy");
    expect_status(bao_kv_page_copy(pool, 0, 2, 1), BAO_OK, "copy one token");
    expect_status(bao_kv_page_copy(pool, 3, 2, 1), BAO_INVALID, "copy to a page without memory");
    expect_status(bao_kv_page_read(pool, 1, back.data(), bytes), BAO_OK, "read");
    expect(page == back, "a copied page of type %d differs", dtype);
    expect_status(bao_kv_page_read(pool, 0, back.data(), bytes), BAO_OK, "read");
    size_t token = dtype == BAO_F32 ? 256 : dtype == BAO_F16 ? 128 : 64;
    expect(std::equal(back.begin(), back.begin() + static_cast<ptrdiff_t>(token), page.begin()) && back[token] == 0, "one token of type %d", dtype);
    expect_status(bao_kv_pool_commit(pool, 1000000), BAO_OUT_OF_MEMORY, "more than there is");
    expect_status(bao_kv_page_read(pool, 2, back.data(), bytes), BAO_OK, "read after a refused commit");
    expect(page == back, "a refused commit changed a page");
    expect_status(bao_kv_pool_free(pool), BAO_OK, "free");
  }
  expect(bao_memory(rig.device, BAO_MEMORY_KV) == 0, "%g bytes of KV memory are left", bao_memory(rig.device, BAO_MEMORY_KV));
}

// ---- slots

// A small model's worth of ops over real memory: what a wrong slot could make read out of bounds.
struct Model {
  bao_handle pool0, pool1, embedding, map, file;
  std::string path = "/tmp/bao_executor_test_XXXXXX";
  explicit Model(Rig& rig) {
    int descriptor = mkstemp(path.data());
    std::vector<float> table(100 * 16);
    for (size_t i = 0; i < table.size(); i++) table[i] = static_cast<float>(i % 13) - 6;
    if (write(descriptor, table.data(), table.size() * 4) != static_cast<ssize_t>(table.size() * 4)) std::abort();
    close(descriptor);
    file = bao_file_open(path.c_str());
    map = bao_map_create(rig.device, bao_file_address(file), bao_file_bytes(file));
    embedding = bao_weight_create(rig.device, map, 0, BAO_F32, 100, 16, 1, BAO_USE_ROWS | BAO_USE_MATMUL);
    expect(bao_weight_create(rig.device, map, 64, BAO_F32, 100, 16, 1, BAO_USE_ROWS) == 0, "a weight that leaves its map");
    expect(bao_map_create(rig.device, bao_file_address(file) - 4096, 100) == 0, "a map outside every file");
    expect_status(bao_map_free(map), BAO_INVALID, "a map with weights");
    expect_status(bao_file_close(file), BAO_OK, "the map keeps the pages of a closed file");
    pool0 = bao_kv_pool_create(rig.device, 0, 1, 1, 16, BAO_F32, 0, 0, 64);
    pool1 = bao_kv_pool_create(rig.device, 1, 1, 1, 16, BAO_F16, 0, 0, 64);
    bao_kv_pool_commit(pool0, 8);
    bao_kv_pool_commit(pool1, 8);
    bao_handle buffer = bao_buffer_create(rig.device, 65536, BAO_BUFFER_HOST_VISIBLE);
    bao_handle x = bao_view_create(buffer, 0, BAO_F32, BAO_ROWS_STEP, 16, 1, 16, 0), y = bao_view_create(buffer, 4096, BAO_F32, BAO_ROWS_STEP, 16, 1, 16, 0);
    bao_handle z = bao_view_create(buffer, 8192, BAO_F32, BAO_ROWS_OUTPUT, 8, 1, 16, 0), logits = bao_view_create(buffer, 16384, BAO_F32, BAO_ROWS_OUTPUT, 8, 1, 100, 0);
    expect_status(bao_stream_begin(rig.stream), BAO_OK, "begin");
    expect_status(bao_embed(rig.stream, x, embedding, 1), BAO_OK, "embed");
    expect_status(bao_kv_append(rig.stream, pool0, 0, x, x), BAO_OK, "append");
    expect_status(bao_kv_append(rig.stream, pool1, 0, x, x), BAO_OK, "append");
    expect_status(bao_attention(rig.stream, y, x, pool0, 0, 0, 1), BAO_OK, "attention");
    expect_status(bao_attention(rig.stream, y, x, pool1, 0, 32, 1), BAO_OK, "sliding attention");
    expect_status(bao_gather_rows(rig.stream, z, y), BAO_OK, "gather");
    expect_status(bao_matmul(rig.stream, logits, z, embedding), BAO_OK, "logits");
    expect_status(bao_logits_process(rig.stream, logits, 0), BAO_OK, "process");
    expect_status(bao_logprobs(rig.stream, logits), BAO_OK, "logprobs");
    expect_status(bao_sample(rig.stream, logits), BAO_OK, "sample");
    expect_status(bao_stream_end(rig.stream), BAO_OK, "end");
  }
  ~Model() { unlink(path.c_str()); }
};

void set_f32(int32_t* word, float value) { std::memcpy(word, &value, sizeof value); }

// Sequence 1: three prefill rows, pages set, one sampled output.
SlotView good_slot(Rig& rig, int32_t number) {
  SlotView s = rig.fill(number, 3);
  int32_t* header = s.words(BAO_FIELD_HEADER);
  header[BAO_HEADER_OUTPUTS] = 1;
  header[BAO_HEADER_PAGE_DELTAS] = 2;
  header[BAO_HEADER_SEQUENCE_DELTAS] = 1;
  for (int r = 0; r < 3; r++) {
    s.words(BAO_FIELD_ROW_SEQUENCE)[r] = 1;
    s.words(BAO_FIELD_ROW_ID)[r] = 10 + r;
  }
  s.words(BAO_FIELD_OUTPUT_ROW)[0] = 2;
  int32_t* sampler = s.words(BAO_FIELD_OUTPUT_SAMPLER);
  set_f32(sampler + BAO_SAMPLER_TEMPERATURE, 0.5f);
  set_f32(sampler + BAO_SAMPLER_TOP_P, 0.9f);
  set_f32(sampler + BAO_SAMPLER_REPETITION, 1);
  sampler[BAO_SAMPLER_TOP_LOGPROBS] = 2;
  sampler[BAO_SAMPLER_BIAS_COUNT] = 1;
  s.words(BAO_FIELD_BIAS)[0] = 5;
  const int32_t deltas[8] = {0, 1, 0, 3, 1, 1, 0, 4};
  std::copy(deltas, deltas + 8, s.words(BAO_FIELD_PAGE_DELTA));
  const int32_t sequence[7] = {1, 3, -1, 3, 10, 11, 12};
  std::copy(sequence, sequence + 7, s.words(BAO_FIELD_SEQUENCE_DELTA));
  return s;
}

// A decode row of sequence 1 that follows the device region.
SlotView decode_slot(Rig& rig, int32_t number) {
  SlotView s = good_slot(rig, number);
  int32_t* header = s.words(BAO_FIELD_HEADER);
  header[BAO_HEADER_ROWS] = 1;
  header[BAO_HEADER_PAGE_DELTAS] = header[BAO_HEADER_SEQUENCE_DELTAS] = 0;
  s.words(BAO_FIELD_ROW_ID)[0] = s.words(BAO_FIELD_ROW_POSITION)[0] = -1;
  s.words(BAO_FIELD_OUTPUT_ROW)[0] = 0;
  return s;
}

void bad_slots_are_refused() {
  Rig rig(2);
  Model model(rig);
  decode_slot(rig, 0);
  expect_status(bao_submit(rig.stream, 0), BAO_INVALID, "a decode row without pages");
  using Change = std::function<void(SlotView)>;
  const std::vector<std::pair<const char*, Change>> changes = {
      {"serial 0", [](SlotView s) { s.words(BAO_FIELD_HEADER)[BAO_HEADER_SERIAL] = 0; }},
      {"17 rows", [](SlotView s) { s.words(BAO_FIELD_HEADER)[BAO_HEADER_ROWS] = 17; }},
      {"-1 rows", [](SlotView s) { s.words(BAO_FIELD_HEADER)[BAO_HEADER_ROWS] = -1; }},
      {"4 outputs of 3 rows", [](SlotView s) { s.words(BAO_FIELD_HEADER)[BAO_HEADER_OUTPUTS] = 4; }},
      {"too many page deltas", [](SlotView s) { s.words(BAO_FIELD_HEADER)[BAO_HEADER_PAGE_DELTAS] = 100000; }},
      {"too many sequence deltas", [](SlotView s) { s.words(BAO_FIELD_HEADER)[BAO_HEADER_SEQUENCE_DELTAS] = 5; }},
      {"sequence 4", [](SlotView s) { s.words(BAO_FIELD_ROW_SEQUENCE)[2] = 4; }},
      {"sequence -1", [](SlotView s) { s.words(BAO_FIELD_ROW_SEQUENCE)[0] = -1; }},
      {"rows of a sequence apart", [](SlotView s) { s.words(BAO_FIELD_ROW_SEQUENCE)[1] = 0; }},
      {"id 100", [](SlotView s) { s.words(BAO_FIELD_ROW_ID)[1] = 100; }},
      {"id -2", [](SlotView s) { s.words(BAO_FIELD_ROW_ID)[1] = -2; }},
      {"id -1 at a position", [](SlotView s) { s.words(BAO_FIELD_ROW_ID)[1] = -1; }},
      {"a gap of positions", [](SlotView s) { s.words(BAO_FIELD_ROW_POSITION)[2] = 3; }},
      {"positions in reverse", [](SlotView s) { s.words(BAO_FIELD_ROW_POSITION)[0] = 2; }},
      {"position beyond the table", [](SlotView s) { for (int r = 0; r < 3; r++) s.words(BAO_FIELD_ROW_POSITION)[r] = 255 + r; }},
      {"a position without a page", [](SlotView s) { for (int r = 0; r < 3; r++) s.words(BAO_FIELD_ROW_POSITION)[r] = 62 + r; }},
      {"a huge position", [](SlotView s) { for (int r = 0; r < 3; r++) s.words(BAO_FIELD_ROW_POSITION)[r] = INT32_MAX - 2 + r; }},
      {"two -1 rows", [](SlotView s) { for (int r = 0; r < 3; r++) s.words(BAO_FIELD_ROW_POSITION)[r] = s.words(BAO_FIELD_ROW_ID)[r] = -1; }},
      {"delta of table 2", [](SlotView s) { s.words(BAO_FIELD_PAGE_DELTA)[0] = 2; }},
      {"delta of table -1", [](SlotView s) { s.words(BAO_FIELD_PAGE_DELTA)[0] = -1; }},
      {"delta of sequence 4", [](SlotView s) { s.words(BAO_FIELD_PAGE_DELTA)[1] = 4; }},
      {"delta of index 4", [](SlotView s) { s.words(BAO_FIELD_PAGE_DELTA)[2] = 4; }},
      {"delta to page -2", [](SlotView s) { s.words(BAO_FIELD_PAGE_DELTA)[3] = -2; }},
      {"delta to a page without memory", [](SlotView s) { s.words(BAO_FIELD_PAGE_DELTA)[3] = 8; }},
      {"delta that unsets a needed page", [](SlotView s) { s.words(BAO_FIELD_PAGE_DELTA)[7] = -1; }},
      {"the same delta twice", [](SlotView s) { std::copy_n(s.words(BAO_FIELD_PAGE_DELTA), 3, s.words(BAO_FIELD_PAGE_DELTA) + 4); }},
      {"sequence delta of 65 ids", [](SlotView s) { s.words(BAO_FIELD_SEQUENCE_DELTA)[3] = 65; }},
      {"sequence delta with id 100", [](SlotView s) { s.words(BAO_FIELD_SEQUENCE_DELTA)[5] = 100; }},
      {"sequence delta with next id 100", [](SlotView s) { s.words(BAO_FIELD_SEQUENCE_DELTA)[2] = 100; }},
      {"sequence delta with length -1", [](SlotView s) { s.words(BAO_FIELD_SEQUENCE_DELTA)[1] = -1; }},
      {"sequence delta of sequence 4", [](SlotView s) { s.words(BAO_FIELD_SEQUENCE_DELTA)[0] = 4; }},
      {"output of row 3", [](SlotView s) { s.words(BAO_FIELD_OUTPUT_ROW)[0] = 3; }},
      {"output that is not the last row", [](SlotView s) { s.words(BAO_FIELD_OUTPUT_ROW)[0] = 1; }},
      {"temperature NaN", [](SlotView s) { set_f32(s.words(BAO_FIELD_OUTPUT_SAMPLER) + BAO_SAMPLER_TEMPERATURE, NAN); }},
      {"temperature -1", [](SlotView s) { set_f32(s.words(BAO_FIELD_OUTPUT_SAMPLER) + BAO_SAMPLER_TEMPERATURE, -1); }},
      {"top-k -1", [](SlotView s) { s.words(BAO_FIELD_OUTPUT_SAMPLER)[BAO_SAMPLER_TOP_K] = -1; }},
      {"top-p 0", [](SlotView s) { set_f32(s.words(BAO_FIELD_OUTPUT_SAMPLER) + BAO_SAMPLER_TOP_P, 0); }},
      {"min-p 2", [](SlotView s) { set_f32(s.words(BAO_FIELD_OUTPUT_SAMPLER) + BAO_SAMPLER_MIN_P, 2); }},
      {"repetition 0", [](SlotView s) { set_f32(s.words(BAO_FIELD_OUTPUT_SAMPLER) + BAO_SAMPLER_REPETITION, 0); }},
      {"presence infinite", [](SlotView s) { set_f32(s.words(BAO_FIELD_OUTPUT_SAMPLER) + BAO_SAMPLER_PRESENCE, INFINITY); }},
      {"21 log-probabilities", [](SlotView s) { s.words(BAO_FIELD_OUTPUT_SAMPLER)[BAO_SAMPLER_TOP_LOGPROBS] = 21; }},
      {"flag 4", [](SlotView s) { s.words(BAO_FIELD_OUTPUT_SAMPLER)[BAO_SAMPLER_FLAGS] = 4; }},
      {"bias beyond the field", [](SlotView s) { s.words(BAO_FIELD_OUTPUT_SAMPLER)[BAO_SAMPLER_BIAS_START] = 8; }},
      {"bias that overflows", [](SlotView s) { s.words(BAO_FIELD_OUTPUT_SAMPLER)[BAO_SAMPLER_BIAS_START] = INT32_MAX; }},
      {"bias of id 100", [](SlotView s) { s.words(BAO_FIELD_BIAS)[0] = 100; }},
      {"bias of +infinity", [](SlotView s) { set_f32(s.words(BAO_FIELD_BIAS) + 1, INFINITY); }},
  };
  for (const auto& [what, change] : changes) {
    change(good_slot(rig, 0));
    expect_status(bao_submit(rig.stream, 0), BAO_INVALID, what);
  }
  decode_slot(rig, 0);
  expect_status(bao_submit(rig.stream, 0), BAO_INVALID, "a refused submit applied its deltas");
  good_slot(rig, 0);
  expect_status(bao_submit(rig.stream, 0), BAO_OK, "a good slot");
  expect_status(rig.finish(rig.stream, 0), BAO_OK, "a good slot runs");
  // 61 decode steps fill the page of 64 tokens; the 62nd needs a page that is not set.
  int32_t last = rig.slot(0).words(BAO_FIELD_RESULT)[BAO_RESULT_ID];
  expect(last >= 0 && last < 100, "sampled %d", last);
  for (int i = 0; i < 61; i++) {
    decode_slot(rig, i % 3);
    expect_status(bao_submit(rig.stream, i % 3), BAO_OK, "decode");
    expect_status(rig.finish(rig.stream, i % 3), BAO_OK, "decode runs");
  }
  decode_slot(rig, 0);
  expect_status(bao_submit(rig.stream, 0), BAO_INVALID, "decode beyond the last page");
}

// Slots of random words, most of them near the valid ranges: whatever is accepted must run inside its memory.
void random_slots(int32_t flags) {
  std::mt19937 random(99);
  int accepted = 0, refused = 0;
  Rig rig(3, flags);
  Model model(rig);
  for (int i = 0; i < 6000; i++) {
    int32_t number = i % 3;
    bao_wait(rig.stream, number, 1e9);
    SlotView s = random() % 3 ? decode_slot(rig, number) : good_slot(rig, number);
    if (random() % 2) {
      int32_t page = static_cast<int32_t>(random() % 9) - 1;
      const int32_t deltas[8] = {0, static_cast<int32_t>(random() % 4), static_cast<int32_t>(random() % 4), page, 1, static_cast<int32_t>(random() % 4), static_cast<int32_t>(random() % 2), page};
      s.words(BAO_FIELD_HEADER)[BAO_HEADER_PAGE_DELTAS] = 2;
      std::copy(deltas, deltas + 8, s.words(BAO_FIELD_PAGE_DELTA));
    }
    for (uint32_t changes = random() % 4; changes > 0; changes--) {
      static const int32_t fields[] = {BAO_FIELD_HEADER, BAO_FIELD_ROW_SEQUENCE, BAO_FIELD_ROW_ID, BAO_FIELD_ROW_POSITION, BAO_FIELD_OUTPUT_ROW, BAO_FIELD_OUTPUT_SAMPLER, BAO_FIELD_PAGE_DELTA, BAO_FIELD_SEQUENCE_DELTA, BAO_FIELD_BIAS};
      int32_t* word = s.words(fields[random() % 9]) + random() % 6;
      if (word == s.words(BAO_FIELD_HEADER) + BAO_HEADER_SERIAL) continue;
      switch (random() % 4) {
        case 0: *word = static_cast<int32_t>(random()); break;
        case 1: *word = static_cast<int32_t>(random() % 5) - 1; break;
        case 2: *word ^= 1 << random() % 32; break;
        default: *word += static_cast<int32_t>(random() % 3) - 1; break;
      }
    }
    int32_t status = bao_submit(rig.stream, number);
    (status == BAO_OK ? accepted : refused)++;
    if (status != BAO_OK) expect_status(status, BAO_INVALID, "a random slot");
  }
  expect(accepted > 500 && refused > 500, "%d accepted, %d refused: one side is hardly tested", accepted, refused);
}

void random_slots_are_harmless() {
  random_slots(0);
  random_slots(BAO_OPEN_REFERENCE);
}
}  // namespace

int main() {
  return run({
      {"handles go stale", handles_go_stale},
      {"sizes are checked", sizes_are_checked},
      {"pools hold pages", pools_hold_pages},
      {"bad slots are refused", bad_slots_are_refused},
      {"random slots are harmless", random_slots_are_harmless},
  });
}
