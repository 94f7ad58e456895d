// What compiled kernels (a shared object made from a .metal file), the executor and the emulated Metal device agree on.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace emu {

// Where a kernel parameter comes from: its attribute.
enum Kind : uint8_t {
  K_BUFFER, K_THREADGROUP, K_POSITION_IN_GRID, K_POSITION_IN_GROUP, K_INDEX_IN_GROUP, K_GROUP_POSITION, K_THREADS_PER_GROUP, K_GROUPS_PER_GRID,
  K_THREADS_PER_GRID, K_LANE, K_SIMDGROUP, K_SIMDGROUPS_PER_GROUP, K_LANES_PER_SIMDGROUP, K_DISPATCH_THREADS_PER_GROUP, K_NONE
};
struct Parameter { Kind kind; int index; };  // as the translator read it
struct Argument {                            // the same with what the C++ compiler knows of its type
  Kind kind;
  int index;
  bool pointer, reference, constant;
  uint32_t size, align;
};

// What a thread of the grid can see.
struct Context {
  void* const* buffer;
  void* const* group_memory;
  uint32_t position[3], position_in_group[3], group[3], threads[3], dispatch_threads[3], grid[3], groups[3];
  uint32_t index, lane, simdgroup, simdgroups;
};

// 32 threads. Values that lanes exchange lie in `slot`, of two alternating halves, so that a lane may run ahead by one exchange.
struct Simdgroup {
  uint32_t live, ready, waiting, arrived, mask;  // lanes, one bit each
  int site;                                      // of the collective that is under way: line * 1000 + column
  const char* op;
  void (*finish)(Simdgroup*, unsigned char (*slot)[64]);  // what the last lane does for all
  uint32_t half;
  alignas(64) unsigned char slot[2][32][64];
};

// A thread of the grid, run as a fiber.
struct Fiber {
  Context context;
  Simdgroup* group;
  uint32_t half, state;
  void* stack_pointer;
  char* stack;
};

struct FunctionConstant { int index; const char* name; char type; uint32_t size; void* value; };
struct Kernel {
  const char* name;
  void (*run)(const Context*);
  const Argument* arguments;
  int argument_count, max_threads;
  const int* constants;  // indices of the function constants it uses, -1 at the end
};
struct Library { const Kernel* kernels; int kernel_count; const FunctionConstant* constants; int constant_count; };

}  // namespace emu

extern "C" {
extern __thread emu::Fiber* emu_current __attribute__((tls_model("initial-exec")));
void emu_meet(int site, const char* op, void (*finish)(emu::Simdgroup*, unsigned char (*slot)[64]));  // all live lanes of the simdgroup
void emu_threadgroup_barrier(int flags, int site);
void emu_simdgroup_barrier(int flags, int site);
void* emu_threadgroup_variable(const void* key, uint32_t size, uint32_t align);
void emu_fail(const char* format, ...) __attribute__((noreturn, format(printf, 1, 2)));
int emu_matrix_layout();
}
