// The checks of checked kernels. They are compiled with clang's thread and undefined-behaviour sanitizers, whose callbacks end here instead of
// in clang's runtimes: bounds, alignment, constness, races by barrier epochs, reads of threadgroup memory that nobody wrote, undefined arithmetic.
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include <algorithm>

#include "worker.h"

using namespace emu;

namespace {

// File and line of a code address.
std::string place(void* code) {
  Dl_info info;
  if (!dladdr(code, &info)) return "?";
  char command[600], line[300] = "";
  snprintf(command, sizeof command, "addr2line -e %s 0x%lx 2>/dev/null", info.dli_fname,
           reinterpret_cast<uintptr_t>(code) - 1 - reinterpret_cast<uintptr_t>(info.dli_fbase));
  if (FILE* pipe = popen(command, "r")) {
    if (fgets(line, sizeof line, pipe)) line[strcspn(line, "\n")] = 0;
    pclose(pipe);
  }
  const char* name = strrchr(line, '/');
  return name ? name + 1 : line;
}

Access access_now(bool threadgroup, bool atomic) {
  const Context& c = emu_current->context;
  Worker* w = worker;
  return {w->serial, threadgroup ? w->threadgroup_barriers : w->device_barriers, w->simd_barriers[threadgroup][c.simdgroup], uint16_t(c.index), 1, atomic};
}

// Whether nothing orders an earlier access and one of now.
bool unordered(const Access& before, const Access& now) {
  if (!before.set || before.group < first_serial || (before.atomic && now.atomic)) return false;
  if (before.group != now.group) return true;
  if (before.thread == now.thread || before.barrier != now.barrier) return false;
  return !(before.thread / 32 == now.thread / 32 && before.simd_barrier != now.simd_barrier);
}

void check_race(Cell* cell, const Access& now, bool write, void* code, const char* memory, uintptr_t address) {
  const Access* other = unordered(cell->write, now) ? &cell->write : write && unordered(cell->read1, now) ? &cell->read1 : write && unordered(cell->read2, now) ? &cell->read2 : nullptr;
  if (other) {
    emu_fail("data race on %s memory %#lx: %s at %s against an earlier %s by thread %u of %s threadgroup, no barrier between", memory, address, write ? "write" : "read",
             place(code).c_str(), other == &cell->write ? "write" : "read", other->thread, other->group == now.group ? "this" : "another");
  }
  if (write) {
    cell->write = now;
  } else if (!cell->read1.set || cell->read1.thread == now.thread || cell->read1.group != now.group || cell->read1.barrier != now.barrier) {
    cell->read1 = now;
    if (cell->read2.group != now.group || cell->read2.barrier != now.barrier) cell->read2.set = 0;
  } else {
    cell->read2 = now;
  }
}

// Does something with the cell of each byte, or with one for a whole word. `first` is that of the first byte.
template <class F>
void each_cell(Cell* first, uintptr_t address, size_t bytes, F what) {
  while (bytes) {
    Cell* word = first - (address & 3);
    size_t step = 1;
    if (!(address & 3) && bytes >= 4) {
      step = 4;
      for (int i = 0; i < (word->split ? 4 : 1); i++) what(word + i);
    } else {
      if (!word->split) {
        for (int i = 1; i < 4; i++) word[i] = word[0];
        word->split = 1;
      }
      what(first);
    }
    first += step, address += step, bytes -= step;
  }
}

void check_threadgroup(uintptr_t address, size_t bytes, bool write, void* code, bool atomic) {
  Worker* w = worker;
  uint32_t offset = uint32_t(address - reinterpret_cast<uintptr_t>(w->arena));
  bool inside = std::any_of(w->variables, w->variables + w->variable_count, [&](const Variable& v) { return offset >= v.offset && offset + bytes <= v.offset + v.size; });
  if (!inside) emu_fail("%s of %zu bytes outside threadgroup memory (%s)", write ? "write" : "read", bytes, place(code).c_str());
  Access now = access_now(true, atomic);
  each_cell(w->arena_cells + offset, address, bytes, [&](Cell* cell) {
    if (cell->write.group != now.group) cell->write.set = 0;
    if (cell->read1.group != now.group) cell->read1.set = 0;
    if (cell->read2.group != now.group) cell->read2.set = 0;
    if (!write && !cell->write.set) emu_fail("read of threadgroup memory that no thread has written (%s)", place(code).c_str());
    check_race(cell, now, write, code, "threadgroup", address);
  });
}

// Of the first byte; the bytes of one access may lie in two pieces.
Cell* cells_of(Worker* w, uintptr_t address) {
  uintptr_t number = address / piece_bytes;
  Pieces& pieces = w->pieces;
  if (pieces.last != number) {
    Cell*& cells = pieces.made[number];
    if (!cells) cells = static_cast<Cell*>(mmap(nullptr, piece_bytes * sizeof(Cell), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    pieces.last = number;
    pieces.last_cells = cells;
  }
  return pieces.last_cells + address % piece_bytes;
}

// The bound range that holds the bytes; false for a constant of the kernel's own code.
bool find_range(uintptr_t address, size_t bytes, bool write, void* code) {
  Worker* w = worker;
  if (address >= w->last_range->low && address + bytes <= w->last_range->high) return true;
  bool found = false;
  for (Range& r : w->dispatch->ranges) {
    if (address >= r.low && address + bytes <= r.high && (!found || r.writable)) w->last_range = &r, found = true;
  }
  if (found) return true;
  if (!write && address >= w->dispatch->code_low && address < w->dispatch->code_high) return false;
  std::string near;
  for (const Range& r : w->dispatch->ranges) {
    if (address + bytes <= r.low - 4096 || address >= r.high + 4096) continue;
    near = ", " + std::to_string(int64_t(address + bytes - r.high)) + " bytes past the end of buffer " + std::to_string(r.index) + " (" + std::to_string(r.high - r.low) + " bytes)";
  }
  emu_fail("%s of %zu bytes outside every bound buffer%s (%s)", write ? "write" : "read", bytes, near.c_str(), place(code).c_str());
}

void check_device(uintptr_t address, size_t bytes, bool write, void* code, bool atomic) {
  if (!find_range(address, bytes, write, code)) return;
  Worker* w = worker;
  Range& r = *w->last_range;
  uintptr_t &low = write ? r.write_low : r.read_low, &high = write ? r.write_high : r.read_high;
  low = std::min(low, address);
  high = std::max(high, address + bytes);
  if (!write && !atomic) r.read(address, bytes);
  if (write && !r.writable) emu_fail("write to buffer %d, which the kernel declares const (%s)", r.index, place(code).c_str());
  if (!r.writable) return;
  Access now = access_now(false, atomic);
  while (bytes) {
    size_t part = std::min(bytes, size_t(piece_bytes - address % piece_bytes));
    each_cell(cells_of(w, address), address, part, [&](Cell* cell) { check_race(cell, now, write, code, "device", address); });
    address += part, bytes -= part;
  }
}

__attribute__((noinline)) void check_shared(uintptr_t address, size_t bytes, bool write, void* code, bool aligned, bool atomic) {
  Worker* w = worker;
  if ((++w->accessed & 0xFFFF) == 0 && std::chrono::steady_clock::now() > w->deadline) emu_fail("the dispatch runs for more than %g s", options.seconds);
  if (address - reinterpret_cast<uintptr_t>(w) < sizeof(Worker)) return;  // slots of the executor
  if (aligned && (address & (bytes - 1))) emu_fail("misaligned %zu-byte %s at %#lx (%s)", bytes, write ? "write" : "read", address, place(code).c_str());
  if (address - reinterpret_cast<uintptr_t>(w->arena) < arena_bytes) check_threadgroup(address, bytes, write, code, atomic);
  else check_device(address, bytes, write, code, atomic);
}

// A thread's own stack is most of what it touches.
inline void check(const volatile void* pointer, size_t bytes, bool write, void* code, bool aligned, bool atomic = false) {
  Fiber* f = emu_current;
  uintptr_t address = reinterpret_cast<uintptr_t>(pointer);
  if (f && address - reinterpret_cast<uintptr_t>(f->stack) >= stack_bytes) check_shared(address, bytes, write, code, aligned, atomic);
}

void check_bytes(const void* pointer, size_t bytes, bool write, void* code) {
  for (size_t i = 0; i < bytes; i++) check(static_cast<const char*>(pointer) + i, 1, write, code, false);
}

struct Undefined { const char* file; uint32_t line, column; };

}  // namespace

#define CODE __builtin_return_address(0)

extern "C" {

#define ACCESS(N)                                                               \
  void __tsan_read##N(void* p) { check(p, N, false, CODE, true); }              \
  void __tsan_write##N(void* p) { check(p, N, true, CODE, true); }              \
  void __tsan_unaligned_read##N(void* p) { check(p, N, false, CODE, false); }   \
  void __tsan_unaligned_write##N(void* p) { check(p, N, true, CODE, false); }   \
  void __tsan_read_write##N(void* p) {                                          \
    check(p, N, false, CODE, true);                                             \
    check(p, N, true, CODE, true);                                              \
  }                                                                             \
  void __tsan_unaligned_read_write##N(void* p) {                                \
    check(p, N, false, CODE, false);                                            \
    check(p, N, true, CODE, false);                                             \
  }
ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}

