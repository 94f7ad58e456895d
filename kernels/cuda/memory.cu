// Memory of the device: plain allocations, KV pools as address space that is backed as it grows, and weights.
#include <cstdio>
#include <cuda.h>

#include "../common/dequantize.h"
#include "backend.cuh"
#include "units.h"

namespace bao {
namespace {

// The driver's virtual memory functions, found through the runtime: the library links no libcuda.
struct Driver {
  decltype(&cuMemAddressReserve) reserve = nullptr;
  decltype(&cuMemAddressFree) unreserve = nullptr;
  decltype(&cuMemCreate) create = nullptr;
  decltype(&cuMemRelease) release = nullptr;
  decltype(&cuMemMap) map = nullptr;
  decltype(&cuMemUnmap) unmap = nullptr;
  decltype(&cuMemSetAccess) access = nullptr;
  bool complete = false;
  Driver() {
    complete = find("cuMemAddressReserve", reserve) && find("cuMemAddressFree", unreserve) && find("cuMemCreate", create) && find("cuMemRelease", release) &&
               find("cuMemMap", map) && find("cuMemUnmap", unmap) && find("cuMemSetAccess", access);
    cudaGetLastError();
  }
  template <class F>
  static bool find(const char* name, F& function) {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result;
#if CUDART_VERSION >= 12050
    if (cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &result) != cudaSuccess) return false;
#else
    if (cudaGetDriverEntryPoint(name, &found, cudaEnableDefault, &result) != cudaSuccess) return false;
#endif
    function = reinterpret_cast<F>(found);
    return result == cudaDriverEntryPointSuccess && found;
  }
};

const Driver& driver() {
  static const Driver found;
  return found;
}

CUmemAllocationProp location(int32_t index) {
  CUmemAllocationProp p{};
  p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  p.location.id = index;
  return p;
}

// Mapped pieces of a pool, in no order.
struct PoolMemory : BackendState {
  struct Piece { CUdeviceptr address; size_t bytes; CUmemGenericAllocationHandle handle; };
  std::vector<Piece> pieces;
  char* plain = nullptr;  // where the device has no virtual memory: all of it, at once
};

}  // namespace

char* CudaBackend::allocate(int64_t bytes, Place place) {
  enter();
  void* memory = nullptr;
  if (place == Place::host_visible) {
    if (cudaHostAlloc(&memory, size_t(bytes), cudaHostAllocMapped | cudaHostAllocPortable) != cudaSuccess) return cudaGetLastError(), nullptr;
    std::memset(memory, 0, size_t(bytes));
    return static_cast<char*>(memory);
  }
  if (cudaMalloc(&memory, size_t(bytes)) != cudaSuccess) return cudaGetLastError(), nullptr;
  if (cudaMemsetAsync(memory, 0, size_t(bytes), stream_) != cudaSuccess) return cudaFree(memory), nullptr;
  return static_cast<char*>(memory);
}

void CudaBackend::release(char* memory, int64_t, Place place) {
  enter();
  if (place == Place::host_visible) cudaFreeHost(memory);
  else cudaFree(memory);
  cudaGetLastError();
}

int64_t CudaBackend::memory_total() { return int64_t(properties_.totalGlobalMem); }

int64_t CudaBackend::memory_available() {
  enter();
  size_t free = 0, total = 0;
  return cudaMemGetInfo(&free, &total) == cudaSuccess ? int64_t(free) : 0;
}

int32_t CudaBackend::write(char* to, const void* from, int64_t bytes, const char* f) {
  if (bytes == 0) return BAO_OK;
  enter();
  cudaError_t error = cudaMemcpyAsync(to, from, size_t(bytes), cudaMemcpyDefault, stream_);
  return cuda_status(error == cudaSuccess ? cudaStreamSynchronize(stream_) : error, 0, f);
}

int32_t CudaBackend::read(void* to, const char* from, int64_t bytes, const char* f) {
  if (bytes == 0) return BAO_OK;
  enter();
  cudaError_t error = cudaMemcpyAsync(to, from, size_t(bytes), cudaMemcpyDefault, stream_);
  return cuda_status(error == cudaSuccess ? cudaStreamSynchronize(stream_) : error, 0, f);
}

// ---- KV pools

char* CudaBackend::pool_reserve(Pool& pool, int64_t stride, int32_t layers) {
  enter();
  auto memory = std::make_unique<PoolMemory>();
  pool.reserved = stride * layers;
  char* base = nullptr;
  if (virtual_memory_ && driver().complete) {
    CUdeviceptr address = 0;
    if (driver().reserve(&address, size_t(pool.reserved), 0, 0, 0) != CUDA_SUCCESS) return nullptr;
    base = reinterpret_cast<char*>(address);
  } else {
    base = memory->plain = allocate(pool.reserved, Place::device);
  }
  pool.state = std::move(memory);
  return base;
}

