// A small Objective-C runtime for ELF: classes, messages, instances, automatic reference counting, weak references, as clang emits them for
// macOS. Strict: a deallocated object is never reused and every use of it is seen; autorelease without a pool, which leaks, ends the process.
#include "runtime.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <set>
#include <unordered_set>
#include <vector>

using namespace emu::objc;

extern "C" {
void* _objc_empty_cache[2];
Class __CFConstantStringClassReference;
void *_NSConcreteStackBlock[8], *_NSConcreteGlobalBlock[8], *_NSConcreteMallocBlock[8];

void emu_objc_die(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fprintf(stderr, "objc: ");
  vfprintf(stderr, format, arguments);
  fputc('\n', stderr);
  va_end(arguments);
  abort();
}
}

namespace emu::objc {

std::recursive_mutex lock;

// Behind functions: classes are registered before this file's own constructors have run. Never destroyed: the process may still use them at its end.
static std::vector<Class*>& classes() {
  static auto* all = new std::vector<Class*>();
  return *all;
}
static std::unordered_map<Id, std::set<Id*>>& weak_references() {
  static auto* all = new std::unordered_map<Id, std::set<Id*>>();
  return *all;
}
static std::unordered_map<Id, const char*>& zombies() {
  static auto* all = new std::unordered_map<Id, const char*>();
  return *all;
}

Selector intern(const char* name) {
  static auto* names = new std::unordered_set<std::string>();
  std::lock_guard<std::recursive_mutex> hold(lock);
  return names->insert(name).first->c_str();
}

static void add_methods(Class* to, MethodList* list) {
  if (!list) return;
  for (uint32_t i = 0; i < list->count; i++) {
    auto* entry = reinterpret_cast<MethodList::Entry*>(reinterpret_cast<char*>(list->entries) + size_t(list->entry_bytes & ~3u) * i);
    to->known->methods[intern(entry->name)] = entry->method;
  }
}

static void know(Class* c) {
  if (c->known && reinterpret_cast<void*>(c->known) != reinterpret_cast<void*>(_objc_empty_cache)) return;
  c->known = new Known();
  add_methods(c, c->data->methods);
}

bool is_block(Id object) {
  void* isa = object->isa;
  return isa == _NSConcreteStackBlock || isa == _NSConcreteMallocBlock || isa == _NSConcreteGlobalBlock;
}

bool is_immortal(Id object) { return object->isa == &__CFConstantStringClassReference || object->isa->is_meta(); }

Header* header_of(Id object) {
  Header* header = reinterpret_cast<Header*>(reinterpret_cast<char*>(object) - sizeof(Header));
  if (header->magic == dead) emu_objc_die("use of a deallocated %s at %p", zombies()[object], static_cast<void*>(object));
  if (header->magic != alive) emu_objc_die("not an object: %p", static_cast<void*>(object));
  return header;
}

Method find(Class* from, Selector selector) {
  std::lock_guard<std::recursive_mutex> hold(lock);
  for (Class* c = from; c; c = c->parent) {
    auto found = c->known->methods.find(selector);
    if (found != c->known->methods.end()) return found->second;
  }
  return nullptr;
}

static ClassData zombie_data = {0, 0, 8, 0, nullptr, "Zombie", nullptr, nullptr, nullptr, nullptr, nullptr};
static Class zombie_meta, zombie = {&zombie_meta, nullptr, nullptr, nullptr, &zombie_data};

static void construct(Id object, Class* c) {
  static const Selector selector = intern(".cxx_construct");
  if (!c) return;
  construct(object, c->parent);
  auto found = c->known->methods.find(selector);
  if (found != c->known->methods.end()) reinterpret_cast<Id (*)(Id, Selector)>(found->second)(object, selector);
}

static void destruct(Id object) {
  static const Selector selector = intern(".cxx_destruct");
  for (Class* c = object->isa; c; c = c->parent) {
    auto found = c->known->methods.find(selector);
    if (found != c->known->methods.end()) reinterpret_cast<void (*)(Id, Selector)>(found->second)(object, selector);
  }
}

template <class Result = Id>
static Result send(Id to, const char* name);

}  // namespace emu::objc

