// KV pools: address space reserved once, backed page by page, so that no recorded address ever moves.
#include "backend.h"

namespace bao {

Pool::~Pool() {
  if (!base || !device) return;
  device->backend->pool_release(*this);
  device->bytes_kv -= int64_t(committed) * ref.page_stride * ref.layers;
}

namespace {

int64_t rounded_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

bao_handle create_pool(bao_handle device_handle, int32_t table, int32_t layers, int32_t kv_heads, int32_t head_dim, int32_t dtype, int32_t layout, int32_t rotated, int32_t max_pages) {
  const char* f = "bao_kv_pool_create";
  Device* device = need<Device>(device_handle, Kind::device, 1, f);
  if (!device) return 0;
  if (table < 0 || table > 3) return fail(BAO_INVALID, 2, f, "table is %d, expected 0 to 3", table), 0;
  if (layers < 1 || layers > 4096) return fail(BAO_INVALID, 3, f, "layers is %d, expected 1 to 4096", layers), 0;
  if (kv_heads < 1 || kv_heads > 4096) return fail(BAO_INVALID, 4, f, "kvHeads is %d, expected 1 to 4096", kv_heads), 0;
  if (dtype != BAO_F32 && dtype != BAO_F16 && dtype != BAO_Q8_0) return fail(BAO_INVALID, 6, f, "dtype is %d, expected F32, F16 or Q8_0", dtype), 0;
  int32_t multiple = dtype == BAO_Q8_0 ? 32 : 2;
  if (head_dim < multiple || head_dim % multiple != 0 || head_dim > 4096) return fail(BAO_INVALID, 5, f, "headDim is %d, expected a multiple of %d up to 4096", head_dim, multiple), 0;
  if (layout == BAO_KV_SHARED) return fail(BAO_UNSUPPORTED, 7, f, "this backend has the PLAIN layout only"), 0;
  if (layout != BAO_KV_PLAIN) return fail(BAO_INVALID, 7, f, "layout is %d, expected BAO_KV_PLAIN", layout), 0;
  if (rotated != 0) return fail(BAO_INVALID, 8, f, "rotated is %d, expected 0 for the PLAIN layout", rotated), 0;
  if (max_pages < 1 || max_pages > 1 << 24) return fail(BAO_INVALID, 9, f, "maxPages is %d, expected 1 to %d", max_pages, 1 << 24), 0;

  auto pool = std::make_unique<Pool>();
  pool->kind = Kind::pool;
  PoolRef& ref = pool->ref;
  int64_t values = int64_t(BAO_KV_PAGE_TOKENS) * head_dim;
  ref.scales_offset = dtype == BAO_Q8_0 ? rounded_up(values, 128) : 0;
  ref.plane_bytes = rounded_up(dtype == BAO_Q8_0 ? ref.scales_offset + values / 32 * 4 : values * (dtype == BAO_F32 ? 4 : 2), 128);
  ref.page_stride = 2 * kv_heads * ref.plane_bytes;                                     // below 2^34
  ref.layer_stride = rounded_up(ref.page_stride * max_pages, device->backend->pool_alignment());  // below 2^58
  ref.table = table;
  ref.layers = layers;
  ref.kv_heads = kv_heads;
  ref.head_dim = head_dim;
  ref.dtype = dtype;
  int64_t reserved;
  if (__builtin_mul_overflow(ref.layer_stride, int64_t(layers), &reserved)) reserved = INT64_MAX;
  pool->base = ref.base = reserved == INT64_MAX ? nullptr : device->backend->pool_reserve(*pool, ref.layer_stride, layers);
  if (!pool->base) return fail(BAO_OUT_OF_MEMORY, 9, f, "no address space for %lld bytes (%d pages of %lld)", static_cast<long long>(reserved), max_pages, static_cast<long long>(ref.page_stride * layers)), 0;
  pool->reserved = reserved;
  pool->table = table;
  pool->max_pages = max_pages;
  pool->layout = layout;
  pool->device = device;
  return handle_new(std::move(pool));
}

int32_t commit(bao_handle handle, int32_t pages) {
  const char* f = "bao_kv_pool_commit";
  Pool* pool = need<Pool>(handle, Kind::pool, 1, f);
  if (!pool) return invalid_argument(1);
  if (pages < 0 || pages > pool->max_pages) return fail(BAO_INVALID, 2, f, "%d pages, expected 0 to the pool's %d", pages, pool->max_pages);
  if (pages <= pool->committed) return BAO_OK;
  const PoolRef& ref = pool->ref;
  int64_t more = int64_t(pages - pool->committed) * ref.page_stride * ref.layers;
  Backend& backend = *pool->device->backend;
  if (more > backend.memory_available()) return fail(BAO_OUT_OF_MEMORY, 2, f, "%lld more bytes asked for, %lld available", static_cast<long long>(more), static_cast<long long>(backend.memory_available()));
  // Allocation units that only part of a KV page covers are backed whole.
  int64_t unit = backend.pool_alignment();
  int64_t before = rounded_up(pool->committed * ref.page_stride, unit), after = rounded_up(pages * ref.page_stride, unit);
  if (after > before && backend.pool_back(*pool, before, after) != BAO_OK) return fail(BAO_OUT_OF_MEMORY, 2, f, "the system refuses %lld more bytes", static_cast<long long>(more));
  pool->committed = pages;
  pool->device->bytes_kv += more;
  return BAO_OK;
}

int32_t check_page(const Pool& pool, int argument, int32_t page, const char* f) {
  if (page >= 0 && page < pool.committed) return BAO_OK;
  return fail(BAO_INVALID, argument, f, "page %d, expected 0 to %d: the pages that are backed", page, pool.committed - 1);
}

int32_t copy_page(bao_handle handle, int32_t destination, int32_t source, int32_t tokens) {
  const char* f = "bao_kv_page_copy";
  Pool* pool = need<Pool>(handle, Kind::pool, 1, f);
  if (!pool) return invalid_argument(1);
  if (int32_t status = check_page(*pool, 2, destination, f)) return status;
  if (int32_t status = check_page(*pool, 3, source, f)) return status;
  if (tokens < 0 || tokens > BAO_KV_PAGE_TOKENS) return fail(BAO_INVALID, 4, f, "%d tokens, expected 0 to %d", tokens, BAO_KV_PAGE_TOKENS);
  if (destination == source || tokens == 0) return BAO_OK;
  return pool->device->backend->page_copy(*pool, destination, source, tokens, f);
}

// Checks for reading or writing a whole page: argument 2 is the page, 3 the host address, 4 the size.
int32_t whole_page(bao_handle handle, int32_t page, const void* host, double bytes, const char* f, Pool** out) {
  Pool* pool = need<Pool>(handle, Kind::pool, 1, f);
  if (!pool) return invalid_argument(1);
  if (int32_t status = check_page(*pool, 2, page, f)) return status;
  if (!host) return fail(BAO_INVALID, 3, f, "the host address is null");
  int64_t expected = pool->ref.page_stride * pool->ref.layers;
  if (bytes != static_cast<double>(expected)) return fail(BAO_INVALID, 4, f, "%.17g bytes, expected the page's %lld", bytes, static_cast<long long>(expected));
  pool->device->finish();
  *out = pool;
  return BAO_OK;
}

}  // namespace
}  // namespace bao

