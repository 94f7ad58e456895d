// Linked into every shared object that holds Objective-C code: hands its sections to the runtime when it is loaded.
extern void emu_objc_register(void*, void*, void*, void*, void*, void*);

#define SECTION(name) extern char __start_##name[] __attribute__((weak, visibility("hidden"))), __stop_##name[] __attribute__((weak, visibility("hidden")))
SECTION(objc_selrefs);
SECTION(objc_classlist);
SECTION(objc_catlist);

__attribute__((constructor(101))) static void hand_over(void) {
  emu_objc_register(__start_objc_selrefs, __stop_objc_selrefs, __start_objc_classlist, __stop_objc_classlist, __start_objc_catlist, __stop_objc_catlist);
}
