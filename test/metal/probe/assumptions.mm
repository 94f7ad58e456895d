// What the emulated device takes for granted of Apple's GPUs, asked of the device that is here. A line each: ok, DIFFERS, or a figure to know.
// Usage: assumptions assumptions.metal MIB (of the loop that reads). Exits with the number of differences.
#import <Metal/Metal.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <unistd.h>

namespace {

int differences;
void judge(bool holds, const char* what, const std::string& found) {
  if (!holds) differences++;
  printf("%-8s %s: %s\n", holds ? "ok" : "DIFFERS", what, found.c_str());
}
void tell(const char* what, const std::string& found) { printf("%-8s %s: %s\n", "", what, found.c_str()); }
std::string text(double number) {
  char out[40];
  snprintf(out, sizeof out, "%.9g", number);
  return out;
}

id<MTLDevice> device;
id<MTLCommandQueue> queue;
id<MTLLibrary> library;

id<MTLComputePipelineState> pipeline(const char* name) {
  NSError* error = nil;
  id<MTLFunction> function = [library newFunctionWithName:[NSString stringWithUTF8String:name]];
  id<MTLComputePipelineState> made = function ? [device newComputePipelineStateWithFunction:function error:&error] : nil;
  if (!made) {
    printf("DIFFERS  %s: no pipeline: %s\n", name, error ? error.localizedDescription.UTF8String : "no function");
    _exit(100);
  }
  return made;
}
id<MTLBuffer> buffer(NSUInteger bytes) { return [device newBufferWithLength:bytes options:MTLResourceStorageModeShared]; }

// Runs a kernel and waits; seconds that the GPU took.
double run(id<MTLComputePipelineState> kernel, id<MTLBuffer> first, id<MTLBuffer> second, uint32_t count, NSUInteger threads, NSUInteger group) {
  id<MTLCommandBuffer> commands = [queue commandBuffer];
  id<MTLComputeCommandEncoder> encoder = [commands computeCommandEncoder];
  [encoder setComputePipelineState:kernel];
  [encoder setBuffer:first offset:0 atIndex:0];
  if (second) [encoder setBuffer:second offset:0 atIndex:1];
  if (count) [encoder setBytes:&count length:4 atIndex:2];
  [encoder dispatchThreads:MTLSizeMake(threads, 1, 1) threadsPerThreadgroup:MTLSizeMake(group, 1, 1)];
  [encoder endEncoding];
  [commands commit];
  [commands waitUntilCompleted];
  if (commands.status != MTLCommandBufferStatusCompleted) {
    printf("DIFFERS  a command buffer failed: %s\n", commands.error.localizedDescription.UTF8String);
    _exit(100);
  }
  return commands.GPUEndTime - commands.GPUStartTime;
}

void limits() {
  tell("device", device.name.UTF8String);
  judge(device.hasUnifiedMemory, "memory is shared with the CPU", device.hasUnifiedMemory ? "yes" : "no");
  judge([device supportsFamily:MTLGPUFamilyApple7], "GPU family Apple 7 (M1) or later", [device supportsFamily:MTLGPUFamilyApple7] ? "yes" : "no");
  judge(device.maxThreadgroupMemoryLength >= 32768, "threadgroup memory, at least 32768", std::to_string(device.maxThreadgroupMemoryLength));
  judge(device.maxThreadsPerThreadgroup.width >= 1024, "threads of a threadgroup, at least 1024", std::to_string(device.maxThreadsPerThreadgroup.width));
  tell("largest buffer", std::to_string(device.maxBufferLength));
  tell("recommended working set", std::to_string(device.recommendedMaxWorkingSetSize));
#ifdef __APPLE__
  judge(sysconf(_SC_PAGESIZE) == 16384, "page size, 16384", std::to_string(sysconf(_SC_PAGESIZE)));
#else
  tell("page size of this machine", std::to_string(sysconf(_SC_PAGESIZE)));
#endif
  for (const char* name : {"matrix_layout", "simdgroup_functions", "rounding", "read_all"}) {
    id<MTLComputePipelineState> made = pipeline(name);
    judge(made.threadExecutionWidth == 32, (std::string("simdgroup width of ") + name + ", 32").c_str(), std::to_string(made.threadExecutionWidth));
    tell((std::string("most threads of ") + name).c_str(), std::to_string(made.maxTotalThreadsPerThreadgroup));
  }
}

void layout() {
  id<MTLBuffer> in = buffer(64 * 4), out = buffer(64 * 4);
  for (int i = 0; i < 64; i++) static_cast<float*>(in.contents)[i] = float(i);
  run(pipeline("matrix_layout"), in, out, 0, 32, 32);
  const float* found = static_cast<const float*>(out.contents);
  std::string places;
  bool same = true;
  for (int lane = 0; lane < 32; lane++) {
    int quad = lane / 4, row = (quad & 4) + lane / 2 % 4, column = (quad & 2) * 2 + lane % 2 * 2;
    same = same && found[lane * 2] == float(row * 8 + column) && found[lane * 2 + 1] == float(row * 8 + column + 1);
    places += " " + text(found[lane * 2]) + "," + text(found[lane * 2 + 1]);
  }
  judge(same, "places of an 8 x 8 matrix in its lanes", same ? "as assumed" : places);
}

void functions() {
  id<MTLBuffer> out = buffer(192 * 4);
  run(pipeline("simdgroup_functions"), out, nil, 0, 32, 32);
  const float* v = static_cast<const float*>(out.contents);
  bool sums = true, prefixes = true, swapped = true, shifted = true, votes = true;
  for (int i = 0; i < 32; i++) {
    sums = sums && v[i] == 528;
    prefixes = prefixes && v[32 + i] == float((i + 1) * (i + 2) / 2);
    swapped = swapped && v[64 + i] == float((i ^ 1) + 1);
    shifted = shifted && (i > 27 || v[96 + i] == float(i + 5));
    votes = votes && v[128 + i] == 2;
  }
  judge(sums, "simd_sum", text(v[0]));
  judge(prefixes, "simd_prefix_inclusive_sum", text(v[63]));
  judge(swapped, "simd_shuffle_xor", text(v[64]));
  judge(shifted, "simd_shuffle_down", text(v[96]));
  tell("simd_shuffle_down past the edge, lane 31 of values 1 to 32 (undefined)", text(v[127]));
  judge(votes, "simd_all and simd_any", text(v[128]));
  judge(v[160] == 32, "threads of a simdgroup, 32", text(v[160]));
}

void numbers() {
  const float x = 1.0f + 0x1p-12f, in[] = {0x1p-140f, x, float(double(x) * x), NAN, INFINITY, 3e38f, 70000, 2.5f, 1, 1, 3, 100000, 2};
  id<MTLBuffer> from = buffer(sizeof in), out = buffer(16 * 4);
  memcpy(from.contents, in, sizeof in);
  run(pipeline("rounding"), from, out, 0, 1, 1);
  const float* v = static_cast<const float*>(out.contents);
  tell("half of 2^-140 (0: denormal floats are flushed)", text(v[0]));
  tell("x x - round(x x) (not 0: products are fused with sums)", text(v[1]));
  judge(v[2] == 1, "NaN is seen without fast math", text(v[2]));
  judge(v[3] == 1, "infinity is above 3e38", text(v[3]));
  judge(std::isinf(v[4]), "70000 as half is infinite", text(v[4]));
  judge(v[5] == 2, "rint(2.5), to even", text(v[5]));
  tell("exp(1) - e", text(double(v[6]) - M_E));
  judge(v[7] == 1.0f / 3, "1 / 3 correctly rounded", text(v[7]));
  tell("sin(100000) - the sine", text(double(v[8]) - std::sin(100000.0)));
  judge(v[9] == std::sqrt(2.0f), "sqrt(2) correctly rounded", text(v[9]));
}

void reading(NSUInteger mib) {
  NSUInteger bytes = mib << 20, most = device.maxBufferLength;
  if (bytes > most) bytes = most / 16384 * 16384;
  id<MTLBuffer> in = buffer(bytes), out = buffer(16);
  memset(in.contents, 0, bytes);
  id<MTLComputePipelineState> kernel = pipeline("read_all");
  double best = 1e9;
  for (int i = 0; i < 10; i++) best = std::fmin(best, run(kernel, in, out, uint32_t(bytes / 16), mib < 64 ? 4096 : 262144, 256));
  printf("reads    %.1f GB/s over %lu MiB, the best of 10\n", double(bytes) / best * 1e-9, (unsigned long)(bytes >> 20));
}

std::string read_file(const char* path) {
  std::string all;
  FILE* file = fopen(path, "r");
  char part[4096];
  for (size_t n; file && (n = fread(part, 1, sizeof part, file)) > 0;) all.append(part, n);
  if (file) fclose(file);
  return all;
}

}  // namespace

int main(int count, char** arguments) {
  @autoreleasepool {
    device = count == 3 ? MTLCreateSystemDefaultDevice() : nil;
    if (!device) return printf("DIFFERS  no Metal device\n"), 100;
    queue = [device newCommandQueue];
    MTLCompileOptions* options = [MTLCompileOptions new];
    options.languageVersion = MTLLanguageVersion3_1;
    if (@available(macOS 15.0, *)) options.mathMode = MTLMathModeSafe;
    else options.fastMathEnabled = NO;
    NSError* error = nil;
    library = [device newLibraryWithSource:[NSString stringWithUTF8String:read_file(arguments[1]).c_str()] options:options error:&error];
    if (!library) return printf("DIFFERS  the kernels do not compile: %s\n", error.localizedDescription.UTF8String), 100;
    limits();
    layout();
    functions();
    numbers();
    reading(NSUInteger(std::stoul(arguments[2])));
    library = nil;
    queue = nil;
    device = nil;
  }
  return differences;
}
