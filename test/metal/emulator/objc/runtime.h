// The layouts that clang emits for -fobjc-runtime=macosx, and what the files of this runtime share.
#pragma once
#include <stdint.h>

#include <atomic>
#include <mutex>
#include <string>
#include <unordered_map>

namespace emu::objc {

using Selector = const char*;  // interned: equal names have one address
using Method = void*;
struct Class;
struct Object { Class* isa; };
using Id = Object*;

struct MethodList {
  uint32_t entry_bytes, count;
  struct Entry { const char *name, *types; Method method; } entries[];
};
struct ClassData {  // class_ro_t
  uint32_t flags, instance_start, instance_bytes, padding;
  const uint8_t* layout;
  const char* name;
  MethodList* methods;
  void *protocols, *ivars;
  const uint8_t* weak_layout;
  void* properties;
};
// What this runtime keeps of a class.
struct Known {
  std::unordered_map<Selector, Method> methods;
  std::atomic<long> live{0};
};
struct Class {
  Class *isa, *parent;
  Known* known;
  void* vtable;
  ClassData* data;
  bool is_meta() const { return data->flags & 1; }
};
struct Category { const char* name; Class* extended; MethodList *instance_methods, *class_methods; void *protocols, *properties; };

constexpr uint32_t alive = 0x0b1ec7, dead = 0xdead;
struct Header {  // in front of every instance
  std::atomic<long> references;
  std::atomic<uint32_t> weak;
  uint32_t magic;
};

extern std::recursive_mutex lock;
Header* header_of(Id object);        // dies when the object was deallocated
bool is_block(Id object);
bool is_immortal(Id object);         // constant strings, classes
Method find(Class* from, Selector selector);  // null when no class of the chain has it
Selector intern(const char* name);

}  // namespace emu::objc

extern "C" {
extern void *_NSConcreteStackBlock[8], *_NSConcreteGlobalBlock[8], *_NSConcreteMallocBlock[8];
void emu_objc_die(const char* format, ...) __attribute__((noreturn, format(printf, 1, 2)));
emu::objc::Id _Block_copy(emu::objc::Id block);
void _Block_release(emu::objc::Id block);
emu::objc::Id objc_retain(emu::objc::Id object);
void objc_release(emu::objc::Id object);
}
