// What the native op tests share: one device with a step block, buffers, weights and a stream, driven through bao.h alone.
// Every failure is printed; a test program ends with report().
#pragma once
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "../../kernels/host.h"

namespace harness {

inline int failures = 0, checks = 0;
inline std::string context;  // device under test, printed with each failure

inline bool expect(bool holds, const std::string& what) {
  checks++;
  if (holds) return true;
  failures++;
  std::printf("FAIL [%s] %s\n", context.c_str(), what.c_str());
  return false;
}

inline void near(float found, double expected, const std::string& what, double tolerance = 1e-5) {
  bool holds = std::fabs(found - expected) <= tolerance * (1 + std::fabs(expected)) || (std::isnan(found) && std::isnan(expected)) || found == expected;
  expect(holds, what + ": found " + std::to_string(found) + ", expected " + std::to_string(expected));
}

inline void near(const std::vector<float>& found, const std::vector<double>& expected, const std::string& what, double tolerance = 1e-5) {
  if (!expect(found.size() == expected.size(), what + ": size")) return;
  for (size_t i = 0; i < found.size(); i++) near(found[i], expected[i], what + "[" + std::to_string(i) + "]", tolerance);
}

inline void same(int64_t found, int64_t expected, const std::string& what) {
  expect(found == expected, what + ": found " + std::to_string(found) + ", expected " + std::to_string(expected));
}

inline int report() {
  std::printf("%d checks, %d failures\n", checks, failures);
  return failures ? 1 : 0;
}

struct View {
  bao_handle handle = 0;
  char* memory = nullptr;
  int32_t columns = 0;
  float* f32(int32_t row = 0) const { return reinterpret_cast<float*>(memory) + int64_t(row) * columns; }
  int32_t* i32(int32_t row = 0) const { return reinterpret_cast<int32_t*>(memory) + int64_t(row) * columns; }
  void set(const std::vector<float>& values) const { std::memcpy(memory, values.data(), values.size() * 4); }
  std::vector<float> get(int32_t rows) const { return {f32(), f32() + int64_t(rows) * columns}; }
};

struct Options {
  int32_t flags = BAO_OPEN_REFERENCE, isa = BAO_ISA_AUTO, precision = BAO_EXACT, threads = 1;
  int32_t max_rows = 16, max_outputs = 16, max_sequences = 4, vocabulary = 64, max_bias = 8, pages = 8;
};

// The plain reference, and the fast kernels of every instruction set that this machine has.
inline std::vector<Options> every_device() {
  std::vector<Options> found(1);
  for (int32_t isa : {BAO_ISA_BASE, BAO_ISA_AVX2, BAO_ISA_AVX512, BAO_ISA_NEON}) {
    bao_handle device = bao_device_open(0, 1, isa, BAO_EXACT, 0);
    if (device == 0) continue;
    bao_device_close(device);
    found.emplace_back();
    found.back().flags = 0, found.back().isa = isa;
  }
  return found;
}

inline const char* name_of(const Options& o) {
  static const char* const names[] = {"auto", "base", "avx2", "avx512", "neon"};
  return o.flags & BAO_OPEN_REFERENCE ? "reference" : names[o.isa];
}

// One device and all that a test needs on it. Slot 0 only.
class Bench {
 public:
  Options options;
  bao_handle device, step, stream;

  explicit Bench(const Options& o) : options(o) {
    device = must(bao_device_open(0, o.threads, o.isa, o.precision, o.flags), "bao_device_open");
    step = must(bao_step_create(device, 2, o.max_rows, o.max_outputs, o.max_sequences, o.vocabulary, o.max_bias, o.pages, 0, 0, 0), "bao_step_create");
    stream = must(bao_stream_create(device, step), "bao_stream_create");
    slot_ = reinterpret_cast<char*>(static_cast<uintptr_t>(bao_step_address(step, 0)));
  }
  ~Bench() {
    bao_device_close(device);
    for (bao_handle file : files_) bao_file_close(file);
  }
  Bench(const Bench&) = delete;

  static bao_handle must(bao_handle h, const char* what) {
    if (h == 0) std::printf("%s: %s\n", what, bao_last_error()), std::exit(2);
    return h;
  }

  View view(int32_t rows_of, int32_t d0, int32_t d1, int32_t d2, int32_t dtype = BAO_F32) {
    bao_handle buffer = must(bao_buffer_create(device, double(int64_t(d0) * d1 * d2 * 4), BAO_BUFFER_HOST_VISIBLE), "bao_buffer_create");
    View v;
    v.memory = reinterpret_cast<char*>(static_cast<uintptr_t>(bao_buffer_address(buffer)));
    v.columns = d1 * d2;
    v.handle = must(bao_view_create(buffer, 0, dtype, rows_of, d0, d1, d2, 0), "bao_view_create");
    return v;
  }
  View rows(int32_t d1, int32_t d2, int32_t dtype = BAO_F32) { return view(BAO_ROWS_STEP, options.max_rows, d1, d2, dtype); }
  View outputs(int32_t d1, int32_t d2, int32_t dtype = BAO_F32) { return view(BAO_ROWS_OUTPUT, options.max_outputs, d1, d2, dtype); }

