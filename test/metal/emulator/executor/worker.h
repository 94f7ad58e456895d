// One thread of this machine that runs threadgroups: its fibers, threadgroup memory, and what the checks remember.
#pragma once
#include <atomic>
#include <chrono>
#include <unordered_map>

#include "executor.h"

namespace emu {

// Stacks are no power of two apart: what a kernel keeps there would fall into the same few lines of the cache for every thread.
constexpr uint32_t stack_bytes = (128 << 10) + 17 * 64, most_threads = 1024, threadgroup_memory = 32768, red_zone = 64, arena_bytes = threadgroup_memory * 2 + 4096;
enum { STATE_NEW, STATE_RUNNING, STATE_RETURNED };

// Who touched a byte, and after how many barriers.
struct Access {
  uint32_t group, barrier, simd_barrier;
  uint16_t thread;
  uint8_t set, atomic;
};
// Of one byte; of four that lie in a word while all of them were always touched together (the first one's cell, until it says that they are split).
struct Cell {
  Access write, read1, read2;
  uint32_t split;
};
// Cells of the device memory that checked kernels may write, by pieces of 64 KiB.
constexpr uintptr_t piece_bytes = 64 << 10;
struct Pieces {
  std::unordered_map<uintptr_t, Cell*> made;
  uintptr_t last = 0;
  Cell* last_cells = nullptr;
};
struct Variable { const void* key; uint32_t offset, size; };

struct Worker {
  Fiber fibers[most_threads];
  Simdgroup groups[32];
  Dispatch* dispatch;
  void *main_stack, *dead_stack;
  uint32_t count, group_count, ready_groups, remaining, at_barrier;
  int barrier_site, barrier_flags;
  char *stacks, *arena;
  std::vector<char*> free_stacks;
  uint32_t arena_used;
  Variable variables[64];
  int variable_count;
  uint64_t random_state, switched = 0, accessed = 0;
  std::string error;
  std::chrono::steady_clock::time_point deadline;
  uint32_t serial, device_barriers, threadgroup_barriers, simd_barriers[2][32];  // of the threadgroup that runs
  Cell* arena_cells;
  Pieces pieces;
  Range* last_range;
};
extern __thread Worker* worker __attribute__((tls_model("initial-exec")));
extern uint32_t first_serial;  // of the running dispatch's threadgroups

}  // namespace emu