extern "C" {

// ---- classes and messages

// Called by register.c of every object with Objective-C code, with its sections.
void emu_objc_register(Selector* s, Selector* s_end, Class** c, Class** c_end, Category** k, Category** k_end) {
  std::lock_guard<std::recursive_mutex> hold(lock);
  for (; s < s_end; s++) *s = intern(*s);
  for (; c < c_end; c++) {
    know(*c);
    know((*c)->isa);
    classes().push_back(*c);
    if (!strcmp((*c)->data->name, "NSConstantString")) __CFConstantStringClassReference = **c;
    if (strcmp((*c)->data->name, "NSBlock")) continue;
    for (void** block : {_NSConcreteStackBlock, _NSConcreteGlobalBlock, _NSConcreteMallocBlock}) memcpy(block, *c, sizeof(Class));
  }
  for (; k < k_end; k++) {
    add_methods((*k)->extended, (*k)->instance_methods);
    add_methods((*k)->extended->isa, (*k)->class_methods);
  }
}

Selector sel_registerName(const char* name) { return intern(name); }

Method emu_objc_lookup(Id self, Selector selector) {
  if (!is_block(self) && !is_immortal(self)) header_of(self);
  if (Method method = find(self->isa, selector)) return method;
  emu_objc_die("%c[%s %s]: unrecognized selector", self->isa->is_meta() ? '+' : '-', self->isa->data->name, selector);
}

Method emu_objc_lookup_super(Id* receiver_and_class, Selector selector) {
  if (Method method = find(reinterpret_cast<Class*>(receiver_and_class[1])->parent, selector)) return method;
  emu_objc_die("super %s: unrecognized selector", selector);
}

// The argument registers survive the lookup; a message to nil gives zeros.
#define SAVE                                                                                                                                        \
  "pushq %rbp; movq %rsp,%rbp; subq $0xC0,%rsp; movq %rdi,-8(%rbp); movq %rsi,-16(%rbp); movq %rdx,-24(%rbp); movq %rcx,-32(%rbp); movq %r8,-40(%rbp);" \
  "movq %r9,-48(%rbp); movq %rax,-56(%rbp); movaps %xmm0,-0x50(%rbp); movaps %xmm1,-0x60(%rbp); movaps %xmm2,-0x70(%rbp); movaps %xmm3,-0x80(%rbp);"   \
  "movaps %xmm4,-0x90(%rbp); movaps %xmm5,-0xa0(%rbp); movaps %xmm6,-0xb0(%rbp); movaps %xmm7,-0xc0(%rbp);"
#define RESTORE                                                                                                                                     \
  "movq %rax,%r11; movq -8(%rbp),%rdi; movq -16(%rbp),%rsi; movq -24(%rbp),%rdx; movq -32(%rbp),%rcx; movq -40(%rbp),%r8; movq -48(%rbp),%r9;"        \
  "movq -56(%rbp),%rax; movaps -0x50(%rbp),%xmm0; movaps -0x60(%rbp),%xmm1; movaps -0x70(%rbp),%xmm2; movaps -0x80(%rbp),%xmm3;"                      \
  "movaps -0x90(%rbp),%xmm4; movaps -0xa0(%rbp),%xmm5; movaps -0xb0(%rbp),%xmm6; movaps -0xc0(%rbp),%xmm7; leave;"
#define ENTRY(name) ".globl " name "\n.type " name ",@function\n" name ": "
asm(ENTRY("objc_msgSend") "testq %rdi,%rdi; je 1f;" SAVE "call emu_objc_lookup@PLT;" RESTORE
    "jmp *%r11\n1: xorl %eax,%eax; xorl %edx,%edx; xorps %xmm0,%xmm0; xorps %xmm1,%xmm1; ret\n"
    ENTRY("objc_msgSend_stret") "testq %rsi,%rsi; je 1f;" SAVE "movq %rsi,%rdi; movq %rdx,%rsi; call emu_objc_lookup@PLT;" RESTORE
    "jmp *%r11\n1: movq %rdi,%rax; ret\n"
    ENTRY("objc_msgSendSuper2") SAVE "call emu_objc_lookup_super@PLT;" RESTORE "movq (%rdi),%rdi; jmp *%r11\n");

}  // extern "C"

