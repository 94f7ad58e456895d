// Kernels: the MSL texts that the build embeds, compiled on first use, and the pipelines of their functions.
#include "backend.h"

namespace bao {

namespace {
struct Source { const char *module, *text; };
const Source sources[] = {
#include "metal_sources.inc"
};
}  // namespace

id<MTLLibrary> Library::library(const char* module, int32_t dtype) {
  auto key = std::make_pair(std::string(module), dtype);
  auto found = libraries_.find(key);
  if (found != libraries_.end()) return found->second;
  const char* text = nullptr;
  for (const Source& source : sources) {
    if (key.first == source.module) text = source.text;
  }
  if (!text) return error_ = "no MSL text " + key.first, nil;
  MTLCompileOptions* options = [MTLCompileOptions new];
  options.languageVersion = MTLLanguageVersion3_1;
  // Infinities, NaNs and the order of operations count.
#if !defined(__MAC_OS_X_VERSION_MAX_ALLOWED) || __MAC_OS_X_VERSION_MAX_ALLOWED >= 150000
  if (@available(macOS 15.0, *)) options.mathMode = MTLMathModeSafe;
  else
#endif
    options.fastMathEnabled = NO;
  if (dtype >= 0) options.preprocessorMacros = @{@"BAO_DTYPE" : [NSNumber numberWithInt:dtype]};
  NSError* failure = nil;
  id<MTLLibrary> made = [device_ newLibraryWithSource:[NSString stringWithUTF8String:text] options:options error:&failure];
  if (!made) return error_ = "Metal cannot compile " + key.first + ": " + failure.localizedDescription.UTF8String, nil;
  return libraries_[key] = made;
}

id<MTLComputePipelineState> Library::pipeline(const char* module, const char* kernel, int32_t dtype) {
  auto key = std::make_tuple(module, kernel, dtype);
  auto found = pipelines_.find(key);
  if (found != pipelines_.end()) return found->second;
  id<MTLLibrary> from = library(module, dtype);
  if (!from) return nil;
  NSError* failure = nil;
  id<MTLFunction> function = [from newFunctionWithName:[NSString stringWithUTF8String:kernel]];
  id<MTLComputePipelineState> made = function ? [device_ newComputePipelineStateWithFunction:function error:&failure] : nil;
  if (!made) return error_ = std::string("no pipeline for ") + module + "." + kernel + (failure ? std::string(": ") + failure.localizedDescription.UTF8String : ""), nil;
  return pipelines_[key] = made;
}

}  // namespace bao
