// Memory: buffers by address, KV pools as address space that is backed as it grows, weights as windows of the mapped file.
#include <sys/mman.h>

#include <algorithm>

#include "backend.h"

namespace bao {

Bound Memory::find(const void* address, int64_t bytes) const {
  const char* at = static_cast<const char*>(address);
  // Windows of a file may overlap: the nearest that begins before `at` may end too early.
  for (auto i = buffers_.upper_bound(at); i != buffers_.begin();) {
    --i;
    int64_t offset = at - i->first;
    if (offset + bytes <= int64_t(i->second.length)) return {i->second, offset};
  }
  return {nil, 0};
}

void Memory::add(const char* start, id<MTLBuffer> buffer) {
  remove(start);
  buffers_[start] = buffer;
  residency.add(buffer);
}

void Memory::remove(const char* start) { remove(start, start + 1); }

void Memory::remove(const char* from, const char* to) {
  for (auto i = buffers_.lower_bound(from); i != buffers_.end() && i->first < to; i = buffers_.erase(i)) residency.remove(i->second);
}

char* MetalBackend::allocate(int64_t bytes, Place) {
  @autoreleasepool {
    if (bytes > memory_available()) return nullptr;
    id<MTLBuffer> buffer = [device_ newBufferWithLength:NSUInteger(bytes) options:MTLResourceStorageModeShared];
    if (!buffer) return nullptr;
    char* address = static_cast<char*>(buffer.contents);
    std::memset(address, 0, size_t(bytes));
    memory.add(address, buffer);
    return address;
  }
}

void MetalBackend::release(char* address, int64_t, Place) {
  @autoreleasepool {
    memory.remove(address);
  }
}

// What the system lets GPUs have: beyond it, pages are moved in and out while kernels wait.
int64_t MetalBackend::memory_total() { return int64_t(device_.recommendedMaxWorkingSetSize); }

int64_t MetalBackend::memory_available() {
  int64_t left = memory_total() - int64_t(device_.currentAllocatedSize);
  return left > 0 ? left : 0;
}

int32_t MetalBackend::write(char* to, const void* from, int64_t bytes, const char*) {
  std::memcpy(to, from, size_t(bytes));
  return BAO_OK;
}

int32_t MetalBackend::read(void* to, const char* from, int64_t bytes, const char* f) {
  if (int32_t status = usable(f)) return status;
  std::memcpy(to, from, size_t(bytes));
  return BAO_OK;
}

// ---- KV pools. A layer's buffer covers what is backed: a larger one would be made resident whole. It is made anew when the pool grows;
// commands that are under way hold the former one, over the same pages.

char* MetalBackend::pool_reserve(Pool& pool, int64_t stride, int32_t layers) {
  size_t bytes = size_t(stride) * size_t(layers) + page_bytes;
  void* memory = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANON | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  pool.reserved = int64_t(bytes);
  // Where the system's pages are smaller than Metal's, the first boundary is up to a page further on.
  char* start = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(memory) + page_bytes - 1) / page_bytes * page_bytes);
  struct Mapping : BackendState {
    void* memory;
    size_t bytes;
    ~Mapping() override { munmap(memory, bytes); }
  };
  auto mapping = std::make_unique<Mapping>();
  mapping->memory = memory;
  mapping->bytes = bytes;
  pool.state = std::move(mapping);
  return start;
}

int32_t MetalBackend::pool_back(Pool& pool, int64_t before, int64_t after) {
  @autoreleasepool {
    std::vector<id<MTLBuffer>> made;
    for (int32_t layer = 0; layer < pool.ref.layers; layer++) {
      char* start = pool.base + layer * pool.ref.layer_stride;
      if (mprotect(start + before, size_t(after - before), PROT_READ | PROT_WRITE) != 0) return BAO_OUT_OF_MEMORY;
      id<MTLBuffer> buffer = [device_ newBufferWithBytesNoCopy:start length:NSUInteger(after) options:MTLResourceStorageModeShared deallocator:nil];
      if (!buffer) return BAO_OUT_OF_MEMORY;
      made.push_back(buffer);
    }
    for (int32_t layer = 0; layer < pool.ref.layers; layer++) memory.add(pool.base + layer * pool.ref.layer_stride, made[size_t(layer)]);
    return BAO_OK;
  }
}

void MetalBackend::pool_release(Pool& pool) {
  @autoreleasepool {
    for (int32_t layer = 0; layer < pool.ref.layers; layer++) memory.remove(pool.base + layer * pool.ref.layer_stride);
    pool.state.reset();
  }
}

// ---- weights

