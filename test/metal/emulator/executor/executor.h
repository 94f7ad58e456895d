// Runs one dispatch: what the emulated device hands over, and the options of a run.
#pragma once
#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

#include "abi.h"

namespace emu {

// A bound buffer's bytes, and the intervals that a checked kernel read and wrote.
struct Range {
  uintptr_t low, high;
  bool writable;
  int index;
  uintptr_t read_low = ~0ul, read_high = 0, write_low = ~0ul, write_high = 0;
  // Words that were read, but by atomics, which the host may write to at any time. Of long ranges only the interval is known.
  std::vector<uint8_t> words;
  uintptr_t plain_low = ~0ul, plain_high = 0;
  void read(uintptr_t address, size_t bytes) {
    plain_low = std::min(plain_low, address);
    plain_high = std::max(plain_high, address + bytes);
    if (!words.empty()) for (uintptr_t w = (address - low) / 4; w <= (address + bytes - 1 - low) / 4; w++) words[w] = 1;
  }
};

struct Dispatch {
  const Kernel* kernel;
  void* buffer[31] = {};
  uint32_t threadgroup_bytes[31] = {};
  std::vector<Range> ranges;
  uint32_t grid[3];   // threads
  uint32_t group[3];  // threads of a threadgroup
  uintptr_t code_low = 0, code_high = 0;
  bool checked = false;
};

// Runs the whole grid; the first error, "" when there is none.
std::string run(Dispatch& dispatch);

struct Options {
  int threads = 2;       // of this machine
  bool random = false;   // threads and threadgroups in random order
  uint64_t seed = 0;
  int layout = 0;        // of simdgroup matrices: 0 as Apple's, 1 a different one
  double seconds = 120;  // a dispatch that runs longer has failed
};
extern Options options;
extern std::atomic<uint64_t> switches, accesses;  // of fibers; memory accesses of checked kernels

}  // namespace emu
