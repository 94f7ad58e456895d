// Blocks: copies to the heap, captured variables, __block variables.
#include <stdlib.h>
#include <string.h>

#include "runtime.h"

using namespace emu::objc;

namespace {

enum { REFERENCES = 0xfffe, ONE = 2, ON_HEAP = 1 << 24, HAS_HELPERS = 1 << 25 };
enum { FIELD_BLOCK = 4, FIELD_BYREF = 8, CALLED_BY_BYREF = 16 };

struct Descriptor { unsigned long reserved, bytes; void (*copy)(void*, const void*); void (*dispose)(const void*); };
struct Block { void* isa; volatile int flags; int reserved; void* invoke; Descriptor* descriptor; };
struct ByRef {
  void* isa;
  ByRef* forwarding;
  volatile int flags;
  int bytes;
  void (*keep)(ByRef*, ByRef*);
  void (*destroy)(ByRef*);
};

bool last_reference(volatile int* flags) { return (__atomic_sub_fetch(flags, ONE, __ATOMIC_SEQ_CST) & REFERENCES) == 0; }

// A __block variable moves to the heap with the first block that is copied; the frame's copy then points there.
ByRef* on_heap(ByRef* variable) {
  variable = variable->forwarding;
  if (variable->flags & ON_HEAP) {
    __atomic_add_fetch(&variable->flags, ONE, __ATOMIC_SEQ_CST);
    return variable;
  }
  ByRef* copy = static_cast<ByRef*>(malloc(size_t(variable->bytes)));
  memcpy(static_cast<void*>(copy), variable, size_t(variable->bytes));
  copy->flags = variable->flags | ON_HEAP | 2 * ONE;  // the frame's and the block's
  copy->forwarding = variable->forwarding = copy;
  if (variable->flags & HAS_HELPERS) copy->keep(copy, variable);
  return copy;
}

}  // namespace

extern "C" {

Id _Block_copy(Id object) {
  Block* block = reinterpret_cast<Block*>(object);
  if (block->isa == _NSConcreteGlobalBlock) return object;
  if (block->isa == _NSConcreteMallocBlock) {
    __atomic_add_fetch(&block->flags, ONE, __ATOMIC_SEQ_CST);
    return object;
  }
  Block* copy = static_cast<Block*>(malloc(block->descriptor->bytes));
  memcpy(static_cast<void*>(copy), block, block->descriptor->bytes);
  copy->isa = _NSConcreteMallocBlock;
  copy->flags = (block->flags & ~0xffff) | ON_HEAP | ONE;
  if (copy->flags & HAS_HELPERS) copy->descriptor->copy(copy, block);
  return reinterpret_cast<Id>(copy);
}

void _Block_release(Id object) {
  Block* block = reinterpret_cast<Block*>(object);
  if (!block || block->isa != _NSConcreteMallocBlock || !last_reference(&block->flags)) return;
  if (block->flags & HAS_HELPERS) block->descriptor->dispose(block);
  free(block);
}

void _Block_object_assign(void* to, const void* from, int kind) {
  Id object = static_cast<Id>(const_cast<void*>(from));
  if (kind & FIELD_BYREF) *static_cast<ByRef**>(to) = on_heap(static_cast<ByRef*>(const_cast<void*>(from)));
  else if (kind & CALLED_BY_BYREF) *static_cast<const void**>(to) = from;
  else if (kind & FIELD_BLOCK) *static_cast<Id*>(to) = object ? _Block_copy(object) : nullptr;
  else *static_cast<Id*>(to) = objc_retain(object);
}

void _Block_object_dispose(const void* from, int kind) {
  Id object = static_cast<Id>(const_cast<void*>(from));
  if (kind & FIELD_BYREF) {
    ByRef* variable = static_cast<ByRef*>(const_cast<void*>(from))->forwarding;
    if (!(variable->flags & ON_HEAP) || !last_reference(&variable->flags)) return;
    if (variable->flags & HAS_HELPERS) variable->destroy(variable);
    free(variable);
  } else if (kind & CALLED_BY_BYREF) {
    return;
  } else if (kind & FIELD_BLOCK) {
    if (object) _Block_release(object);
  } else {
    objc_release(object);
  }
}

}  // extern "C"
