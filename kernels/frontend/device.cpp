// Opening and closing a device, and what it says about itself.
#include "../common/dequantize.h"
#include "backend.h"

namespace bao {

Device::Device() = default;
Device::~Device() = default;

void Device::finish() {
  if (backend) backend->finish();
}

namespace {

bao_handle open(int32_t index, int32_t threads, int32_t isa, int32_t precision, int32_t flags) {
  const char* f = "bao_device_open";
  int32_t count = backend_device_count();
  if (count == 0) return 0;
  if (index < 0 || index >= count) return fail(BAO_INVALID, 1, f, "device %d does not exist: this backend has %d, the first is number 0", index, count), 0;
  if (isa < BAO_ISA_AUTO || isa > BAO_ISA_NEON) return fail(BAO_INVALID, 3, f, "isa is %d, expected a BAO_ISA_* number", isa), 0;
  if (precision < BAO_EXACT || precision > BAO_FAST_BF16) return fail(BAO_INVALID, 4, f, "precision is %d, expected BAO_EXACT, BAO_FAST, BAO_FAST_INT8 or BAO_FAST_BF16", precision), 0;
  if ((flags & ~(BAO_OPEN_REFERENCE | BAO_OPEN_DETERMINISTIC)) != 0) return fail(BAO_INVALID, 5, f, "flags is %d, expected a combination of BAO_OPEN_*", flags), 0;
  auto device = std::make_unique<Device>();
  device->kind = Kind::device;
  device->device = device.get();
  device->precision = precision;
  if (backend_open(*device, index, threads, isa, flags, f) != BAO_OK) return 0;
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

const char* bao_backend(void) { return backend_name(); }

int32_t bao_device_count(void) {
  return guarded("bao_device_count", []() -> int32_t { return backend_device_count(); });
}

bao_handle bao_device_open(int32_t index, int32_t threads, int32_t isa, int32_t precision, int32_t flags) {
  return guarded("bao_device_open", [&]() -> bao_handle { return open(index, threads, isa, precision, flags); });
}

int32_t bao_device_close(bao_handle handle) {
  return guarded("bao_device_close", [&]() -> int32_t {
    Device* device = need<Device>(handle, Kind::device, 1, "bao_device_close");
    if (!device) return invalid_argument(1);
    device->backend->stop();
    handle_free_all(device);
    handle_free(handle);
    return BAO_OK;
  });
}

const char* bao_device_info(bao_handle handle) {
  Device* device = need<Device>(handle, Kind::device, 1, "bao_device_info");
  return device ? device->info.c_str() : "";
}

int32_t bao_caps(bao_handle handle) { return need<Device>(handle, Kind::device, 1, "bao_caps") ? backend_caps() : 0; }

int32_t bao_supports(bao_handle handle, int32_t op, int32_t dtype, int32_t d0, int32_t d1) {
  if (!need<Device>(handle, Kind::device, 1, "bao_supports")) return 0;
  return supports(op, dtype, d0, d1);
}

double bao_memory(bao_handle handle, int32_t what) {
  return guarded("bao_memory", [&]() -> double {
    Device* device = need<Device>(handle, Kind::device, 1, "bao_memory");
    if (!device) return -1;
    switch (what) {
      case BAO_MEMORY_TOTAL: return static_cast<double>(device->backend->memory_total());
      case BAO_MEMORY_FREE: return static_cast<double>(device->backend->memory_available());
      case BAO_MEMORY_BUFFERS: return static_cast<double>(device->bytes_buffers.load());
      case BAO_MEMORY_KV: return static_cast<double>(device->bytes_kv.load());
      case BAO_MEMORY_SCRATCH: return static_cast<double>(device->bytes_scratch.load());
      case BAO_MEMORY_WEIGHTS: return static_cast<double>(device->bytes_weights.load());
      default: fail(BAO_INVALID, 2, "bao_memory", "what is %d, expected a BAO_MEMORY_* number", what); return -1;
    }
  });
}

// Order between devices: no backend has it yet, and bao_caps says so.
bao_handle bao_event_create(bao_handle device) {
  if (need<Device>(device, Kind::device, 1, "bao_event_create")) fail(BAO_UNSUPPORTED, 0, "bao_event_create", "this backend has no events (BAO_CAP_EVENTS)");
  return 0;
}

int32_t bao_event_free(bao_handle) { return fail(BAO_UNSUPPORTED, 0, "bao_event_free", "this backend has no events (BAO_CAP_EVENTS)"); }

int32_t bao_event_record(bao_handle, bao_handle) { return fail(BAO_UNSUPPORTED, 0, "bao_event_record", "this backend has no events (BAO_CAP_EVENTS)"); }

int32_t bao_event_wait(bao_handle, bao_handle) { return fail(BAO_UNSUPPORTED, 0, "bao_event_wait", "this backend has no events (BAO_CAP_EVENTS)"); }

int32_t bao_peer_copy(bao_handle, bao_handle, bao_handle) { return fail(BAO_UNSUPPORTED, 0, "bao_peer_copy", "this backend has no peers (BAO_CAP_EVENTS)"); }

}  // extern "C"