void* __tsan_memcpy(void* to, const void* from, size_t bytes) {
  check_bytes(from, bytes, false, CODE);
  check_bytes(to, bytes, true, CODE);
  return memcpy(to, from, bytes);
}

void* __tsan_memmove(void* to, const void* from, size_t bytes) {
  check_bytes(from, bytes, false, CODE);
  check_bytes(to, bytes, true, CODE);
  return memmove(to, from, bytes);
}

void* __tsan_memset(void* to, int value, size_t bytes) {
  check_bytes(to, bytes, true, CODE);
  return memset(to, value, bytes);
}

uint32_t __tsan_atomic32_load(const volatile uint32_t* p, int) {
  check(p, 4, false, CODE, true, true);
  return __atomic_load_n(p, __ATOMIC_RELAXED);
}

void __tsan_atomic32_store(volatile uint32_t* p, uint32_t value, int) {
  check(p, 4, true, CODE, true, true);
  __atomic_store_n(p, value, __ATOMIC_RELAXED);
}

uint32_t __tsan_atomic32_compare_exchange_val(volatile uint32_t* p, uint32_t expected, uint32_t value, int, int) {
  check(p, 4, true, CODE, true, true);
  __atomic_compare_exchange_n(p, &expected, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  return expected;
}

#define UPDATE(name)                                                                        \
  uint32_t __tsan_atomic32_##name(volatile uint32_t* p, uint32_t value, int) {              \
    check(p, 4, true, CODE, true, true);                                                    \
    return __atomic_##name(p, value, __ATOMIC_RELAXED);                                     \
  }
UPDATE(fetch_add)
UPDATE(fetch_sub)
UPDATE(fetch_and)
UPDATE(fetch_or)
UPDATE(fetch_xor)

uint32_t __tsan_atomic32_exchange(volatile uint32_t* p, uint32_t value, int) {
  check(p, 4, true, CODE, true, true);
  return __atomic_exchange_n(p, value, __ATOMIC_RELAXED);
}

#define UNDEFINED(name)                                                                                       \
  void __ubsan_handle_##name(Undefined* at) {                                                                 \
    const char* file = strrchr(at->file, '/');                                                                \
    emu_fail("undefined behaviour: " #name " (%s:%u)", file ? file + 1 : at->file, at->line);                 \
  }
UNDEFINED(add_overflow)
UNDEFINED(sub_overflow)
UNDEFINED(mul_overflow)
UNDEFINED(negate_overflow)
UNDEFINED(divrem_overflow)
UNDEFINED(shift_out_of_bounds)
UNDEFINED(out_of_bounds)
UNDEFINED(float_cast_overflow)
UNDEFINED(missing_return)
UNDEFINED(builtin_unreachable)

}  // extern "C"