  // [experts][rows][columns] of raw bytes, through a file of its own that is gone from the disk once it is mapped.
  bao_handle weight(int32_t dtype, const void* bytes, size_t size, int32_t rows, int32_t columns, int32_t experts, int32_t use) {
    std::string path = std::string(std::getenv("TMPDIR") ? std::getenv("TMPDIR") : "/tmp") + "/bao-test-XXXXXX";
    int fd = mkstemp(path.data());
    if (fd < 0 || write(fd, bytes, size) != ssize_t(size)) std::printf("cannot write %s\n", path.c_str()), std::exit(2);
    close(fd);
    bao_handle file = must(bao_file_open(path.c_str()), "bao_file_open");
    unlink(path.c_str());
    files_.push_back(file);
    bao_handle map = must(bao_map_create(device, bao_file_address(file), bao_file_bytes(file)), "bao_map_create");
    return must(bao_weight_create(device, map, 0, dtype, rows, columns, experts, use), "bao_weight_create");
  }
  bao_handle matrix(const std::vector<float>& values, int32_t rows, int32_t columns, int32_t experts = 1, int32_t use = BAO_USE_MATMUL | BAO_USE_ROWS) {
    return weight(BAO_F32, values.data(), values.size() * 4, rows, columns, experts, use);
  }
  bao_handle vector(const std::vector<float>& values) { return must(bao_vector_create(device, values.data(), int32_t(values.size())), "bao_vector_create"); }

  int32_t* field(int32_t f) { return reinterpret_cast<int32_t*>(slot_ + int64_t(bao_step_field(step, f))); }
  int32_t* sampler(int32_t output) { return field(BAO_FIELD_OUTPUT_SAMPLER) + output * BAO_SAMPLER_WORDS; }
  int32_t* result(int32_t output) { return field(BAO_FIELD_RESULT) + output * BAO_RESULT_WORDS; }
  static void put(int32_t* word, float value) { std::memcpy(word, &value, 4); }
  static float take(const int32_t* word) {
    float value;
    std::memcpy(&value, word, 4);
    return value;
  }

  // A step of `n` rows of sequence 0 at positions first ... with the given ids, without outputs.
  void fill(int32_t n, int32_t first = 0) {
    std::memset(field(BAO_FIELD_HEADER), 0, BAO_HEADER_WORDS * 4);
    field(BAO_FIELD_HEADER)[BAO_HEADER_ROWS] = n;
    field(BAO_FIELD_HEADER)[BAO_HEADER_SERIAL] = ++serial_;
    for (int32_t r = 0; r < n; r++) row(r, 0, 0, first + r);
  }
  void row(int32_t r, int32_t sequence, int32_t id, int32_t position) {
    field(BAO_FIELD_ROW_SEQUENCE)[r] = sequence;
    field(BAO_FIELD_ROW_ID)[r] = id;
    field(BAO_FIELD_ROW_POSITION)[r] = position;
  }
  // Output i is row r; its sampler is greedy, holds the sequence and reports no log-probabilities.
  int32_t* output(int32_t r) {
    int32_t i = field(BAO_FIELD_HEADER)[BAO_HEADER_OUTPUTS]++;
    field(BAO_FIELD_OUTPUT_ROW)[i] = r;
    int32_t* s = sampler(i);
    std::memset(s, 0, BAO_SAMPLER_WORDS * 4);
    put(s + BAO_SAMPLER_TOP_P, 1);
    put(s + BAO_SAMPLER_REPETITION, 1);
    s[BAO_SAMPLER_TOP_LOGPROBS] = -1;
    s[BAO_SAMPLER_FLAGS] = BAO_SAMPLE_HOLD;
    return s;
  }
  void page(int32_t sequence, int32_t index, int32_t page) {
    int32_t* d = field(BAO_FIELD_PAGE_DELTA) + 4 * field(BAO_FIELD_HEADER)[BAO_HEADER_PAGE_DELTAS]++;
    d[0] = 0, d[1] = sequence, d[2] = index, d[3] = page;
  }
  void sequence(int32_t s, int32_t length, int32_t next, const std::vector<int32_t>& recent) {
    int32_t* d = field(BAO_FIELD_SEQUENCE_DELTA) + 68 * field(BAO_FIELD_HEADER)[BAO_HEADER_SEQUENCE_DELTAS]++;
    d[0] = s, d[1] = length, d[2] = next, d[3] = int32_t(recent.size());
    for (size_t i = 0; i < recent.size(); i++) d[4 + i] = recent[i];
  }

  // Records what `ops` records (each status must be 0), without running it.
  void record(const std::function<void(bao_handle)>& ops) {
    ok(bao_stream_begin(stream), "bao_stream_begin");
    ops(stream);
    ok(bao_stream_end(stream), "bao_stream_end");
  }
  void submit() {
    if (!ok(bao_submit(stream, 0), "bao_submit")) return;
    int32_t status;
    while ((status = bao_wait(stream, 0, 20)) == BAO_PENDING) {
    }
    ok(status, "bao_wait");
  }
  void run(const std::function<void(bao_handle)>& ops) {
    record(ops);
    submit();
  }
  static bool ok(int32_t status, const char* what) {
    return expect(status == BAO_OK, std::string(what) + " gives " + std::to_string(status) + ": " + bao_last_error());
  }

 private:
  char* slot_ = nullptr;
  int32_t serial_ = 0;
  std::vector<bao_handle> files_;
};

}  // namespace harness
