// Buffers, views of them, and the memory of this machine.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__APPLE__)
#include <mach/mach.h>
#include <sys/sysctl.h>
#endif

#include "core.h"

namespace bao {

// Allocations below this are not worth asking the system how much it has left.
constexpr int64_t small_allocation = int64_t(16) << 20;

void* pages_allocate(int64_t bytes) {
  if (bytes > small_allocation && bytes > memory_available()) return nullptr;
  int flags = MAP_PRIVATE | MAP_ANONYMOUS;
  void* pages = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, flags, -1, 0);
  return pages == MAP_FAILED ? nullptr : pages;
}

void pages_free(void* pages, int64_t bytes) {
  if (pages) munmap(pages, static_cast<size_t>(bytes));
}

Buffer::~Buffer() {
  pages_free(data, bytes);
  if (device) device->bytes_buffers -= bytes;
}

namespace {

#if defined(__linux__)
// A file that holds one number, -1 when it is absent or says "max".
int64_t number_in(const std::string& path) {
  long long value = -1;
  if (std::FILE* file = std::fopen(path.c_str(), "re")) {
    if (std::fscanf(file, "%lld", &value) != 1) value = -1;
    std::fclose(file);
  }
  return value;
}

int64_t meminfo(const char* key) {
  long long kibibytes = -1;
  if (std::FILE* file = std::fopen("/proc/meminfo", "re")) {
    char line[256];
    size_t length = std::strlen(key);
    while (kibibytes < 0 && std::fgets(line, sizeof line, file)) {
      if (std::strncmp(line, key, length) == 0 && line[length] == ':') kibibytes = std::atoll(line + length + 1);
    }
    std::fclose(file);
  }
  return kibibytes < 0 ? -1 : kibibytes * 1024;
}

// The cgroup's limit and use, of the hierarchy's root as a container sees it; -1 when there is none.
void cgroup_memory(int64_t* limit, int64_t* used) {
  *limit = number_in("/sys/fs/cgroup/memory.max");
  *used = number_in("/sys/fs/cgroup/memory.current");
  if (*limit < 0) {
    *limit = number_in("/sys/fs/cgroup/memory/memory.limit_in_bytes");
    *used = number_in("/sys/fs/cgroup/memory/memory.usage_in_bytes");
  }
}
#endif

}  // namespace

int64_t memory_total() {
#if defined(__APPLE__)
  int64_t bytes = 0;
  size_t size = sizeof bytes;
  return sysctlbyname("hw.memsize", &bytes, &size, nullptr, 0) == 0 ? bytes : 0;
#else
  int64_t total = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  int64_t limit, used;
  cgroup_memory(&limit, &used);
  return limit > 0 ? std::min(total, limit) : total;
#endif
}

