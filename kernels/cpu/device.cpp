// Opening and closing a CPU device, and what it says about itself.
#include <algorithm>
#include <cmath>
#include <system_error>

#include "dequantize.h"
#include "executor.h"
#include "features.h"

namespace bao {

Device::~Device() { delete executor; }

void Device::finish() {
  while (executor && !executor->idle()) executor->wait(nullptr, 1e9);
}

namespace {

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

bao_handle open(int32_t index, int32_t threads, int32_t isa, int32_t precision, int32_t flags) {
  const char* f = "bao_device_open";
  if (index != 0) return fail(BAO_INVALID, 1, f, "device %d does not exist: there is one CPU device, number 0", index), 0;
  if (threads < 0 || threads > 256) return fail(BAO_INVALID, 2, f, "threads is %d, expected 0 (all cores) to 256", threads), 0;
  if (isa < BAO_ISA_AUTO || isa > BAO_ISA_NEON) return fail(BAO_INVALID, 3, f, "isa is %d, expected a BAO_ISA_* number", isa), 0;
  if (precision < BAO_EXACT || precision > BAO_FAST_BF16) return fail(BAO_INVALID, 4, f, "precision is %d, expected BAO_EXACT, BAO_FAST, BAO_FAST_INT8 or BAO_FAST_BF16", precision), 0;
  if ((flags & ~(BAO_OPEN_REFERENCE | BAO_OPEN_DETERMINISTIC)) != 0) return fail(BAO_INVALID, 5, f, "flags is %d, expected a combination of BAO_OPEN_*", flags), 0;
  bool reference = (flags & BAO_OPEN_REFERENCE) != 0;
  if (precision == BAO_FAST_BF16 && !reference) return fail(BAO_UNSUPPORTED, 4, f, "only the plain reference rounds activations to BF16 on the CPU (BAO_OPEN_REFERENCE)"), 0;
  if (isa == BAO_ISA_AUTO) isa = best_isa();
  if (!has_isa(isa)) return fail(BAO_UNSUPPORTED, 3, f, "this processor cannot run %s kernels, the best it has is %s", isa_name(isa), isa_name(best_isa())), 0;

  auto device = std::make_unique<Device>();
  device->kind = Kind::device;
  device->device = device.get();
  device->threads = threads ? threads : default_threads();
  device->isa = isa;
  device->precision = precision;
  device->reference = reference;
  device->ops = reference ? &reference_ops : table_of(isa);
  device->info = "{\"name\":\"" + processor_name() + "\",\"backend\":\"cpu\",\"architecture\":\"" + architecture_name() + "\",\"isa\":\"" +
                 isa_name(isa) + "\",\"threads\":" + std::to_string(device->threads) + ",\"precision\":\"" +
                 precision_name(precision) + "\",\"reference\":" + (reference ? "true" : "false") +
                 ",\"memory\":" + std::to_string(memory_total()) + "}";
  try {
    device->executor = new Executor(device->threads);
  } catch (const std::system_error&) {
    return fail(BAO_OUT_OF_MEMORY, 2, f, "the system gives no more threads (asked for %d)", device->threads), 0;
  }
  return handle_new(std::move(device));
}

// Whether a matmul, lookup or append of this type and these sizes can be recorded; sets the error text when not.
int32_t supports(int32_t op, int32_t dtype, int32_t d0, int32_t d1) {
  const char* f = "bao_supports";
  if (op <= 0 || op >= BAO_OP_COUNT) return fail(BAO_UNSUPPORTED, 2, f, "op %d is unknown", op), 0;
  if (d0 < 0 || d1 < 0) return fail(BAO_UNSUPPORTED, d0 < 0 ? 4 : 5, f, "sizes are not negative"), 0;
  switch (op) {
    case BAO_OP_EMBED: case BAO_OP_MATMUL: case BAO_OP_MATMUL_GROUP: case BAO_OP_MATMUL_GLU: case BAO_OP_ROUTER:
    case BAO_OP_MOE_MATMUL: case BAO_OP_MOE_MATMUL_GLU: case BAO_OP_MOE_MATMUL_SUM: {
      int32_t block = block_elements(dtype);
      if (block == 0) return fail(BAO_UNSUPPORTED, 3, f, "type %d is no weight type of this library", dtype), 0;
      if (d0 % block != 0) return fail(BAO_UNSUPPORTED, 4, f, "%d columns are no multiple of the %d elements of a %s block", d0, block, dtype_name(dtype)), 0;
      if (op == BAO_OP_ROUTER && d1 > 1024) return fail(BAO_UNSUPPORTED, 5, f, "%d experts, expected at most 1024", d1), 0;
      return 1;
    }
    case BAO_OP_KV_APPEND: case BAO_OP_HEAD_NORM_ROPE_APPEND: case BAO_OP_ATTENTION: {
      if (dtype != BAO_F32 && dtype != BAO_F16 && dtype != BAO_Q8_0) return fail(BAO_UNSUPPORTED, 3, f, "KV type %d, expected F32, F16 or Q8_0", dtype), 0;
      int32_t multiple = dtype == BAO_Q8_0 ? 32 : 2;
      int32_t most = op == BAO_OP_KV_APPEND ? 4096 : 1024;
      if (d0 % multiple != 0 || d0 > most) return fail(BAO_UNSUPPORTED, 4, f, "head_dim %d, expected a multiple of %d up to %d", d0, multiple, most), 0;
      return 1;
    }
    case BAO_OP_TOPK_SOFTMAX:
      if (d0 > 1024) return fail(BAO_UNSUPPORTED, 4, f, "%d experts, expected at most 1024", d0), 0;
      return 1;
    default: return 1;
  }
}

}  // namespace
}  // namespace bao