using namespace bao;

extern "C" {

bao_handle bao_kv_pool_create(bao_handle device, int32_t table, int32_t layers, int32_t kv_heads, int32_t head_dim, int32_t dtype, int32_t layout, int32_t rotated, int32_t max_pages) {
  return guarded("bao_kv_pool_create", [&]() -> bao_handle { return create_pool(device, table, layers, kv_heads, head_dim, dtype, layout, rotated, max_pages); });
}

int32_t bao_kv_pool_free(bao_handle handle) {
  return guarded("bao_kv_pool_free", [&]() -> int32_t {
    Pool* pool = need<Pool>(handle, Kind::pool, 1, "bao_kv_pool_free");
    if (!pool) return invalid_argument(1);
    pool->device->finish();
    handle_free(handle);
    return BAO_OK;
  });
}

int32_t bao_kv_pool_commit(bao_handle pool, int32_t pages) {
  return guarded("bao_kv_pool_commit", [&]() -> int32_t { return commit(pool, pages); });
}

double bao_kv_page_bytes(bao_handle handle) {
  Pool* pool = need<Pool>(handle, Kind::pool, 1, "bao_kv_page_bytes");
  return pool ? static_cast<double>(pool->ref.page_stride * pool->ref.layers) : 0;
}

int32_t bao_kv_page_copy(bao_handle pool, int32_t destination, int32_t source, int32_t tokens) {
  return guarded("bao_kv_page_copy", [&]() -> int32_t { return copy_page(pool, destination, source, tokens); });
}

int32_t bao_kv_page_read(bao_handle handle, int32_t page, void* destination, double bytes) {
  return guarded("bao_kv_page_read", [&]() -> int32_t {
    Pool* pool = nullptr;
    if (int32_t status = whole_page(handle, page, destination, bytes, "bao_kv_page_read", &pool)) return status;
    int64_t part = pool->ref.page_stride;
    for (int32_t layer = 0; layer < pool->ref.layers; layer++) {
      if (int32_t status = pool->device->backend->read(static_cast<char*>(destination) + layer * part, pool->ref.plane(layer, page, 0, false), part, "bao_kv_page_read")) return status;
    }
    return BAO_OK;
  });
}

int32_t bao_kv_page_write(bao_handle handle, int32_t page, const void* source, double bytes) {
  return guarded("bao_kv_page_write", [&]() -> int32_t {
    Pool* pool = nullptr;
    if (int32_t status = whole_page(handle, page, source, bytes, "bao_kv_page_write", &pool)) return status;
    int64_t part = pool->ref.page_stride;
    for (int32_t layer = 0; layer < pool->ref.layers; layer++) {
      if (int32_t status = pool->device->backend->write(pool->ref.plane(layer, page, 0, false), static_cast<const char*>(source) + layer * part, part, "bao_kv_page_write")) return status;
    }
    return BAO_OK;
  });
}

}  // extern "C"
