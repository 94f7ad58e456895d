// Weights: checked ranges of a registered mapping. What the device makes of them is the backend's business.
#include "../common/dequantize.h"
#include "backend.h"

namespace bao {

Weight::~Weight() {
  if (Map* source = handle_as<Map>(map, Kind::map)) source->weights--;
  if (device) device->bytes_weights -= bytes;
}

namespace {

constexpr int32_t all_uses = BAO_USE_MATMUL | BAO_USE_ROWS | BAO_USE_VECTOR | BAO_USE_HOST;

bao_handle create_map(bao_handle device_handle, double address_given, double bytes_given) {
  const char* f = "bao_map_create";
  Device* device = need<Device>(device_handle, Kind::device, 1, f);
  if (!device) return 0;
  int64_t address, bytes;
  if (!to_size(address_given, &address) || address == 0) return fail(BAO_INVALID, 2, f, "address is %.17g, expected one inside an open bao_file", address_given), 0;
  if (!to_size(bytes_given, &bytes) || bytes == 0) return fail(BAO_INVALID, 3, f, "bytes is %.17g, expected a whole number from 1", bytes_given), 0;
  auto map = std::make_unique<Map>();
  map->kind = Kind::map;
  map->device = device;
  map->bytes = bytes;
  if (!device->backend->map_source(address, bytes, &map->mapping, f)) return 0;
  map->data = reinterpret_cast<const uint8_t*>(static_cast<uintptr_t>(address));
  return handle_new(std::move(map));
}

bao_handle create_weight(bao_handle device_handle, bao_handle map_handle, double offset_given, int32_t dtype, int32_t rows, int32_t columns, int32_t experts, int32_t use) {
  const char* f = "bao_weight_create";
  Device* device = need<Device>(device_handle, Kind::device, 1, f);
  if (!device) return 0;
  Map* map = need<Map>(map_handle, Kind::map, 2, f);
  if (!map) return 0;
  if (map->device != device) return fail(BAO_INVALID, 2, f, "the map belongs to another device"), 0;
  int64_t offset;
  if (!to_size(offset_given, &offset)) return fail(BAO_INVALID, 3, f, "offset is %.17g, expected a whole number", offset_given), 0;
  if (!dtype_name(dtype)) return fail(BAO_INVALID, 4, f, "type %d is no weight type", dtype), 0;
  if (rows < 1) return fail(BAO_INVALID, 5, f, "rows is %d, expected at least 1", rows), 0;
  if (columns < 1) return fail(BAO_INVALID, 6, f, "columns is %d, expected at least 1", columns), 0;
  if (experts < 1) return fail(BAO_INVALID, 7, f, "experts is %d, expected at least 1", experts), 0;
  if (use == 0 || (use & ~all_uses) != 0) return fail(BAO_INVALID, 8, f, "use is %d, expected a combination of BAO_USE_*", use), 0;
  int64_t row = row_bytes(dtype, columns);
  if (row == 0) return fail(BAO_INVALID, 6, f, "%d columns are no multiple of the %d elements of a %s block", columns, block_elements(dtype), dtype_name(dtype)), 0;
  bool vector = (use & BAO_USE_VECTOR) != 0;
  if (vector && dtype != BAO_F32 && dtype != BAO_F16 && dtype != BAO_BF16) return fail(BAO_INVALID, 4, f, "a VECTOR weight is F32, F16 or BF16, found %s", dtype_name(dtype)), 0;
  if (vector && (rows != 1 || experts != 1)) return fail(BAO_INVALID, 5, f, "a VECTOR weight has one row, found %d x %d", experts, rows), 0;
  int64_t expert = row * rows;  // both fit: row < 2^34
  int64_t bytes;
  if (__builtin_mul_overflow(expert, int64_t(experts), &bytes) || offset > map->bytes || bytes > map->bytes - offset) {
    return fail(BAO_INVALID, 3, f, "%s [%d][%d][%d] at offset %lld leaves the map's %lld bytes", dtype_name(dtype), experts, rows, columns,
                static_cast<long long>(offset), static_cast<long long>(map->bytes)), 0;
  }
  auto weight = std::make_unique<Weight>();
  weight->kind = Kind::weight;
  const uint8_t* data = map->data + offset;
  if (vector) {
    weight->vector.resize(static_cast<size_t>(columns));
    dequantize_row(dtype, data, weight->vector.data(), columns);
  }
  weight->ref = WeightRef{data, dtype, rows, columns, experts, row, expert, nullptr, 0};
  weight->use = use;
  if (device->backend->weight_made(*weight, data, f) != BAO_OK) return 0;
  weight->map = map_handle;
  map->weights++;
  weight->bytes = bytes;
  weight->device = device;
  device->bytes_weights += bytes;
  return handle_new(std::move(weight));
}

bao_handle create_vector(bao_handle device_handle, const void* values, int32_t length) {
  const char* f = "bao_vector_create";
  Device* device = need<Device>(device_handle, Kind::device, 1, f);
  if (!device) return 0;
  if (!values) return fail(BAO_INVALID, 2, f, "the address is null"), 0;
  if (length < 1) return fail(BAO_INVALID, 3, f, "length is %d, expected at least 1", length), 0;
  auto weight = std::make_unique<Weight>();
  weight->kind = Kind::weight;
  weight->vector.resize(static_cast<size_t>(length));
  weight->bytes = int64_t(length) * 4;
  std::memcpy(weight->vector.data(), values, static_cast<size_t>(weight->bytes));
  weight->ref = WeightRef{reinterpret_cast<const uint8_t*>(weight->vector.data()), BAO_F32, 1, length, 1, weight->bytes, weight->bytes, nullptr, 0};
  weight->use = BAO_USE_VECTOR;
  if (device->backend->weight_made(*weight, nullptr, f) != BAO_OK) return 0;
  weight->device = device;
  device->bytes_weights += weight->bytes;
  return handle_new(std::move(weight));
}

int32_t set_scale(bao_handle weight_handle, bao_handle factors_handle) {
  const char* f = "bao_weight_scale";
  Weight* weight = need<Weight>(weight_handle, Kind::weight, 1, f);
  if (!weight) return invalid_argument(1);
  Weight* factors = need<Weight>(factors_handle, Kind::weight, 2, f);
  if (!factors) return invalid_argument(2);
  if (factors->device != weight->device) return fail(BAO_INVALID, 2, f, "the factors belong to another device");
  if (factors->vector.empty()) return fail(BAO_INVALID, 2, f, "the factors are no VECTOR weight");
  if (weight->factors != 0) return fail(BAO_INVALID, 1, f, "the weight has factors already");
  if (weight->named) return fail(BAO_INVALID, 1, f, "a recording names the weight already: factors come before");
  int32_t count = factors->ref.columns;
  if (count != 1 && count != weight->ref.experts) return fail(BAO_INVALID, 2, f, "%d factors for %d experts, expected 1 or %d", count, weight->ref.experts, weight->ref.experts);
  weight->ref.factors = factors->values;
  weight->ref.factor_count = count;
  weight->factors = factors_handle;
  return BAO_OK;
}

template <class T>
int32_t free_object(bao_handle handle, Kind kind, const char* f) {
  return guarded(f, [&]() -> int32_t {
    T* object = need<T>(handle, kind, 1, f);
    if (!object) return invalid_argument(1);
    object->device->finish();
    handle_free(handle);
    return BAO_OK;
  });
}

}  // namespace
}  // namespace bao