int32_t CudaBackend::pool_back(Pool& pool, int64_t before, int64_t after) {
  PoolMemory& memory = *static_cast<PoolMemory*>(pool.state.get());
  if (memory.plain) return BAO_OK;
  enter();
  size_t bytes = size_t(after - before), had = memory.pieces.size();
  CUmemAllocationProp where = location(index_);
  CUmemAccessDesc access{where.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  bool good = true;
  for (int32_t layer = 0; layer < pool.ref.layers && good; layer++) {
    CUdeviceptr address = reinterpret_cast<CUdeviceptr>(pool.base + layer * pool.ref.layer_stride + before);
    PoolMemory::Piece piece{address, bytes, 0};
    good = driver().create(&piece.handle, bytes, &where, 0) == CUDA_SUCCESS;
    if (!good) break;
    if (driver().map(address, bytes, 0, piece.handle, 0) != CUDA_SUCCESS) {
      driver().release(piece.handle);
      good = false;
      break;
    }
    memory.pieces.push_back(piece);
    good = driver().access(address, bytes, &access, 1) == CUDA_SUCCESS &&
           cudaMemsetAsync(reinterpret_cast<void*>(address), 0, bytes, stream_) == cudaSuccess;
  }
  if (good) return BAO_OK;
  cudaStreamSynchronize(stream_);
  for (; memory.pieces.size() > had; memory.pieces.pop_back()) {
    driver().unmap(memory.pieces.back().address, memory.pieces.back().bytes);
    driver().release(memory.pieces.back().handle);
  }
  cudaGetLastError();
  return BAO_OUT_OF_MEMORY;
}

void CudaBackend::pool_release(Pool& pool) {
  enter();
  cudaStreamSynchronize(stream_);
  PoolMemory& memory = *static_cast<PoolMemory*>(pool.state.get());
  for (const PoolMemory::Piece& piece : memory.pieces) {
    driver().unmap(piece.address, piece.bytes);
    driver().release(piece.handle);
  }
  if (memory.plain) cudaFree(memory.plain);
  else driver().unreserve(reinterpret_cast<CUdeviceptr>(pool.base), size_t(pool.reserved));
  cudaGetLastError();
}

int32_t CudaBackend::page_copy(Pool& pool, int32_t destination, int32_t source, int32_t tokens, const char* f) {
  enter();
  launch_page_copy(pool.ref, destination, source, tokens, stream_);
  return cuda_status(cudaGetLastError(), 0, f);
}

// ---- weights

// The file was mapped by another library: this one can only ask the system whether the range is readable.
bool CudaBackend::map_source(int64_t address, int64_t bytes, std::shared_ptr<const void>*, const char* f) {
  uint64_t at = uint64_t(address), end = 0;
  bool inside = bytes <= (int64_t(1) << 52) && !__builtin_add_overflow(at, uint64_t(bytes), &end);
  std::FILE* maps = inside ? std::fopen("/proc/self/maps", "re") : nullptr;
  if (maps) {
    char line[512];
    bool start = true;  // of a line: long ones come in parts
    while (at < end && std::fgets(line, sizeof line, maps)) {
      unsigned long long low, high;
      char readable;
      if (start && std::sscanf(line, "%llx-%llx %c", &low, &high, &readable) == 3 && low <= at && at < high) {
        if (readable != 'r') break;
        at = high;
      }
      start = std::strchr(line, '\n') != nullptr;
    }
    std::fclose(maps);
    if (at >= end) return true;
  }
  fail(BAO_INVALID, 2, f, "%lld bytes at address %.0f are not mapped readable", static_cast<long long>(bytes), static_cast<double>(address));
  return false;
}

int32_t CudaBackend::weight_made(Weight& weight, const uint8_t* source, const char* f) {
  enter();
  auto state = std::make_unique<DeviceBytes>();
  WeightRef& ref = weight.ref;
  bool vector = !weight.vector.empty(), matrix = source && weight.use != BAO_USE_VECTOR, tiled = matrix && !is_plain(ref.dtype);
  Uploader::Job job{nullptr, source, ref.expert_bytes * ref.experts, 1, ref.dtype, 0, ref.columns, ref.row_bytes, 0, 0};
  if (tiled) {
    job.tile_bytes = tile_shape(ref.dtype, ref.columns).bytes;
    if (job.row_bytes * tile_rows > Uploader::staging_bytes) {
      return fail(BAO_UNSUPPORTED, 6, f, "%d rows of %d columns exceed %lld bytes", tile_rows, ref.columns, static_cast<long long>(Uploader::staging_bytes));
    }
    // Experts of whole tiles are one run of rows.
    bool whole = ref.rows % tile_rows == 0 && int64_t(ref.rows) * ref.experts <= INT32_MAX;
    job.runs = whole ? 1 : ref.experts;
    job.rows = whole ? ref.rows * ref.experts : ref.rows;
    job.bytes = job.row_bytes * job.rows;
    job.run_bytes = (int64_t(job.rows) + tile_rows - 1) / tile_rows * job.tile_bytes;
    ref.row_bytes = job.tile_bytes / tile_rows;
    ref.expert_bytes = (int64_t(ref.rows) + tile_rows - 1) / tile_rows * job.tile_bytes;
  }
  int64_t values = vector ? (int64_t(weight.vector.size()) * 4 + 255) / 256 * 256 : 0, bytes = matrix ? ref.expert_bytes * ref.experts : 0;
  if (cudaMalloc(&state->data, size_t(values + bytes + 256)) != cudaSuccess) {
    cudaGetLastError();
    state->data = nullptr;
    return fail(BAO_OUT_OF_MEMORY, 3, f, "%lld bytes for a weight asked for, %lld available", static_cast<long long>(values + bytes), static_cast<long long>(memory_available()));
  }
  if (vector) {
    if (int32_t status = write(state->data, weight.vector.data(), int64_t(weight.vector.size()) * 4, f)) return status;
    weight.values = reinterpret_cast<const float*>(state->data);
    ref.data = reinterpret_cast<const uint8_t*>(state->data);
  }
  if (matrix) {
    job.destination = state->data + values;
    ref.data = reinterpret_cast<const uint8_t*>(job.destination);
    uploader_.add(job);
  }
  weight.state = std::move(state);
  return BAO_OK;
}

int32_t CudaBackend::weights_ready(double timeout_ms) {
  if (!uploader_.wait(timeout_ms)) return BAO_PENDING;
  return cuda_status(uploader_.error(), 0, "bao_weights_ready");
}

}  // namespace bao