int64_t memory_available() {
#if defined(__APPLE__)
  vm_statistics64_data_t statistics;
  mach_msg_type_number_t count = HOST_VM_INFO64_COUNT;
  if (host_statistics64(mach_host_self(), HOST_VM_INFO64, reinterpret_cast<host_info64_t>(&statistics), &count) != KERN_SUCCESS) return memory_total();
  int64_t pages = int64_t(statistics.free_count) + statistics.inactive_count + statistics.purgeable_count;
  return pages * sysconf(_SC_PAGESIZE);
#else
  int64_t available = meminfo("MemAvailable");
  if (available < 0) available = static_cast<int64_t>(sysconf(_SC_AVPHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  int64_t limit, used;
  cgroup_memory(&limit, &used);
  // The group's use includes page cache, which the kernel gives back before it refuses: count only what lies beyond the limit's half.
  if (limit > 0 && used >= 0) available = std::min(available, std::max(limit - used, limit / 2));
  return available;
#endif
}

namespace {

bao_handle create_buffer(bao_handle device_handle, double bytes_given, int32_t kind) {
  const char* f = "bao_buffer_create";
  Device* device = need<Device>(device_handle, Kind::device, 1, f);
  if (!device) return 0;
  int64_t bytes;
  if (!to_size(bytes_given, &bytes) || bytes == 0) return fail(BAO_INVALID, 2, f, "bytes is %.17g, expected a whole number from 1", bytes_given), 0;
  if (kind != BAO_BUFFER_DEVICE && kind != BAO_BUFFER_HOST_VISIBLE) return fail(BAO_INVALID, 3, f, "kind is %d, expected BAO_BUFFER_DEVICE or BAO_BUFFER_HOST_VISIBLE", kind), 0;
  auto buffer = std::make_unique<Buffer>();
  buffer->kind = Kind::buffer;
  buffer->data = static_cast<char*>(pages_allocate(bytes));
  if (!buffer->data) return fail(BAO_OUT_OF_MEMORY, 2, f, "%lld bytes asked for, %lld available", static_cast<long long>(bytes), static_cast<long long>(memory_available())), 0;
  buffer->bytes = bytes;
  buffer->device = device;
  device->bytes_buffers += bytes;
  return handle_new(std::move(buffer));
}

// Checks a transfer and waits for the work that may touch the buffer.
int32_t range_of(bao_handle handle, double offset_given, const void* host, double bytes_given, char** range, int64_t* bytes, const char* f) {
  Buffer* buffer = need<Buffer>(handle, Kind::buffer, 1, f);
  if (!buffer) return invalid_argument(1);
  int64_t offset;
  if (!to_size(offset_given, &offset) || offset > buffer->bytes) {
    return fail(BAO_INVALID, 2, f, "offset %.17g lies outside the buffer's %lld bytes", offset_given, static_cast<long long>(buffer->bytes));
  }
  if (!host) return fail(BAO_INVALID, 3, f, "the host address is null");
  if (!to_size(bytes_given, bytes) || *bytes > buffer->bytes - offset) {
    return fail(BAO_INVALID, 4, f, "%.17g bytes at offset %lld leave the buffer's %lld bytes", bytes_given, static_cast<long long>(offset), static_cast<long long>(buffer->bytes));
  }
  buffer->device->finish();
  *range = buffer->data + offset;
  return BAO_OK;
}

bao_handle create_view(bao_handle buffer_handle, double offset_given, int32_t dtype, int32_t rows_of, int32_t d0, int32_t d1, int32_t d2, double stride_given) {
  const char* f = "bao_view_create";
  Buffer* buffer = need<Buffer>(buffer_handle, Kind::buffer, 1, f);
  if (!buffer) return 0;
  int64_t offset, stride;
  if (!to_size(offset_given, &offset) || offset % 4 != 0) return fail(BAO_INVALID, 2, f, "offset is %.17g, expected a multiple of 4", offset_given), 0;
  if (dtype != BAO_F32 && dtype != BAO_I32) return fail(BAO_INVALID, 3, f, "dtype is %d, expected BAO_F32 or BAO_I32", dtype), 0;
  if (rows_of < BAO_ROWS_FIXED || rows_of > BAO_ROWS_OUTPUT) return fail(BAO_INVALID, 4, f, "rowsOf is %d, expected a BAO_ROWS_* number", rows_of), 0;
  const int32_t dims[3] = {d0, d1, d2};
  for (int i = 0; i < 3; i++) {
    if (dims[i] < 1) return fail(BAO_INVALID, 5 + i, f, "d%d is %d, expected at least 1", i, dims[i]), 0;
  }
  int64_t columns = int64_t(d1) * d2;  // below 2^62
  if (columns > INT32_MAX) return fail(BAO_INVALID, 7, f, "a row of %d x %d elements is too long", d1, d2), 0;
  int64_t row = columns * 4;
  if (!to_size(stride_given, &stride) || stride % 4 != 0 || (stride != 0 && stride < row)) {
    return fail(BAO_INVALID, 8, f, "row stride is %.17g, expected 0 or a multiple of 4 of at least %lld", stride_given, static_cast<long long>(row)), 0;
  }
  if (stride == 0) stride = row;
  int64_t end;
  if (__builtin_mul_overflow(int64_t(d0) - 1, stride, &end) || __builtin_add_overflow(end, row, &end) || __builtin_add_overflow(end, offset, &end) || end > buffer->bytes) {
    return fail(BAO_INVALID, 5, f, "%d rows of %d x %d elements, %lld bytes apart, from byte %lld leave the buffer's %lld bytes", d0, d1, d2,
                static_cast<long long>(stride), static_cast<long long>(offset), static_cast<long long>(buffer->bytes)), 0;
  }
  auto view = std::make_unique<View>();
  view->kind = Kind::view;
  view->device = buffer->device;
  view->buffer = buffer_handle;
  view->tensor = Tensor{buffer->data + offset, stride, rows_of, dtype, d0, d1, d2};
  return handle_new(std::move(view));
}

}  // namespace
}  // namespace bao

using namespace bao;

extern "C" {

bao_handle bao_buffer_create(bao_handle device, double bytes, int32_t kind) {
  return guarded("bao_buffer_create", [&]() -> bao_handle { return create_buffer(device, bytes, kind); });
}

int32_t bao_buffer_free(bao_handle handle) {
  return guarded("bao_buffer_free", [&]() -> int32_t {
    Buffer* buffer = need<Buffer>(handle, Kind::buffer, 1, "bao_buffer_free");
    if (!buffer) return invalid_argument(1);
    buffer->device->finish();
    handle_free(handle);
    return BAO_OK;
  });
}

double bao_buffer_address(bao_handle handle) {
  Buffer* buffer = need<Buffer>(handle, Kind::buffer, 1, "bao_buffer_address");
  return buffer ? static_cast<double>(reinterpret_cast<uintptr_t>(buffer->data)) : 0;
}

int32_t bao_buffer_write(bao_handle handle, double offset, const void* source, double bytes_given) {
  return guarded("bao_buffer_write", [&]() -> int32_t {
    int64_t bytes = 0;
    char* range = nullptr;
    int32_t status = range_of(handle, offset, source, bytes_given, &range, &bytes, "bao_buffer_write");
    if (status != BAO_OK) return status;
    std::memmove(range, source, static_cast<size_t>(bytes));
    return BAO_OK;
  });
}

int32_t bao_buffer_read(bao_handle handle, double offset, void* destination, double bytes_given) {
  return guarded("bao_buffer_read", [&]() -> int32_t {
    int64_t bytes = 0;
    char* range = nullptr;
    int32_t status = range_of(handle, offset, destination, bytes_given, &range, &bytes, "bao_buffer_read");
    if (status != BAO_OK) return status;
    std::memmove(destination, range, static_cast<size_t>(bytes));
    return BAO_OK;
  });
}

bao_handle bao_view_create(bao_handle buffer, double offset, int32_t dtype, int32_t rows_of, int32_t d0, int32_t d1, int32_t d2, double stride) {
  return guarded("bao_view_create", [&]() -> bao_handle { return create_view(buffer, offset, dtype, rows_of, d0, d1, d2, stride); });
}

int32_t bao_view_free(bao_handle view) {
  return guarded("bao_view_free", [&]() -> int32_t {
    if (!need<View>(view, Kind::view, 1, "bao_view_free")) return invalid_argument(1);
    handle_free(view);
    return BAO_OK;
  });
}

}  // extern "C"
