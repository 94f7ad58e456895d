// The executor: threads of a threadgroup are fibers that meet at barriers and simdgroup functions. Deterministic, or random by a seed.
// It never touches what kernels compute; the checks of checked kernels lie in checks.cpp.
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <xmmintrin.h>

#include <algorithm>
#include <thread>

#include "worker.h"

using namespace emu;

__thread Fiber* emu_current;

namespace emu {
Options options;
std::atomic<uint64_t> switches, accesses;
uint32_t first_serial;
__thread Worker* worker;
}  // namespace emu

// Saves the callee-saved registers of one stack and continues another: 8 ns, where ucontext's system call takes 250.
extern "C" void emu_switch(void** save, void* load);
asm(R"(
.globl emu_switch
.hidden emu_switch
.type emu_switch,@function
emu_switch:
  pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp
  ret
)");

namespace {

std::atomic<uint32_t> next_serial{1};
std::atomic<bool> stopped;

uint64_t random_number(Worker* w) {
  w->random_state ^= w->random_state << 13;
  w->random_state ^= w->random_state >> 7;
  w->random_state ^= w->random_state << 17;
  return w->random_state;
}

// The k-th set bit of a mask.
uint32_t bit_number(uint32_t mask, int k) {
  while (k--) mask &= mask - 1;
  return uint32_t(__builtin_ctz(mask));
}

[[noreturn]] void leave_fibers(Worker* w) {
  emu_switch(&w->dead_stack, w->main_stack);
  __builtin_unreachable();
}

void set_ready(Worker* w, Simdgroup* g, uint32_t lanes) {
  g->ready |= lanes;
  if (g->ready) w->ready_groups |= 1u << (g - w->groups);
}

void clear_ready(Worker* w, Simdgroup* g, uint32_t lanes) {
  g->ready &= ~lanes;
  if (!g->ready) w->ready_groups &= ~(1u << (g - w->groups));
}

// The thread that runs next: lanes of this simdgroup behind `lane` first, or any one at random. Null when nobody can run.
Fiber* pick(Worker* w, Simdgroup* g, uint32_t lane) {
  auto fiber = [w](Simdgroup* group, uint32_t l) { return &w->fibers[(group - w->groups) * 32 + l]; };
  if (__builtin_expect(options.random, 0)) {
    if (!w->ready_groups) return nullptr;
    g = &w->groups[bit_number(w->ready_groups, int(random_number(w) % uint32_t(__builtin_popcount(w->ready_groups))))];
    return fiber(g, bit_number(g->ready, int(random_number(w) % uint32_t(__builtin_popcount(g->ready)))));
  }
  uint32_t lanes = g->ready & ~((2u << lane) - 1);
  if (!lanes) lanes = g->ready;
  if (lanes) return fiber(g, uint32_t(__builtin_ctz(lanes)));
  if (!w->ready_groups) return nullptr;
  uint32_t behind = w->ready_groups & ~((2u << (g - w->groups)) - 1);
  g = &w->groups[__builtin_ctz(behind ? behind : w->ready_groups)];
  return fiber(g, uint32_t(__builtin_ctz(g->ready)));
}

void fail_deadlock(Worker* w) {
  std::string text = "threads wait for each other: ";
  char part[200];
  for (uint32_t i = 0; i < w->group_count; i++) {
    Simdgroup& g = w->groups[i];
    if (!g.arrived) continue;
    snprintf(part, sizeof part, "simdgroup %u: %s at line %d reached by lanes %08x of %08x; ", i, g.op, g.site / 1000, g.arrived, g.live);
    text += part;
  }
  uint32_t returned = 0;
  for (uint32_t i = 0; i < w->count; i++) returned += w->fibers[i].state == STATE_RETURNED;
  snprintf(part, sizeof part, "%u at threadgroup_barrier (line %d), %u returned, of %u", w->at_barrier, w->barrier_site / 1000, returned, w->count);
  emu_fail("%s%s", text.c_str(), part);
}

void fiber_main();

void start(Worker* w, Fiber* f) {
  f->state = STATE_RUNNING;
  f->stack = w->free_stacks.back();
  w->free_stacks.pop_back();
  void** top = reinterpret_cast<void**>(f->stack + stack_bytes - 64);
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(fiber_main);
  for (int i = 0; i < 6; i++) *--top = nullptr;
  f->stack_pointer = top;
}

void check_time(Worker* w) {
  if ((w->switched & 0xFFFF) == 0 && std::chrono::steady_clock::now() > w->deadline) emu_fail("the dispatch runs for more than %g s", options.seconds);
}

// The running thread cannot go on: another one does.
void block(Worker* w, Fiber* me) {
  Fiber* next = pick(w, me->group, me->context.lane);
  if (!next) fail_deadlock(w);
  if (next == me) return;
  if (next->state == STATE_NEW) start(w, next);
  w->switched++;
  check_time(w);
  emu_current = next;
  emu_switch(&me->stack_pointer, next->stack_pointer);
}

void all_lanes_met(Worker* w, Simdgroup* g) {
  g->mask = g->arrived;
  if (g->finish) g->finish(g, g->slot[g->half]);
  g->arrived = 0;
  set_ready(w, g, g->waiting);
  g->waiting = 0;
}

void all_threads_met(Worker* w) {
  w->at_barrier = 0;
  if (w->barrier_flags & 1) w->device_barriers++;
  if (w->barrier_flags & 2) w->threadgroup_barriers++;
  for (uint32_t i = 0; i < w->group_count; i++) set_ready(w, &w->groups[i], w->groups[i].live);
}

// Where every fiber begins; a fiber whose thread has returned goes on with one that has not begun, on the same stack.
void fiber_main() {
  for (;;) {
    Worker* w = worker;
    Fiber* f = emu_current;
    w->dispatch->kernel->run(&f->context);
    Simdgroup* g = f->group;
    uint32_t bit = 1u << f->context.lane;
    f->state = STATE_RETURNED;
    g->live &= ~bit;
    clear_ready(w, g, bit);
    w->remaining--;
    if (w->at_barrier) emu_fail("a thread returned while others wait at threadgroup_barrier (line %d): not all threads reach it", w->barrier_site / 1000);
    if (g->arrived && g->arrived == g->live) all_lanes_met(w, g);
    char* stack = f->stack;
    if (!w->remaining) {
      w->free_stacks.push_back(stack);
      leave_fibers(w);
    }
    Fiber* next = pick(w, g, f->context.lane);
    if (!next) fail_deadlock(w);
    emu_current = next;
    if (next->state == STATE_NEW) {
      next->state = STATE_RUNNING;
      next->stack = stack;
      continue;
    }
    w->free_stacks.push_back(stack);
    w->switched++;
    emu_switch(&w->dead_stack, next->stack_pointer);
    __builtin_unreachable();
  }
}

template <class T>
T* map_memory(size_t bytes) {
  return static_cast<T*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
}

Worker* make_worker() {
  Worker* w = new Worker();
  w->stacks = map_memory<char>(size_t(stack_bytes) * most_threads);
  w->arena = map_memory<char>(arena_bytes);
  w->arena_cells = map_memory<Cell>(sizeof(Cell) * arena_bytes);
  return w;
}

// Threadgroup memory of a variable, with a red zone behind it; filled with NaNs.
uint32_t arena_allocate(Worker* w, const void* key, uint32_t size, uint32_t align) {
  uint32_t offset = (w->arena_used + (align - 1)) & ~(align - 1), used = (size + 15) & ~15u;
  for (int i = 0; i < w->variable_count; i++) used += (w->variables[i].size + 15) & ~15u;
  if (used > threadgroup_memory || w->variable_count >= 63) emu_fail("threadgroup memory %u bytes, the device has %u", used, threadgroup_memory);
  w->variables[w->variable_count++] = {key, offset, size};
  w->arena_used = offset + size + red_zone;
  memset(w->arena + offset, 0xff, size);
  return offset;
}

void run_threadgroup(Worker* w, const uint32_t at[3], const uint32_t groups[3]) {
  Dispatch& d = *w->dispatch;
  uint32_t size[3];
  for (int i = 0; i < 3; i++) size[i] = std::min(d.group[i], d.grid[i] - at[i] * d.group[i]);
  w->count = w->remaining = size[0] * size[1] * size[2];
  w->group_count = (w->count + 31) / 32;
  w->at_barrier = w->ready_groups = 0;
  w->variable_count = 0;
  w->arena_used = red_zone;
  w->serial = next_serial++;
  w->device_barriers = w->threadgroup_barriers = 1;
  void* group_memory[31];
  for (int i = 0; i < 31; i++) group_memory[i] = d.threadgroup_bytes[i] ? w->arena + arena_allocate(w, &d.threadgroup_bytes[i], d.threadgroup_bytes[i], 16) : nullptr;
  for (uint32_t i = 0; i < w->group_count; i++) {
    Simdgroup& g = w->groups[i];
    g.live = g.ready = w->count - i * 32 >= 32 ? ~0u : (1u << (w->count - i * 32)) - 1;
    g.waiting = g.arrived = 0;
    w->simd_barriers[0][i] = w->simd_barriers[1][i] = 1;
    w->ready_groups |= 1u << i;
  }
  for (uint32_t i = 0; i < w->count; i++) {
    Fiber& f = w->fibers[i];
    Context& c = f.context;
    f.group = &w->groups[i / 32];
    f.half = 0;
    f.state = STATE_NEW;
    c.buffer = d.buffer;
    c.group_memory = group_memory;
    c.index = i;
    c.lane = i & 31;
    c.simdgroup = i / 32;
    c.simdgroups = w->group_count;
    const uint32_t place[3] = {i % size[0], i / size[0] % size[1], i / size[0] / size[1]};
    for (int k = 0; k < 3; k++) {
      c.position_in_group[k] = place[k];
      c.group[k] = at[k];
      c.position[k] = at[k] * d.group[k] + place[k];
      c.threads[k] = size[k];
      c.dispatch_threads[k] = d.group[k];
      c.grid[k] = d.grid[k];
      c.groups[k] = groups[k];
    }
  }
  Fiber* first = pick(w, &w->groups[0], 31);
  start(w, first);
  emu_current = first;
  emu_switch(&w->main_stack, first->stack_pointer);
  emu_current = nullptr;
}

void prepare(Worker* w, Dispatch& d) {
  static Range none{0, 0, false, -1};
  worker = w;
  w->dispatch = &d;
  w->error.clear();
  w->deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(int64_t(options.seconds * 1000));
  w->free_stacks.clear();
  for (uint32_t i = 0; i < most_threads; i++) w->free_stacks.push_back(w->stacks + size_t(i) * stack_bytes);
  w->random_state = options.seed * 0x9E3779B97F4A7C15ull + 0x1234567;
  w->last_range = &none;
  // What earlier dispatches left there is known by its threadgroups' serials, and given back when it has become much.
  if (w->pieces.made.size() > 256) {
    for (auto& [number, cells] : w->pieces.made) munmap(cells, piece_bytes * sizeof(Cell));
    w->pieces = {};
  }
}

}  // namespace

