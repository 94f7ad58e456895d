// The CPU behind the frontend: memory, weights read in place, KV pools as reserved mappings, and submits to the thread pool.
#include <algorithm>
#include <sys/mman.h>
#include <system_error>
#include <unistd.h>

#include "executor.h"
#include "features.h"

#ifndef MAP_NORESERVE
#define MAP_NORESERVE 0
#endif

namespace bao {
namespace {

struct WeightCopy : BackendState {
  std::unique_ptr<char[]> bytes;
};

class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(int32_t threads) : executor_(threads) {}

  char* allocate(int64_t bytes, Place) override { return static_cast<char*>(pages_allocate(bytes)); }
  void release(char* memory, int64_t bytes, Place) override { pages_free(memory, bytes); }
  int64_t memory_total() override { return bao::memory_total(); }
  int64_t memory_available() override { return bao::memory_available(); }
  bool host_addressable(Place) override { return true; }
  int32_t write(char* to, const void* from, int64_t bytes, const char*) override {
    std::memmove(to, from, static_cast<size_t>(bytes));
    return BAO_OK;
  }
  int32_t read(void* to, const char* from, int64_t bytes, const char*) override {
    std::memmove(to, from, static_cast<size_t>(bytes));
    return BAO_OK;
  }

  int64_t pool_alignment() override { return sysconf(_SC_PAGESIZE); }

