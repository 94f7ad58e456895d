// Libraries, functions and pipelines: MSL text becomes a shared object through msl/compile.ts and clang, kept on disk by a hash of all that it
// is made from. A file made by that program also opens as a precompiled library.
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "device.h"

#ifndef EMULATOR_SOURCE
#error "EMULATOR_SOURCE: the folder of the emulator's sources"
#endif

using namespace emu;

@implementation MTLCompileOptions
@synthesize preprocessorMacros, fastMathEnabled, languageVersion, mathMode;
- (instancetype)init {
  self.fastMathEnabled = YES;
  self.mathMode = MTLMathModeFast;
  self.languageVersion = MTLLanguageVersion3_1;
  return self;
}
@end

@implementation MTLFunctionConstantValues
- (void)setConstantValue:(const void*)value type:(MTLDataType)type atIndex:(NSUInteger)index {
  size_t bytes = 0;
  switch (type) {
    case MTLDataTypeBool: bytes = 1; break;
    case MTLDataTypeHalf: case MTLDataTypeShort: case MTLDataTypeUShort: bytes = 2; break;
    case MTLDataTypeFloat: case MTLDataTypeInt: case MTLDataTypeUInt: bytes = 4; break;
    default: break;
  }
  REQUIRE(bytes, "setConstantValue: data type %lu", (unsigned long)type);
  values[(int)index] = {(int)type, std::string((const char*)value, bytes)};
}
@end

@implementation EmulatedFunction
@synthesize label;
- (NSString*)name { return emu_string(kernel->name); }
@end

@implementation EmulatedPipeline
- (NSString*)label { return function.label; }
- (NSUInteger)maxTotalThreadsPerThreadgroup {
  NSUInteger most = (NSUInteger)setting("MAX_THREADS", 1024), own = (NSUInteger)function->kernel->max_threads;
  return own && own < most ? own : most;
}
- (NSUInteger)threadExecutionWidth { return 32; }
- (NSUInteger)staticThreadgroupMemoryLength { return 0; }
@end

namespace {

int type_of(char code) {
  switch (code) {
    case 'b': return MTLDataTypeBool;
    case 'i': return MTLDataTypeInt;
    case 'u': return MTLDataTypeUInt;
    case 'f': return MTLDataTypeFloat;
    case 'h': return MTLDataTypeHalf;
    case 's': return MTLDataTypeShort;
    case 't': return MTLDataTypeUShort;
    default: return 0;
  }
}

const FunctionConstant* constant_at(const Library& library, int index) {
  for (int i = 0; i < library.constant_count; i++) {
    if (library.constants[i].index == index) return &library.constants[i];
  }
  return nullptr;
}

std::string folder_of_this_library() {
  Dl_info info;
  dladdr((void*)&constant_at, &info);
  std::string path = info.dli_fname;
  return path.substr(0, path.find_last_of('/'));
}

// The Bun that runs this program, or the one on PATH.
std::string bun() {
  char path[4096];
  ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
  std::string self(path, n > 0 ? (size_t)n : 0);
  return self.compare(self.find_last_of('/') + 1, 3, "bun") == 0 ? self : getenv("METAL_EMULATOR_BUN") ? getenv("METAL_EMULATOR_BUN") : "bun";
}

std::string quoted(const std::string& word) {
  std::string out = "'";
  for (char c : word) out += c == '\'' ? "'\\''" : std::string(1, c);
  return out + "'";
}

std::string read_file(const std::string& path) {
  std::string text;
  if (FILE* file = fopen(path.c_str(), "r")) {
    char part[4096];
    for (size_t n; (n = fread(part, 1, sizeof part, file)) > 0;) text.append(part, n);
    fclose(file);
  }
  return text;
}

// FNV-1a, twice with different starts.
std::string hash(const std::string& text) {
  uint64_t a = 0xcbf29ce484222325u, b = 0x9ae16a3b2f90404fu;
  for (unsigned char c : text) {
    a = (a ^ c) * 0x100000001b3u;
    b = (b ^ c) * 0x100000001b3u + (b >> 47);
  }
  char out[40];
  snprintf(out, sizeof out, "%016lx%016lx", a, b);
  return out;
}

}  // namespace