namespace emu {

std::string run(Dispatch& d) {
  uint32_t groups[3], total = 1;
  for (int i = 0; i < 3; i++) {
    groups[i] = (d.grid[i] + d.group[i] - 1) / d.group[i];
    total *= groups[i];
  }
  Dl_info info;
  if (dladdr(reinterpret_cast<void*>(d.kernel->run), &info)) {
    d.code_low = reinterpret_cast<uintptr_t>(info.dli_fbase);
    d.code_high = d.code_low + (4 << 20);
  }
  static thread_local Worker* mine = make_worker();
  first_serial = next_serial;
  stopped = false;
  std::vector<uint32_t> order;
  if (options.random) {
    prepare(mine, d);
    for (uint32_t i = 0; i < total; i++) order.push_back(i);
    for (uint32_t i = total; i > 1; i--) std::swap(order[i - 1], order[random_number(mine) % i]);
  }
  std::atomic<uint32_t> next{0};
  auto work = [&](Worker* w) {
    unsigned control = _mm_getcsr();
    _mm_setcsr(control | 0x8040);  // GPUs flush denormal floats
    prepare(w, d);
    for (uint32_t i; !stopped && (i = next++) < total;) {
      uint32_t t = options.random ? order[i] : i;
      const uint32_t at[3] = {t % groups[0], t / groups[0] % groups[1], t / groups[0] / groups[1]};
      run_threadgroup(w, at, groups);
      if (!w->error.empty()) stopped = true;
    }
    worker = nullptr;
    _mm_setcsr(control);
    switches += w->switched;
    accesses += w->accessed;
    w->switched = w->accessed = 0;
  };
  // Random order and checks need one thread: their memory is not shared.
  bool alone = options.random || d.checked || options.threads < 2 || total * d.group[0] * d.group[1] * d.group[2] < 4096;
  if (alone) {
    work(mine);
    return mine->error;
  }
  static Worker* other = make_worker();
  std::thread second([&] { work(other); });
  work(mine);
  second.join();
  return !mine->error.empty() ? mine->error : other->error;
}

}  // namespace emu

