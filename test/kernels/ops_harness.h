// Runs ops of a table without the rest of the library: records stages, executes their pieces in shuffled order on memory that is
// poisoned with NaN, and compares results. Never times anything.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "../../kernels/bao.h"
#include "../../kernels/cpu/features.h"
#include "../../kernels/cpu/ops.h"

namespace harness {
using namespace bao;

inline std::mt19937& rng() {
  static std::mt19937 generator(12345);
  return generator;
}
inline float normal(float scale = 1.0f) { return std::normal_distribution<float>(0.0f, scale)(rng()); }
inline int pick(int low, int high) { return std::uniform_int_distribution<int>(low, high)(rng()); }

inline int failures = 0, checks = 0;
inline void check(bool ok, const std::string& what) {
  checks++;
  if (ok) return;
  failures++;
  if (failures < 50) std::printf("FAILED %s\n", what.c_str());
}

// Stages of one recorded op, and how to run them.
struct Recorder : Builder {
  struct Stage {
    std::vector<char> args;
    PiecesFn pieces;
    RunFn run;
  };
  std::vector<Stage> stages;
  int64_t scratch_bytes = 0;
  void add(const void* args, int64_t bytes, PiecesFn pieces, RunFn run) override {
    const char* p = static_cast<const char*>(args);
    stages.push_back({std::vector<char>(p, p + bytes), pieces, run});
  }
  int64_t reserve_scratch(int64_t bytes) override {
    int64_t at = scratch_bytes;
    scratch_bytes += (bytes + 127) / 128 * 128;
    return at;
  }
  void run(const StepRef& step, int32_t threads = 2) {
    static std::vector<std::vector<char>> workers(3, std::vector<char>((1 << 20) + 64));
    for (std::vector<char>& worker : workers) std::memset(worker.data(), 0xFF, 1 << 14);
    char* scratch = static_cast<char*>(std::aligned_alloc(128, size_t(scratch_bytes + 128)));
    std::memset(scratch, 0xFF, size_t(scratch_bytes + 128));
    for (Stage& stage : stages) {
      Run run{&step, scratch, nullptr, 1 << 20, threads};
      int32_t count = stage.pieces(stage.args.data(), run);
      std::vector<int32_t> order(size_t(count > 0 ? count : 0));
      for (size_t i = 0; i < order.size(); i++) order[i] = int32_t(i);
      std::shuffle(order.begin(), order.end(), rng());
      for (int32_t piece : order) {
        char* worker = workers[size_t(pick(0, 2))].data();
        run.worker_scratch = worker + (64 - reinterpret_cast<uintptr_t>(worker) % 64) % 64;
        stage.run(stage.args.data(), run, piece);
      }
    }
    std::free(scratch);
  }
};
template <class Args> void run_op(void (*record)(Builder&, const Args&), const Args& args, const StepRef& step, int32_t threads = 2) {
  Recorder recorder;
  record(recorder, args);
  recorder.run(step, threads);
}

// Rows of floats (or ids) with a gap after each row that must stay as it is.
struct Buffer {
  int32_t rows_of, d0, d1, d2;
  int64_t stride;
  std::vector<char> bytes;
  Buffer(int32_t rows_of, int32_t d0, int32_t d1, int32_t d2, int gap = 3)
      : rows_of(rows_of), d0(d0), d1(d1), d2(d2), stride((int64_t(d1) * d2 + gap) * 4), bytes(size_t(stride * d0), char(0xFF)) {}
  Tensor tensor(int32_t row = 0) {
    return {bytes.data() + row * stride, stride, rows_of, BAO_F32, d0 - row, d1, d2};
  }
  float* row(int64_t r) { return reinterpret_cast<float*>(bytes.data() + r * stride); }
  int32_t* ids(int64_t r) { return reinterpret_cast<int32_t*>(bytes.data() + r * stride); }
  int64_t columns() const { return int64_t(d1) * d2; }
  Buffer& random(float scale = 1.0f) {
    for (int r = 0; r < d0; r++)
      for (int64_t i = 0; i < columns(); i++) row(r)[i] = normal(scale);
    return *this;
  }
  bool gaps_intact() {
    for (int r = 0; r < d0; r++)
      for (int64_t i = columns() * 4; i < stride; i++)
        if (bytes[size_t(r * stride + i)] != char(0xFF)) return false;
    return true;
  }
};

inline bool same_bits(Buffer& a, Buffer& b) { return a.bytes == b.bytes; }
inline void check_same(Buffer& a, Buffer& b, const std::string& what) { check(same_bits(a, b), what + ": bits differ"); }
// |a - b| <= tolerance * (the row's largest expected value), NaN only where NaN is expected.
inline void check_near(Buffer& got, Buffer& expected, float tolerance, const std::string& what) {
  bool ok = got.gaps_intact();
  std::string text = what + (ok ? "" : ": wrote between rows");
  for (int r = 0; r < got.d0 && ok; r++) {
    float largest = 0.05f;  // sums may cancel: errors follow the operands, which are of order 1
    for (int64_t i = 0; i < got.columns(); i++)
      if (std::isfinite(expected.row(r)[i])) largest = std::fmax(largest, std::fabs(expected.row(r)[i]));
    for (int64_t i = 0; i < got.columns() && ok; i++) {
      float g = got.row(r)[i], e = expected.row(r)[i];
      bool near = std::isfinite(e) ? std::fabs(g - e) <= tolerance * largest : std::isnan(e) ? std::isnan(g) : g == e;
      if (near) continue;
      ok = false;
      text += ": row " + std::to_string(r) + " column " + std::to_string(i) + " is " + std::to_string(g) + ", expected " + std::to_string(e);
    }
  }
  check(ok, text);
}

// A step of `rows` rows; the caller fills sequences, positions and ids.
struct Step {
  std::vector<int32_t> sequence, position, id, output, sampler, bias, result, next, length, history, count, table;
  StepRef ref{};
  Step(int32_t rows, int32_t outputs, int32_t sequences, int32_t pages) {
    sequence.assign(size_t(rows), 0);
    position.assign(size_t(rows), 0);
    id.assign(size_t(rows), 0);
    output.assign(size_t(outputs), 0);
    sampler.assign(size_t(outputs) * BAO_SAMPLER_WORDS, 0);
    result.assign(size_t(outputs) * BAO_RESULT_WORDS, -7);
    bias.assign(64, 0);
    next.assign(size_t(sequences), 0);
    length.assign(size_t(sequences), 0);
    history.assign(size_t(sequences) * 64, 0);
    count.assign(size_t(sequences), 0);
    table.assign(size_t(sequences) * size_t(pages), -1);
    for (int32_t i = 0; i < rows; i++) position[size_t(i)] = i;
    ref.rows = rows;
    ref.outputs = outputs;
    ref.row_sequence = sequence.data();
    ref.row_position = position.data();
    ref.row_id = id.data();
    ref.output_row = output.data();
    ref.sampler = sampler.data();
    ref.bias = bias.data();
    ref.result = result.data();
    ref.next_id = next.data();
    ref.length = length.data();
    ref.history = history.data();
    ref.history_count = count.data();
    for (int t = 0; t < 4; t++) {
      ref.table[t] = table.data();
      ref.pages[t] = pages;
    }
    ref.max_sequences = sequences;
    ref.vocabulary = 1 << 20;
  }
  // The same step restricted to rows [first, first + rows).
  StepRef slice(int32_t first, int32_t rows) const {
    StepRef s = ref;
    s.rows = rows;
    s.row_sequence += first;
    s.row_position += first;
    s.row_id += first;
    return s;
  }
};

struct NamedTable {
  const char* name;
  const OpTable* ops;
};
// The fast tables that this processor runs.
inline std::vector<NamedTable> tables() {
  std::vector<NamedTable> all{{"base", fast_ops_base()}};
#if defined(__x86_64__)
  if (has_isa(BAO_ISA_AVX2)) all.push_back({"avx2", fast_ops_avx2()});
  if (has_isa(BAO_ISA_AVX512)) all.push_back({"avx512", fast_ops_avx512()});
#elif defined(__aarch64__)
  if (has_isa(BAO_ISA_NEON)) all.push_back({"neon", fast_ops_neon()});
#endif
  return all;
}

// Fewer and smaller cases, every kind of them still: for an emulated processor (make test-arm64).
inline bool brief() { return std::getenv("BAO_TEST_BRIEF") != nullptr; }

inline int report(const char* name) {
  std::printf("%s: %d checks, %d failed\n", name, checks, failures);
  return failures ? 1 : 0;
}
}  // namespace harness