  char* pool_reserve(Pool& pool, int64_t stride, int32_t layers) override {
    pool.reserved = stride * layers;
    void* base = mmap(nullptr, static_cast<size_t>(pool.reserved), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return base == MAP_FAILED ? nullptr : static_cast<char*>(base);
  }

  int32_t pool_back(Pool& pool, int64_t before, int64_t after) override {
    const PoolRef& ref = pool.ref;
    for (int32_t layer = 0; layer < ref.layers; layer++) {
      if (mprotect(pool.base + layer * ref.layer_stride + before, static_cast<size_t>(after - before), PROT_READ | PROT_WRITE) == 0) continue;
      for (int32_t undone = 0; undone <= layer; undone++) {
        mprotect(pool.base + undone * ref.layer_stride + before, static_cast<size_t>(after - before), PROT_NONE);
      }
      return BAO_OUT_OF_MEMORY;
    }
    return BAO_OK;
  }

  void pool_release(Pool& pool) override { munmap(pool.base, static_cast<size_t>(pool.reserved)); }

  int32_t page_copy(Pool& pool, int32_t destination, int32_t source, int32_t tokens, const char*) override {
    finish();
    const PoolRef& ref = pool.ref;
    bool q8 = ref.dtype == BAO_Q8_0;
    size_t values = static_cast<size_t>(tokens) * static_cast<size_t>(ref.head_dim) * (q8 ? 1 : ref.dtype == BAO_F32 ? 4 : 2);
    size_t scales = q8 ? static_cast<size_t>(tokens) * static_cast<size_t>(ref.head_dim) / 32 * 4 : 0;
    for (int32_t layer = 0; layer < ref.layers; layer++) {
      for (int32_t plane = 0; plane < 2 * ref.kv_heads; plane++) {
        char* to = ref.plane(layer, destination, plane, false);
        const char* from = ref.plane(layer, source, plane, false);
        std::memcpy(to, from, values);
        if (scales) std::memcpy(to + ref.scales_offset, from + ref.scales_offset, scales);
      }
    }
    return BAO_OK;
  }

  bool map_source(int64_t address, int64_t bytes, std::shared_ptr<const void>* keep, const char* f) override {
    *keep = file_mapping(address, bytes);
    if (*keep) return true;
    fail(BAO_INVALID, 2, f, "%lld bytes at address %.0f lie in no open bao_file", static_cast<long long>(bytes), static_cast<double>(address));
    return false;
  }

  int32_t weight_made(Weight& weight, const uint8_t* source, const char* f) override {
    if (!weight.vector.empty()) weight.values = weight.vector.data();
    if (!source) return BAO_OK;
    WeightRef& ref = weight.ref;
    if (reinterpret_cast<uintptr_t>(source) % 16 == 0 || weight.use == BAO_USE_VECTOR) return BAO_OK;
    int64_t bytes = ref.expert_bytes * ref.experts;
    if (bytes > bao::memory_available()) return fail(BAO_OUT_OF_MEMORY, 3, f, "the tensor is not aligned to 16 bytes and its copy of %lld bytes does not fit", static_cast<long long>(bytes));
    auto copy = std::make_unique<WeightCopy>();
    copy->bytes.reset(new char[static_cast<size_t>(bytes)]);
    std::memcpy(copy->bytes.get(), source, static_cast<size_t>(bytes));
    ref.data = reinterpret_cast<const uint8_t*>(copy->bytes.get());
    weight.state = std::move(copy);
    return BAO_OK;
  }

  int32_t weights_ready(double) override { return BAO_OK; }

  int32_t step_made(Step&, const char*) override { return BAO_OK; }
  std::mutex& lock() override { return executor_.lock(); }
  bool full() override { return executor_.full(); }
  int32_t submit(Stream& stream, Graph*, int32_t slot, bool continues, const int32_t committed[4], const char*) override {
    executor_.submit(&stream, slot, stream.step->serial[slot], continues, committed);
    return BAO_OK;
  }
  void wait(Stream& stream, int32_t slot, double timeout_ms) override { executor_.wait(&stream.slot_state[slot], timeout_ms); }
  void poll(Stream&, int32_t) override { executor_.poll(); }
  void finish() override {
    while (!executor_.idle()) executor_.wait(nullptr, 1e9);
  }
  void stop() override {
    executor_.cancel_all();
    finish();
  }
  // A recorded step costs the CPU nothing to replay: there is nothing to instantiate, and bao_caps says so.
  int32_t graph_made(Graph&, Stream&, const char* f) override { return fail(BAO_UNSUPPORTED, 0, f, "the CPU backend has no graphs"); }

 private:
  Executor executor_;
};

const OpTable* table_of(int32_t isa) {
  switch (isa) {
#if defined(__x86_64__)
    case BAO_ISA_AVX2: return fast_ops_avx2();
    case BAO_ISA_AVX512: return fast_ops_avx512();
#elif defined(__aarch64__)
    case BAO_ISA_NEON: return fast_ops_neon();
#endif
    default: return fast_ops_base();
  }
}

const char* precision_name(int32_t precision) {
  switch (precision) {
    case BAO_EXACT: return "exact";
    case BAO_FAST: return "fast";
    case BAO_FAST_INT8: return "fast_int8";
    default: return "fast_bf16";
  }
}

}  // namespace

const char* backend_name() { return "cpu"; }

int32_t backend_caps() { return BAO_CAP_HOST_MEMORY | BAO_CAP_BATCH_INVARIANT; }

int32_t backend_device_count() { return 1; }

int32_t backend_open(Device& device, int32_t, int32_t threads, int32_t isa, int32_t flags, const char* f) {
  if (threads < 0 || threads > 256) return fail(BAO_INVALID, 2, f, "threads is %d, expected 0 (all cores) to 256", threads);
  bool reference = (flags & BAO_OPEN_REFERENCE) != 0;
  if (device.precision == BAO_FAST_BF16 && !reference) return fail(BAO_UNSUPPORTED, 4, f, "only the plain reference rounds activations to BF16 on the CPU (BAO_OPEN_REFERENCE)");
  if (isa == BAO_ISA_AUTO) isa = best_isa();
  if (!has_isa(isa)) return fail(BAO_UNSUPPORTED, 3, f, "this processor cannot run %s kernels, the best it has is %s", isa_name(isa), isa_name(best_isa()));
  device.threads = threads ? threads : default_threads();
  device.isa = isa;
  device.reference = reference;
  device.ops = reference ? &reference_ops : table_of(isa);
  device.info = "{\"name\":\"" + processor_name() + "\",\"backend\":\"cpu\",\"architecture\":\"" + architecture_name() + "\",\"isa\":\"" +
                isa_name(isa) + "\",\"threads\":" + std::to_string(device.threads) + ",\"precision\":\"" +
                precision_name(device.precision) + "\",\"reference\":" + (reference ? "true" : "false") +
                ",\"memory\":" + std::to_string(memory_total()) + "}";
  try {
    device.backend = std::make_unique<CpuBackend>(device.threads);
  } catch (const std::system_error&) {
    return fail(BAO_OUT_OF_MEMORY, 2, f, "the system gives no more threads (asked for %d)", device.threads);
  }
  return BAO_OK;
}

}  // namespace bao