bool MetalBackend::map_source(int64_t address, int64_t bytes, std::shared_ptr<const void>* keep, const char* f) {
  int64_t start = address / page_bytes * page_bytes, end;
  bool mapped = !__builtin_add_overflow(address, bytes, &end) && !__builtin_add_overflow(end, page_bytes - 1, &end);
  if (mapped) end = end / page_bytes * page_bytes;
  // Flushes nothing of a mapping that cannot be written, and fails where a page is not mapped.
  mapped = mapped && msync(reinterpret_cast<void*>(start), size_t(end - start), MS_ASYNC) == 0;
  if (!mapped) return fail(BAO_INVALID, 2, f, "%lld bytes at address %.0f are not mapped", static_cast<long long>(bytes), static_cast<double>(address)), false;
  maps_.emplace_back(start, end);
  // Buffers over these pages go with the last map of them: something else may be mapped there next.
  struct Registered {
    MetalBackend* backend;
    std::pair<int64_t, int64_t> pages;
    ~Registered() {
      @autoreleasepool {
        auto& maps = backend->maps_;
        maps.erase(std::find(maps.begin(), maps.end(), pages));
        bool others = std::any_of(maps.begin(), maps.end(), [&](const auto& m) { return m.first < pages.second && pages.first < m.second; });
        if (!others) backend->memory.remove(reinterpret_cast<const char*>(pages.first), reinterpret_cast<const char*>(pages.second));
      }
    }
  };
  *keep = std::shared_ptr<const void>(new Registered{this, {start, end}}, [](const void* r) { delete static_cast<const Registered*>(r); });
  return true;
}

// A buffer over file pages that holds all the bytes: one that exists, or one from their first page on, as long as the device allows and has memory for.
id<MTLBuffer> MetalBackend::window(const uint8_t* source, int64_t bytes) {
  if (id<MTLBuffer> known = memory.find(source, bytes).buffer) return known;
  int64_t address = int64_t(reinterpret_cast<uintptr_t>(source)), start = address / page_bytes * page_bytes;
  auto map = std::find_if(maps_.begin(), maps_.end(), [&](const auto& m) { return m.first <= address && address + bytes <= m.second; });
  if (map == maps_.end()) return nil;
  int64_t most = std::min(int64_t(device_.maxBufferLength), memory_available()) / page_bytes * page_bytes, length = std::min(map->second - start, most);
  if (address + bytes > start + length) return nil;
  void* first = reinterpret_cast<void*>(start);
  id<MTLBuffer> buffer = [device_ newBufferWithBytesNoCopy:first length:NSUInteger(length) options:MTLResourceStorageModeShared deallocator:nil];
  if (buffer) memory.add(static_cast<const char*>(first), buffer);
  return buffer;
}

int32_t MetalBackend::weight_made(Weight& weight, const uint8_t* source, const char* f) {
  @autoreleasepool {
    WeightRef& ref = weight.ref;
    // Memory of the device's own: for vectors, and for weights that lie otherwise than kernels read them, as no file of a usual alignment has them.
    struct Copies : BackendState {
      MetalBackend* backend;
      std::vector<std::pair<char*, int64_t>> made;
      ~Copies() override { for (auto& [data, bytes] : made) backend->release(data, bytes, Place::device); }
    };
    auto copy = [&](const void* from, int64_t bytes) -> char* {
      char* data = allocate(bytes, Place::device);
      if (!data) return nullptr;
      std::memcpy(data, from, size_t(bytes));
      if (!weight.state) {
        auto copies = std::make_unique<Copies>();
        copies->backend = this;
        weight.state = std::move(copies);
      }
      static_cast<Copies*>(weight.state.get())->made.push_back({data, bytes});
      return data;
    };
    auto no_memory = [&](int64_t bytes) {
      return fail(BAO_OUT_OF_MEMORY, 3, f, "%lld bytes for a weight asked for, %lld available", static_cast<long long>(bytes), static_cast<long long>(memory_available()));
    };
    if (!weight.vector.empty()) {
      int64_t bytes = int64_t(weight.vector.size()) * 4;
      char* data = copy(weight.vector.data(), bytes);
      if (!data) return no_memory(bytes);
      weight.values = reinterpret_cast<const float*>(data);
      ref.data = reinterpret_cast<const uint8_t*>(data);
    }
    if (!source || weight.use == BAO_USE_VECTOR) return BAO_OK;
    ref.data = source;
    int64_t bytes = ref.expert_bytes * ref.experts;
    if (reinterpret_cast<uintptr_t>(source) % 16 != 0) return (ref.data = reinterpret_cast<const uint8_t*>(copy(source, bytes))) ? BAO_OK : no_memory(bytes);
    if (window(source, bytes)) return BAO_OK;
    return fail(BAO_OUT_OF_MEMORY, 3, f, "a buffer over %lld bytes of the file is refused; the device allows %lld a buffer and has memory for %lld", static_cast<long long>(bytes),
                static_cast<long long>(device_.maxBufferLength), static_cast<long long>(memory_available()));
  }
}

}  // namespace bao
