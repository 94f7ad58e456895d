// The table behind every handle: index + generation * 2^20. Lookups are lock-free; a stale, foreign or made-up number gives null.
#include <cmath>

#include "core.h"

namespace bao {
namespace {

constexpr int64_t index_span = 1 << 20;
constexpr int page_slots = 1024;
constexpr int64_t last_generation = (int64_t(1) << 33) - 1;  // index + generation * 2^20 stays an exact double

struct Slot {
  std::atomic<int64_t> handle{0};  // 0 while free
  std::atomic<Object*> object{nullptr};
  int64_t generation = 0;          // under the lock: of the last object that lived here
};

// Never destroyed: pool threads and other threads of the process may still look handles up while the process exits.
std::atomic<Slot*> pages[index_span / page_slots];
std::mutex lock;
std::deque<int32_t>& free_slots = *new std::deque<int32_t>;  // first in, first out: generations stay low, handles small
int32_t unused = 1;                                          // index 0 is never given out

Slot* slot_at(int64_t index) {
  Slot* page = pages[index / page_slots].load(std::memory_order_acquire);
  return page ? page + index % page_slots : nullptr;
}

Slot* slot_of(bao_handle h) {
  if (!(h >= 1 && h <= 9007199254740992.0) || h != std::floor(h)) return nullptr;
  int64_t number = static_cast<int64_t>(h);
  Slot* slot = slot_at(number % index_span);
  return slot && slot->handle.load(std::memory_order_acquire) == number ? slot : nullptr;
}

// Under the lock: the object's slot is free again, the object still lives.
Object* take_out(Slot* slot, int64_t index) {
  slot->handle.store(0, std::memory_order_release);
  Object* object = slot->object.exchange(nullptr, std::memory_order_acq_rel);
  if (slot->generation < last_generation) free_slots.push_back(static_cast<int32_t>(index));
  return object;
}

}  // namespace

bao_handle handle_new(std::unique_ptr<Object> object) {
  std::lock_guard<std::mutex> guard(lock);
  int32_t index;
  // A few free slots are kept waiting, so that one hot slot does not burn through its generations.
  if (free_slots.size() > 256 || (unused == index_span && !free_slots.empty())) {
    index = free_slots.front();
    free_slots.pop_front();
  } else if (unused < index_span) {
    index = unused;
    if (!pages[index / page_slots].load(std::memory_order_relaxed)) {
      pages[index / page_slots].store(new Slot[page_slots], std::memory_order_release);
    }
    unused++;
  } else {
    fail(BAO_OUT_OF_MEMORY, 0, "handle table", "%lld objects are alive", static_cast<long long>(index_span - 1));
    return 0;
  }
  Slot* slot = slot_at(index);
  slot->generation++;
  int64_t number = index + slot->generation * index_span;
  object->handle = static_cast<bao_handle>(number);
  slot->object.store(object.release(), std::memory_order_release);
  slot->handle.store(number, std::memory_order_release);
  return static_cast<bao_handle>(number);
}

Object* handle_get(bao_handle h) {
  Slot* slot = slot_of(h);
  return slot ? slot->object.load(std::memory_order_acquire) : nullptr;
}

Object* handle_need(bao_handle h, Kind kind, int argument, const char* function) {
  static const char* const names[] = {"object", "device", "buffer", "view", "map", "weight", "KV pool", "step block", "stream", "file", "graph"};
  const char* expected = names[static_cast<int>(kind)];
  Object* object = handle_get(h);
  if (object && object->kind == kind) return object;
  if (object) {
    fail(BAO_INVALID, argument, function, "handle %.0f is a %s, expected a %s", h, names[static_cast<int>(object->kind)], expected);
  } else if (h == 0) {
    fail(BAO_INVALID, argument, function, "no %s given (handle 0)", expected);
  } else {
    fail(BAO_INVALID, argument, function, "handle %.0f is no live object, expected a %s", h, expected);
  }
  return nullptr;
}

void handle_free(bao_handle h) {
  Object* object = nullptr;
  {
    std::lock_guard<std::mutex> guard(lock);
    Slot* slot = slot_of(h);
    if (!slot) return;
    object = take_out(slot, static_cast<int64_t>(h) % index_span);
  }
  if (object->device && object->kind != Kind::device) object->device->free_epoch.fetch_add(1, std::memory_order_acq_rel);
  delete object;
}

void handle_free_all(Device* device) {
  std::vector<Object*> found;
  {
    std::lock_guard<std::mutex> guard(lock);
    for (int32_t index = 1; index < unused; index++) {
      Slot* slot = slot_at(index);
      Object* object = slot->object.load(std::memory_order_acquire);
      if (!object || object->device != device || object->kind == Kind::device) continue;
      found.push_back(object);
      take_out(slot, index);
    }
  }
  device->free_epoch.fetch_add(1, std::memory_order_acq_rel);
  for (Object* object : found) delete object;
}

}  // namespace bao