extern "C" {

void emu_fail(const char* format, ...) {
  char text[1024], head[300];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  Worker* w = worker;
  Fiber* f = emu_current;
  if (!f) {
    fprintf(stderr, "%s\n", text);
    abort();
  }
  const uint32_t* at = f->context.group;
  snprintf(head, sizeof head, "kernel %s, threadgroup (%u,%u,%u), thread %u: ", w->dispatch->kernel->name, at[0], at[1], at[2], f->context.index);
  w->error = std::string(head) + text;
  leave_fibers(w);
}

int emu_matrix_layout() { return options.layout; }

void emu_meet(int site, const char* op, void (*finish)(Simdgroup*, unsigned char (*slot)[64])) {
  Fiber* f = emu_current;
  Worker* w = worker;
  Simdgroup* g = f->group;
  uint32_t bit = 1u << f->context.lane;
  if (!g->arrived) {
    g->site = site;
    g->op = op;
    g->finish = finish;
    g->half = f->half;
  } else if (g->site != site) {
    emu_fail("divergent simdgroup functions: %s at line %d while other lanes are in %s at line %d", op, site / 1000, g->op, g->site / 1000);
  }
  g->arrived |= bit;
  if (g->arrived == g->live) {
    all_lanes_met(w, g);
    if (__builtin_expect(options.random, 0)) block(w, f);
    return;
  }
  g->waiting |= bit;
  clear_ready(w, g, bit);
  block(w, f);
}

void emu_threadgroup_barrier(int flags, int site) {
  Fiber* f = emu_current;
  Worker* w = worker;
  if (!w->at_barrier) {
    w->barrier_site = site;
    w->barrier_flags = flags;
    if (w->remaining != w->count) emu_fail("threadgroup_barrier (line %d) after %u threads have returned", site / 1000, w->count - w->remaining);
  } else if (w->barrier_site != site) {
    emu_fail("divergent threadgroup_barrier: line %d, others wait at line %d", site / 1000, w->barrier_site / 1000);
  }
  if (++w->at_barrier == w->count) {
    all_threads_met(w);
    if (options.random) block(w, f);
    return;
  }
  clear_ready(w, f->group, 1u << f->context.lane);
  block(w, f);
}

void emu_simdgroup_barrier(int flags, int site) {
  Simdgroup* g = emu_current->group;
  ptrdiff_t k = g - worker->groups;
  emu_meet(site, "simdgroup_barrier", nullptr);
  if (emu_current->context.lane == uint32_t(__builtin_ctz(g->live))) {
    if (flags & 1) worker->simd_barriers[0][k]++;
    if (flags & 2) worker->simd_barriers[1][k]++;
  }
  emu_meet(-site, "simdgroup_barrier", nullptr);
}

void* emu_threadgroup_variable(const void* key, uint32_t size, uint32_t align) {
  Worker* w = worker;
  for (int i = 0; i < w->variable_count; i++) {
    if (w->variables[i].key == key) return w->arena + w->variables[i].offset;
  }
  return w->arena + arena_allocate(w, key, size, align < 16 ? 16 : align);
}

}  // extern "C"
