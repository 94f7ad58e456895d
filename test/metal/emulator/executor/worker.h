// One thread of this machine that runs threadgroups: its fibers, threadgroup memory, and what the checks remember.
#pragma once
#include <atomic>
#include <chrono>

#include "executor.h"

namespace emu {

constexpr uint32_t stack_bytes = 128 << 10, most_threads = 1024, threadgroup_memory = 32768, red_zone = 64, arena_bytes = threadgroup_memory * 2 + 4096;
enum { STATE_NEW, STATE_RUNNING, STATE_RETURNED };

// Who touched a byte, and after how many barriers.
struct Access {
  uint32_t thread, group, barrier, simd_barrier;
  uint8_t set, atomic;
};
struct Cell { Access write, read1, read2; };
struct Shadow { uintptr_t low, high; Cell* cells; };
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
  std::vector<Shadow> shadows;
  Range* last_range;
};
extern __thread Worker* worker;
extern uint32_t first_serial;  // of the running dispatch's threadgroups

}  // namespace emu
