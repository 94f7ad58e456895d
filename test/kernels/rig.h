// What the tests of the executor and of objects share: a device with a step block and a stream, checks that are counted, and the run of a list of tests.
#pragma once
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <utility>

#include "../../kernels/host.h"

namespace rig {

inline int failures = 0;

template <class... Args>
void expect(bool holds, const char* format, Args... args) {
  if (holds) return;
  failures++;
  std::printf("FAIL ");
  std::printf(format, args...);
  std::printf("  [last error: %s]\n", bao_last_error());
}

inline void expect_status(int32_t found, int32_t expected, const char* what) {
  expect((found & 0xff) == expected, "%s: %s, expected %s", what, bao_status_name(found), bao_status_name(expected));
}

using Clock = std::chrono::steady_clock;

inline double milliseconds_since(Clock::time_point start) { return std::chrono::duration<double, std::milli>(Clock::now() - start).count(); }

struct SlotView {
  int32_t* base;
  bao_handle step;
  int32_t* words(int32_t field) const { return base + static_cast<int64_t>(bao_step_field(step, field)) / 4; }
};

// A device with a step block of two tables and one stream.
struct Rig {
  bao_handle device, step, stream;
  int32_t serial = 0;
  explicit Rig(int32_t threads, int32_t flags = 0) {
    device = bao_device_open(0, threads, BAO_ISA_AUTO, BAO_EXACT, flags);
    step = bao_step_create(device, 3, 16, 8, 4, 100, 8, 4, 2, 0, 0);
    stream = bao_stream_create(device, step);
    expect(device != 0 && step != 0 && stream != 0, "rig of %d threads", threads);
  }
  ~Rig() {
    if (device) bao_device_close(device);
  }
  SlotView slot(int32_t number) const { return {reinterpret_cast<int32_t*>(static_cast<uintptr_t>(bao_step_address(step, number))), step}; }
  // A slot of `rows` rows of sequence 0 from position 0, without outputs.
  SlotView fill(int32_t number, int32_t rows) {
    SlotView s = slot(number);
    std::memset(s.base, 0, static_cast<size_t>(bao_step_field(step, BAO_FIELD_END)));
    s.words(BAO_FIELD_HEADER)[BAO_HEADER_ROWS] = rows;
    s.words(BAO_FIELD_HEADER)[BAO_HEADER_SERIAL] = ++serial;
    for (int32_t r = 0; r < rows; r++) s.words(BAO_FIELD_ROW_POSITION)[r] = r;
    return s;
  }
  int32_t finish(bao_handle which, int32_t number) const {
    int32_t status;
    while ((status = bao_wait(which, number, 20)) == BAO_PENDING) {
    }
    return status;
  }
};

template <size_t N>
int run(const std::pair<const char*, void (*)()> (&tests)[N]) {
  for (const auto& [name, test] : tests) {
    int before = failures;
    Clock::time_point start = Clock::now();
    test();
    std::printf("%s %s (%.0f ms)\n", failures == before ? "ok  " : "FAIL", name, milliseconds_since(start));
    std::fflush(stdout);
  }
  return failures == 0 ? 0 : 1;
}

}  // namespace rig