@implementation EmulatedLibrary
+ (EmulatedLibrary*)open:(const char*)path error:(NSError**)error {
  // Kernel libraries take their symbols from this one, which may have been opened without showing them.
  static bool shown = [] {
    Dl_info info;
    dladdr((void*)&constant_at, &info);
    return dlopen(info.dli_fname, RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD) != nullptr;
  }();
  (void)shown;
  void* handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  auto library = handle ? (const Library* (*)())dlsym(handle, "emu_library") : nullptr;
  if (!library) {
    if (error) *error = emu_error("MTLLibraryErrorDomain", 1, dlerror() ?: "not a library");
    return nil;
  }
  EmulatedLibrary* opened = [EmulatedLibrary new];
  opened->library = library();
  opened->checked = dlsym(handle, "emu_checked") != nullptr;
  return opened;
}

+ (EmulatedLibrary*)compile:(NSString*)source options:(MTLCompileOptions*)options error:(NSError**)error {
  bool fast = options ? options.fastMathEnabled && options.mathMode != MTLMathModeSafe : true;
  std::string flags = std::string(fast || setting("FAST_MATH", 0) ? " --fast-math" : "") + (setting("CHECKED", 0) ? " --checked" : "");
  NSArray* names = options.preprocessorMacros.allKeys;
  for (NSUInteger i = 0; i < names.count; i++) {
    NSString* name = names[i];
    NSObject* value = options.preprocessorMacros[name];
    flags += " " + quoted(std::string("-D") + name.UTF8String + "=" + value.description.UTF8String);
  }
  std::string folder = folder_of_this_library() + "/msl", key = folder + "/" + hash(source.UTF8String + flags + EMULATOR_VERSION), library = key + ".so";
  if (access(library.c_str(), R_OK) != 0) {
    mkdir(folder.c_str(), 0777);
    key += "-" + std::to_string(getpid());
    std::string text = key + ".metal", made = key + ".so", log = key + ".log";
    FILE* file = fopen(text.c_str(), "w");
    if (!file) {
      if (error) *error = emu_error("MTLLibraryErrorDomain", 1, ("cannot write " + text).c_str());
      return nil;
    }
    fputs(source.UTF8String, file);
    fclose(file);
    std::string command = quoted(bun()) + " " + quoted(EMULATOR_SOURCE "/msl/compile.ts") + " " + quoted(text) + " -o " + quoted(made) + flags + " 2>" + quoted(log);
    int failed = system(command.c_str());
    if (failed && error) *error = emu_error("MTLLibraryErrorDomain", 3, read_file(log).c_str());
    if (!failed) rename(made.c_str(), library.c_str());
    unlink(log.c_str());
    unlink(text.c_str());
    if (failed) return nil;
  }
  return [EmulatedLibrary open:library.c_str() error:error];
}

- (NSArray<NSString*>*)functionNames {
  std::vector<NSString*> names;
  for (int i = 0; i < library->kernel_count; i++) names.push_back(emu_string(library->kernels[i].name));
  return [NSArray arrayWithObjects:names.data() count:names.size()];
}

- (id<MTLFunction>)newFunctionWithName:(NSString*)name {
  NSError* error;
  id<MTLFunction> function = [self newFunctionWithName:name constantValues:[MTLFunctionConstantValues new] error:&error];
  if (!function && error.code == 7) violation("newFunctionWithName: %s", error.localizedDescription.UTF8String);
  return function;
}

- (id<MTLFunction>)newFunctionWithName:(NSString*)name constantValues:(MTLFunctionConstantValues*)given error:(NSError**)error {
  for (auto& [index, value] : given->values) {
    const FunctionConstant* constant = constant_at(*library, index);
    REQUIRE_OR(nil, !constant || value.first == type_of(constant->type), "function constant %s has another type", constant->name);
  }
  for (int i = 0; i < library->kernel_count; i++) {
    const Kernel& kernel = library->kernels[i];
    if (strcmp(kernel.name, name.UTF8String) != 0) continue;
    EmulatedFunction* function = [EmulatedFunction new];
    function->library = self;
    function->kernel = &kernel;
    for (const int* index = kernel.constants; *index >= 0; index++) {
      auto value = given->values.find(*index);
      if (value == given->values.end()) {
        std::string text = std::string("function ") + kernel.name + " needs a value for function constant " + std::to_string(*index) + " (" + constant_at(*library, *index)->name + ")";
        if (error) *error = emu_error("MTLLibraryErrorDomain", 7, text.c_str());
        return nil;
      }
      function->constants[*index] = value->second;
    }
    return function;
  }
  if (error) *error = emu_error("MTLLibraryErrorDomain", 5, (std::string("no function ") + name.UTF8String).c_str());
  return nil;
}
@end