namespace emu::objc {
template <class Result>
static Result send(Id to, const char* name) {
  Selector selector = intern(name);
  return reinterpret_cast<Result (*)(Id, Selector)>(emu_objc_lookup(to, selector))(to, selector);
}
}  // namespace emu::objc

extern "C" {

// ---- instances

Id class_createInstance(Class* c, size_t extra) {
  char* memory = static_cast<char*>(calloc(1, sizeof(Header) + c->data->instance_bytes + extra));
  Header* header = reinterpret_cast<Header*>(memory);
  header->references = 1;
  header->magic = alive;
  Id object = reinterpret_cast<Id>(memory + sizeof(Header));
  object->isa = c;
  c->known->live++;
  std::lock_guard<std::recursive_mutex> hold(lock);
  construct(object, c);
  return object;
}

Id object_dispose(Id object) {
  Header* header = header_of(object);
  std::lock_guard<std::recursive_mutex> hold(lock);
  destruct(object);
  if (header->weak) {
    for (Id* reference : weak_references()[object]) *reference = nullptr;
    weak_references().erase(object);
  }
  object->isa->known->live--;
  zombies()[object] = object->isa->data->name;
  header->magic = dead;  // and the memory is never given out again
  memset(static_cast<void*>(object), 0x5a, object->isa->data->instance_bytes);
  object->isa = &zombie;
  return nullptr;
}

Id objc_retain(Id object) {
  if (!object) return object;
  if (is_block(object)) return _Block_copy(object);
  if (!is_immortal(object)) header_of(object)->references++;
  return object;
}

void objc_release(Id object) {
  if (!object) return;
  if (is_block(object)) return _Block_release(object);
  if (!is_immortal(object) && --header_of(object)->references == 0) send<void>(object, "dealloc");
}

static thread_local std::vector<Id> pool;
static thread_local int pools;

void* objc_autoreleasePoolPush() {
  pools++;
  return reinterpret_cast<void*>(pool.size() + 1);
}

void objc_autoreleasePoolPop(void* token) {
  size_t size = reinterpret_cast<size_t>(token) - 1;
  pools--;
  while (pool.size() > size) {
    Id object = pool.back();
    pool.pop_back();
    objc_release(object);
  }
}

Id objc_autorelease(Id object) {
  if (!object || is_block(object) || is_immortal(object)) return object;
  header_of(object);
  if (!pools) emu_objc_die("%s autoreleased with no pool in place: it leaks (wrap the entry point in @autoreleasepool)", object->isa->data->name);
  pool.push_back(object);
  return object;
}

// Returned objects always go through the pool, where Apple's runtime may hand them over: the longer of the possible lives.
Id objc_autoreleaseReturnValue(Id object) { return objc_autorelease(object); }
Id objc_retainAutoreleaseReturnValue(Id object) { return objc_autorelease(objc_retain(object)); }
Id objc_retainAutorelease(Id object) { return objc_autorelease(objc_retain(object)); }
Id objc_retainAutoreleasedReturnValue(Id object) { return objc_retain(object); }
Id objc_unsafeClaimAutoreleasedReturnValue(Id object) { return object; }
Id objc_claimAutoreleasedReturnValue(Id object) { return objc_retain(object); }
Id objc_retainBlock(Id block) { return block ? _Block_copy(block) : block; }

void objc_storeStrong(Id* to, Id object) {
  if (*to == object) return;
  objc_retain(object);
  Id old = *to;
  *to = object;
  objc_release(old);
}

Id objc_alloc(Class* c) { return send(reinterpret_cast<Id>(c), "alloc"); }
Id objc_alloc_init(Class* c) { return send(objc_alloc(c), "init"); }
Id objc_opt_new(Class* c) { return objc_alloc_init(c); }
Class* objc_opt_class(Id object) { return !object ? nullptr : object->isa->is_meta() ? reinterpret_cast<Class*>(object) : object->isa; }
bool objc_opt_respondsToSelector(Id object, Selector selector) { return object && find(object->isa, selector); }
const char* object_getClassName(Id object) { return object ? object->isa->data->name : "nil"; }

bool objc_opt_isKindOfClass(Id object, Class* kind) {
  for (Class* c = object ? object->isa : nullptr; c; c = c->parent) {
    if (c == kind) return true;
  }
  return false;
}

// ---- weak references

Id objc_initWeak(Id* to, Id object) {
  std::lock_guard<std::recursive_mutex> hold(lock);
  *to = object;
  if (!object || is_immortal(object)) return object;
  header_of(object)->weak = 1;
  weak_references()[object].insert(to);
  return object;
}

void objc_destroyWeak(Id* reference) {
  std::lock_guard<std::recursive_mutex> hold(lock);
  if (*reference) weak_references()[*reference].erase(reference);
  *reference = nullptr;
}

Id objc_storeWeak(Id* to, Id object) {
  objc_destroyWeak(to);
  return objc_initWeak(to, object);
}

Id objc_loadWeakRetained(Id* reference) {
  std::lock_guard<std::recursive_mutex> hold(lock);
  return !*reference || header_of(*reference)->references <= 0 ? nullptr : objc_retain(*reference);
}

void objc_copyWeak(Id* to, Id* from) {
  std::lock_guard<std::recursive_mutex> hold(lock);
  objc_initWeak(to, *from);
}

void objc_moveWeak(Id* to, Id* from) {
  objc_copyWeak(to, from);
  objc_destroyWeak(from);
}

// ---- properties

static Id* field(Id object, ptrdiff_t offset) { return reinterpret_cast<Id*>(reinterpret_cast<char*>(object) + offset); }

static Id copied(Id value) { return !value ? value : is_block(value) ? _Block_copy(value) : send(value, "copy"); }

Id objc_getProperty(Id object, Selector, ptrdiff_t offset, bool) { return objc_autorelease(objc_retain(*field(object, offset))); }
void objc_setProperty_nonatomic(Id object, Selector, Id value, ptrdiff_t offset) { objc_storeStrong(field(object, offset), value); }
void objc_setProperty_atomic(Id object, Selector, Id value, ptrdiff_t offset) { objc_storeStrong(field(object, offset), value); }

void objc_setProperty_nonatomic_copy(Id object, Selector, Id value, ptrdiff_t offset) {
  Id *to = field(object, offset), old = *to;
  *to = copied(value);
  objc_release(old);
}

void objc_setProperty_atomic_copy(Id object, Selector selector, Id value, ptrdiff_t offset) { objc_setProperty_nonatomic_copy(object, selector, value, offset); }

// ---- for leak tests: live objects of a class, or of all; and "MTLBuffer=3 ..."

long emu_live(const char* name) {
  std::lock_guard<std::recursive_mutex> hold(lock);
  long count = 0;
  for (Class* c : classes()) {
    if (!name || !*name || !strcmp(name, c->data->name)) count += c->known->live;
  }
  return count;
}

const char* emu_live_report() {
  static auto* text = new std::string();
  std::lock_guard<std::recursive_mutex> hold(lock);
  text->clear();
  for (Class* c : classes()) {
    if (c->known->live) *text += std::string(c->data->name) + "=" + std::to_string(c->known->live) + " ";
  }
  return text->c_str();
}

}  // extern "C"