using namespace bao;

extern "C" {

bao_handle bao_map_create(bao_handle device, double address, double bytes) {
  return guarded("bao_map_create", [&]() -> bao_handle { return create_map(device, address, bytes); });
}

int32_t bao_map_free(bao_handle handle) {
  Map* map = handle_as<Map>(handle, Kind::map);
  if (map && map->weights > 0) return fail(BAO_INVALID, 1, "bao_map_free", "%d weights of the map exist", map->weights);
  return free_object<Map>(handle, Kind::map, "bao_map_free");
}

bao_handle bao_weight_create(bao_handle device, bao_handle map, double offset, int32_t dtype, int32_t rows, int32_t columns, int32_t experts, int32_t use) {
  return guarded("bao_weight_create", [&]() -> bao_handle { return create_weight(device, map, offset, dtype, rows, columns, experts, use); });
}

bao_handle bao_vector_create(bao_handle device, const void* values, int32_t length) {
  return guarded("bao_vector_create", [&]() -> bao_handle { return create_vector(device, values, length); });
}

int32_t bao_weight_free(bao_handle weight) { return free_object<Weight>(weight, Kind::weight, "bao_weight_free"); }

int32_t bao_weight_scale(bao_handle weight, bao_handle factors) {
  return guarded("bao_weight_scale", [&]() -> int32_t { return set_scale(weight, factors); });
}

int32_t bao_weights_ready(bao_handle handle, double timeout_ms) {
  return guarded("bao_weights_ready", [&]() -> int32_t {
    Device* device = need<Device>(handle, Kind::device, 1, "bao_weights_ready");
    return device ? device->backend->weights_ready(timeout_ms > 0 ? timeout_ms : 0) : invalid_argument(1);
  });
}

}  // extern "C"
