// Buffers and views of them.
#include "backend.h"

namespace bao {

Buffer::~Buffer() {
  if (!device) return;
  device->backend->release(data, bytes, place == BAO_BUFFER_DEVICE ? Place::device : Place::host_visible);
  device->bytes_buffers -= bytes;
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
  Place place = kind == BAO_BUFFER_DEVICE ? Place::device : Place::host_visible;
  buffer->data = device->backend->allocate(bytes, place);
  if (!buffer->data) return fail(BAO_OUT_OF_MEMORY, 2, f, "%lld bytes asked for, %lld available", static_cast<long long>(bytes), static_cast<long long>(device->backend->memory_available())), 0;
  buffer->address = device->backend->host_addressable(place) ? buffer->data : nullptr;
  buffer->bytes = bytes;
  buffer->place = kind;
  buffer->device = device;
  device->bytes_buffers += bytes;
  return handle_new(std::move(buffer));
}

// Checks a transfer and waits for the work that may touch the buffer.
int32_t range_of(bao_handle handle, double offset_given, const void* host, double bytes_given, Buffer** out, char** range, int64_t* bytes, const char* f) {
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
  *out = buffer;
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
  return buffer ? static_cast<double>(reinterpret_cast<uintptr_t>(buffer->address)) : 0;
}

int32_t bao_buffer_write(bao_handle handle, double offset, const void* source, double bytes_given) {
  return guarded("bao_buffer_write", [&]() -> int32_t {
    int64_t bytes = 0;
    char* range = nullptr;
    Buffer* buffer = nullptr;
    int32_t status = range_of(handle, offset, source, bytes_given, &buffer, &range, &bytes, "bao_buffer_write");
    if (status != BAO_OK) return status;
    return buffer->device->backend->write(range, source, bytes, "bao_buffer_write");
  });
}

int32_t bao_buffer_read(bao_handle handle, double offset, void* destination, double bytes_given) {
  return guarded("bao_buffer_read", [&]() -> int32_t {
    int64_t bytes = 0;
    char* range = nullptr;
    Buffer* buffer = nullptr;
    int32_t status = range_of(handle, offset, destination, bytes_given, &buffer, &range, &bytes, "bao_buffer_read");
    if (status != BAO_OK) return status;
    return buffer->device->backend->read(destination, range, bytes, "bao_buffer_read");
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
