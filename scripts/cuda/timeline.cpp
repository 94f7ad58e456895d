// Records when each kernel ran, of a program that it is injected into, also of kernels inside captured graphs. Built by hand, never a part of Bao:
//   g++ -O2 -shared -fPIC scripts/cuda/timeline.cpp -o build/timeline.so -I$CUDA/include -L$CUDA/lib64 -lcupti
//   BAO_TIMELINE=kernels.tsv CUDA_INJECTION64_PATH=build/timeline.so bao bench ...;  bun scripts/cuda/timeline.ts kernels.tsv
#include <cupti.h>

#include <cstdio>
#include <cstdlib>

namespace {

constexpr size_t buffer_bytes = 4 << 20;
std::FILE* out;

void CUPTIAPI requested(uint8_t** buffer, size_t* size, size_t* records) {
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(64, buffer_bytes));
  *size = *buffer ? buffer_bytes : 0;
  *records = 0;
}

void CUPTIAPI completed(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid) {
  CUpti_Activity* record = nullptr;
  while (out && cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) {
    if (record->kind != CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) continue;
    auto* k = reinterpret_cast<CUpti_ActivityKernel9*>(record);
    std::fprintf(out, "%llu\t%llu\t%d,%d,%d\t%d\t%d\t%d\t%s\n", static_cast<unsigned long long>(k->start), static_cast<unsigned long long>(k->end), k->gridX, k->gridY, k->gridZ,
                 k->blockX * k->blockY * k->blockZ, int(k->registersPerThread), k->staticSharedMemory + k->dynamicSharedMemory, k->name);
  }
  std::free(buffer);
}

void finish() {
  cuptiActivityFlushAll(1);
  if (out) std::fclose(out);
  out = nullptr;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int InitializeInjection() {
  const char* path = std::getenv("BAO_TIMELINE");
  out = path ? std::fopen(path, "w") : nullptr;
  if (!out) return 1;
  cuptiActivityRegisterCallbacks(requested, completed);
  cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
  std::atexit(finish);
  return 1;
}