using namespace bao;

extern "C" {

int32_t bao_abi_version(void) { return BAO_ABI_VERSION; }

const char* bao_backend(void) { return "cpu"; }

int32_t bao_device_count(void) { return 1; }

bao_handle bao_device_open(int32_t index, int32_t threads, int32_t isa, int32_t precision, int32_t flags) {
  return guarded("bao_device_open", [&]() -> bao_handle { return open(index, threads, isa, precision, flags); });
}

int32_t bao_device_close(bao_handle handle) {
  return guarded("bao_device_close", [&]() -> int32_t {
    Device* device = need<Device>(handle, Kind::device, 1, "bao_device_close");
    if (!device) return invalid_argument(1);
    delete device->executor;
    device->executor = nullptr;
    handle_free_all(device);
    handle_free(handle);
    return BAO_OK;
  });
}

const char* bao_device_info(bao_handle handle) {
  Device* device = need<Device>(handle, Kind::device, 1, "bao_device_info");
  return device ? device->info.c_str() : "";
}

int32_t bao_caps(bao_handle handle) {
  if (!need<Device>(handle, Kind::device, 1, "bao_caps")) return 0;
  return BAO_CAP_HOST_MEMORY | BAO_CAP_BATCH_INVARIANT;
}

int32_t bao_supports(bao_handle handle, int32_t op, int32_t dtype, int32_t d0, int32_t d1) {
  if (!need<Device>(handle, Kind::device, 1, "bao_supports")) return 0;
  return supports(op, dtype, d0, d1);
}

double bao_memory(bao_handle handle, int32_t what) {
  return guarded("bao_memory", [&]() -> double {
    Device* device = need<Device>(handle, Kind::device, 1, "bao_memory");
    if (!device) return -1;
    switch (what) {
      case BAO_MEMORY_TOTAL: return static_cast<double>(memory_total());
      case BAO_MEMORY_FREE: return static_cast<double>(memory_available());
      case BAO_MEMORY_BUFFERS: return static_cast<double>(device->bytes_buffers.load());
      case BAO_MEMORY_KV: return static_cast<double>(device->bytes_kv.load());
      case BAO_MEMORY_SCRATCH: return static_cast<double>(device->bytes_scratch.load());
      case BAO_MEMORY_WEIGHTS: return static_cast<double>(device->bytes_weights.load());
      default: fail(BAO_INVALID, 2, "bao_memory", "what is %d, expected a BAO_MEMORY_* number", what); return -1;
    }
  });
}

// Order between devices: this backend has one device and says so in bao_caps.
bao_handle bao_event_create(bao_handle device) {
  if (need<Device>(device, Kind::device, 1, "bao_event_create")) fail(BAO_UNSUPPORTED, 0, "bao_event_create", "the CPU backend has no events (BAO_CAP_EVENTS)");
  return 0;
}

int32_t bao_event_free(bao_handle) { return fail(BAO_UNSUPPORTED, 0, "bao_event_free", "the CPU backend has no events (BAO_CAP_EVENTS)"); }

int32_t bao_event_record(bao_handle, bao_handle) { return fail(BAO_UNSUPPORTED, 0, "bao_event_record", "the CPU backend has no events (BAO_CAP_EVENTS)"); }

int32_t bao_event_wait(bao_handle, bao_handle) { return fail(BAO_UNSUPPORTED, 0, "bao_event_wait", "the CPU backend has no events (BAO_CAP_EVENTS)"); }

int32_t bao_peer_copy(bao_handle, bao_handle, bao_handle) { return fail(BAO_UNSUPPORTED, 0, "bao_peer_copy", "the CPU backend has no peers (BAO_CAP_EVENTS)"); }

// A recorded step costs the CPU nothing to replay: there is nothing to instantiate.
bao_handle bao_graph_create(bao_handle stream, int32_t, int32_t) {
  if (need<Stream>(stream, Kind::stream, 1, "bao_graph_create")) fail(BAO_UNSUPPORTED, 0, "bao_graph_create", "the CPU backend has no graphs (BAO_CAP_GRAPH): submit the stream");
  return 0;
}

int32_t bao_graph_free(bao_handle) { return fail(BAO_UNSUPPORTED, 0, "bao_graph_free", "the CPU backend has no graphs (BAO_CAP_GRAPH)"); }

int32_t bao_graph_submit(bao_handle, int32_t) { return fail(BAO_UNSUPPORTED, 0, "bao_graph_submit", "the CPU backend has no graphs (BAO_CAP_GRAPH)"); }

}  // extern "C"
