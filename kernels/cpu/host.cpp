// host.h: file mappings and private views of them, and conversion of rows. The only file system access of the library.
#include "../host.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <unordered_map>

#include "core.h"
#include "dequantize.h"
#include "features.h"
#include "guard.h"
#include "quantize.h"

namespace bao {
namespace {

constexpr int64_t map_alignment = 16384;  // the page of Apple Silicon, whose GPU wraps a mapping only in whole pages

// Where a large file is put: page caches keep large folios, which are mapped as one huge page only where address and offset agree.
constexpr int64_t huge_page = 2 << 20;

// The pages of one file. Lives as long as the file is open or a map reads it.
struct Mapping {
  char* reserved = nullptr;  // what munmap gets
  int64_t reserved_bytes = 0;
  char* data = nullptr;
  int64_t bytes = 0;
  int descriptor = -1;       // stays open: views map it again
  ~Mapping() {
    if (data) guard_release(data);
    if (reserved) munmap(reserved, static_cast<size_t>(reserved_bytes));
    if (descriptor >= 0) close(descriptor);
  }
};

struct File : Object {
  std::shared_ptr<Mapping> mapping;
  ~File() override;
};

// Mappings of open files, and views by their address: bao_map_create and bao_file_view_close must recognise their own.
std::mutex registry_lock;
std::vector<std::weak_ptr<Mapping>>& mappings = *new std::vector<std::weak_ptr<Mapping>>;
struct ViewPages { void* pages; size_t bytes; };
std::unordered_map<const void*, ViewPages>& views = *new std::unordered_map<const void*, ViewPages>;

File::~File() {
  std::lock_guard<std::mutex> hold(registry_lock);
  std::erase_if(mappings, [this](const std::weak_ptr<Mapping>& entry) { return entry.expired() || entry.lock() == mapping; });
}

int64_t rounded_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

int open_retrying(const char* path) {
  int descriptor;
  do {
    // Without O_NONBLOCK a named pipe would hang here before fstat could refuse it.
    descriptor = ::open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  } while (descriptor < 0 && errno == EINTR);
  return descriptor;
}

bao_handle open_file(const char* path) {
  const char* f = "bao_file_open";
  if (!path) return fail(BAO_INVALID, 1, f, "the path is null"), 0;
  auto mapping = std::make_shared<Mapping>();
  mapping->descriptor = open_retrying(path);
  if (mapping->descriptor < 0) return fail(BAO_INVALID, 1, f, "cannot open %s: %s", path, std::strerror(errno)), 0;
  struct stat status;
  if (fstat(mapping->descriptor, &status) != 0) return fail(BAO_INVALID, 1, f, "cannot examine %s: %s", path, std::strerror(errno)), 0;
  if (!S_ISREG(status.st_mode)) return fail(BAO_INVALID, 1, f, "%s is no regular file", path), 0;
  if (status.st_size == 0) return fail(BAO_INVALID, 1, f, "%s is empty", path), 0;
  mapping->bytes = status.st_size;
  int64_t page = sysconf(_SC_PAGESIZE);
  if (page >= map_alignment) {
    mapping->reserved_bytes = mapping->bytes;
    void* pages = mmap(nullptr, static_cast<size_t>(mapping->bytes), PROT_READ, MAP_PRIVATE, mapping->descriptor, 0);
    if (pages == MAP_FAILED) return fail(BAO_OUT_OF_MEMORY, 1, f, "cannot map %lld bytes of %s: %s", static_cast<long long>(mapping->bytes), path, std::strerror(errno)), 0;
    mapping->reserved = mapping->data = static_cast<char*>(pages);
  } else {
    // Zero pages first, twice aligned; the file goes over them and the tail up to the boundary stays zero.
    int64_t placed = mapping->bytes >= huge_page ? huge_page : map_alignment;
    mapping->reserved_bytes = rounded_up(mapping->bytes, map_alignment) + placed;
    void* pages = mmap(nullptr, static_cast<size_t>(mapping->reserved_bytes), PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) return fail(BAO_OUT_OF_MEMORY, 1, f, "no address space for %lld bytes of %s: %s", static_cast<long long>(mapping->bytes), path, std::strerror(errno)), 0;
    mapping->reserved = static_cast<char*>(pages);
    char* start = reinterpret_cast<char*>(rounded_up(reinterpret_cast<int64_t>(pages), placed));
    if (mmap(start, static_cast<size_t>(mapping->bytes), PROT_READ, MAP_PRIVATE | MAP_FIXED, mapping->descriptor, 0) == MAP_FAILED) {
      return fail(BAO_OUT_OF_MEMORY, 1, f, "cannot map %lld bytes of %s: %s", static_cast<long long>(mapping->bytes), path, std::strerror(errno)), 0;
    }
    mapping->data = start;
  }
  guard_range(mapping->data, mapping->bytes, false);
  auto file = std::make_unique<File>();
  file->kind = Kind::file;
  file->mapping = mapping;
  {
    std::lock_guard<std::mutex> hold(registry_lock);
    mappings.push_back(mapping);
  }
  return handle_new(std::move(file));
}

// A byte range of the file, false after a failure.
bool file_range(bao_handle handle, double offset_given, double bytes_given, const char* f, Mapping** mapping, int64_t* offset, int64_t* bytes, int32_t* status) {
  File* file = need<File>(handle, Kind::file, 1, f);
  if (!file) return *status = invalid_argument(1), false;
  *mapping = file->mapping.get();
  if (!to_size(offset_given, offset) || *offset > (*mapping)->bytes) {
    return *status = fail(BAO_INVALID, 2, f, "offset %.17g lies outside the file's %lld bytes", offset_given, static_cast<long long>((*mapping)->bytes)), false;
  }
  if (!to_size(bytes_given, bytes) || *bytes > (*mapping)->bytes - *offset) {
    return *status = fail(BAO_INVALID, 3, f, "%.17g bytes at offset %lld leave the file's %lld bytes", bytes_given, static_cast<long long>(*offset), static_cast<long long>((*mapping)->bytes)), false;
  }
  return true;
}

int32_t advise(bao_handle handle, double offset_given, double bytes_given, int32_t advice) {
  const char* f = "bao_file_advise";
  Mapping* mapping;
  int64_t offset, bytes;
  int32_t status;
  if (!file_range(handle, offset_given, bytes_given, f, &mapping, &offset, &bytes, &status)) return status;
  int system_advice;
  switch (advice) {
    case BAO_ADVISE_NORMAL: system_advice = MADV_NORMAL; break;
    case BAO_ADVISE_WILL_NEED: system_advice = MADV_WILLNEED; break;
    case BAO_ADVISE_SEQUENTIAL: system_advice = MADV_SEQUENTIAL; break;
    case BAO_ADVISE_DONT_NEED: system_advice = MADV_DONTNEED; break;
    default: return fail(BAO_INVALID, 4, f, "advice is %d, expected a BAO_ADVISE_* number", advice);
  }
  if (bytes == 0) return BAO_OK;
  int64_t page = sysconf(_SC_PAGESIZE);
  int64_t first = offset / page * page, last = rounded_up(offset + bytes, page);
  int result;
  do {
    result = madvise(mapping->data + first, static_cast<size_t>(last - first), system_advice);
  } while (result != 0 && errno == EINTR);
  return result == 0 ? BAO_OK : fail(BAO_INTERNAL, 0, f, "madvise: %s", std::strerror(errno));
}

double open_view(bao_handle handle, double offset_given, double bytes_given) {
  const char* f = "bao_file_view";
  Mapping* mapping;
  int64_t offset, bytes;
  int32_t status;
  if (!file_range(handle, offset_given, bytes_given, f, &mapping, &offset, &bytes, &status)) return 0;
  if (bytes == 0) return fail(BAO_INVALID, 3, f, "a view has at least one byte"), 0.0;
  int64_t page = sysconf(_SC_PAGESIZE), first = offset / page * page;
  size_t length = static_cast<size_t>(offset + bytes - first);
  std::lock_guard<std::mutex> hold(registry_lock);
  views.reserve(views.size() + 1);  // the only allocation that could fail after the mapping exists is the node's
  void* pages = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, mapping->descriptor, first);
  if (pages == MAP_FAILED) return fail(BAO_OUT_OF_MEMORY, 0, f, "cannot map %zu bytes: %s", length, std::strerror(errno)), 0.0;
  guard_range(pages, static_cast<int64_t>(length), true);
  char* address = static_cast<char*>(pages) + (offset - first);
  try {
    views.emplace(address, ViewPages{pages, length});
  } catch (...) {
    guard_release(pages);
    munmap(pages, length);
    throw;
  }
  return static_cast<double>(reinterpret_cast<uintptr_t>(address));
}

// Shape checks shared by the conversions; *row gets the size of a row of dtype.
int32_t check_rows(const char* f, int32_t dtype, int32_t rows, int32_t columns, int rows_argument, int64_t* row) {
  if (!dtype_name(dtype)) return fail(BAO_INVALID, 1, f, "type %d is unknown", dtype);
  if (rows < 1) return fail(BAO_INVALID, rows_argument, f, "rows is %d, expected at least 1", rows);
  *row = row_bytes(dtype, columns);
  if (*row != 0) return BAO_OK;
  return fail(BAO_INVALID, rows_argument + 1, f, "%d columns are no positive multiple of the %d elements of a %s block", columns, block_elements(dtype), dtype_name(dtype));
}

// One side of a conversion: the address is given and the size is exactly the shape's.
int32_t check_side(const char* f, int argument, const void* address, double bytes, int64_t expected) {
  if (!address) return fail(BAO_INVALID, argument, f, "the address is null");
  if (bytes != static_cast<double>(expected)) return fail(BAO_INVALID, argument + 1, f, "%.17g bytes, expected %lld", bytes, static_cast<long long>(expected));
  return BAO_OK;
}

std::string describe_host() {
  std::string sets;
  for (int32_t isa : {BAO_ISA_BASE, BAO_ISA_AVX2, BAO_ISA_AVX512, BAO_ISA_NEON}) {
    if (has_isa(isa)) sets += std::string(sets.empty() ? "\"" : ",\"") + isa_name(isa) + "\"";
  }
  return "{\"name\":\"" + processor_name() + "\",\"architecture\":\"" + architecture_name() + "\",\"isa\":[" + sets + "],\"best\":\"" + isa_name(best_isa()) +
         "\",\"processors\":" + std::to_string(usable_processors()) + ",\"cores\":" + std::to_string(default_threads()) +
         ",\"pageBytes\":" + std::to_string(sysconf(_SC_PAGESIZE)) + ",\"memory\":" + std::to_string(memory_total()) + "}";
}

}  // namespace

std::shared_ptr<const void> file_mapping(int64_t address, int64_t bytes) {
  std::lock_guard<std::mutex> hold(registry_lock);
  for (const std::weak_ptr<Mapping>& entry : mappings) {
    std::shared_ptr<Mapping> mapping = entry.lock();
    if (!mapping) continue;
    int64_t start = reinterpret_cast<int64_t>(mapping->data);
    // The zero tail up to the alignment belongs to the mapping: Metal wraps whole pages.
    int64_t length = rounded_up(mapping->bytes, map_alignment);
    if (address >= start && address - start <= length && bytes <= length - (address - start)) return mapping;
  }
  return nullptr;
}

}  // namespace bao

using namespace bao;

extern "C" {

bao_handle bao_file_open(const char* path) {
  return guarded("bao_file_open", [&]() -> bao_handle { return open_file(path); });
}

int32_t bao_file_close(bao_handle file) {
  return guarded("bao_file_close", [&]() -> int32_t {
    if (!need<File>(file, Kind::file, 1, "bao_file_close")) return invalid_argument(1);
    handle_free(file);
    return BAO_OK;
  });
}

double bao_file_address(bao_handle handle) {
  File* file = need<File>(handle, Kind::file, 1, "bao_file_address");
  return file ? static_cast<double>(reinterpret_cast<uintptr_t>(file->mapping->data)) : 0;
}

double bao_file_bytes(bao_handle handle) {
  File* file = need<File>(handle, Kind::file, 1, "bao_file_bytes");
  return file ? static_cast<double>(file->mapping->bytes) : 0;
}

int32_t bao_file_advise(bao_handle file, double offset, double bytes, int32_t advice) {
  return guarded("bao_file_advise", [&]() -> int32_t { return advise(file, offset, bytes, advice); });
}

double bao_file_view(bao_handle file, double offset, double bytes) {
  return guarded("bao_file_view", [&]() -> double { return open_view(file, offset, bytes); });
}

void bao_file_view_close(void* address, void*) {
  std::lock_guard<std::mutex> hold(registry_lock);
  auto found = views.find(address);
  if (found == views.end()) return;
  guard_release(found->second.pages);
  munmap(found->second.pages, found->second.bytes);
  views.erase(found);
}

double bao_row_bytes(int32_t dtype, double columns) {
  int64_t count;
  return to_size(columns, &count) ? static_cast<double>(row_bytes(dtype, count)) : 0;
}

int32_t bao_quantize(int32_t dtype, const void* source, double source_bytes, void* destination, double destination_bytes, int32_t rows, int32_t columns) {
  return guarded("bao_quantize", [&]() -> int32_t {
    const char* f = "bao_quantize";
    int64_t row = 0, floats = int64_t(columns) * 4;
    if (int32_t status = check_rows(f, dtype, rows, columns, 6, &row)) return status;
    if (!can_quantize(dtype)) return fail(BAO_UNSUPPORTED, 1, f, "nothing is quantised to %s", dtype_name(dtype));
    if (int32_t status = check_side(f, 2, source, source_bytes, floats * rows)) return status;
    if (int32_t status = check_side(f, 4, destination, destination_bytes, row * rows)) return status;
    for (int64_t r = 0; r < rows; r++) {
      quantize_row(dtype, reinterpret_cast<const float*>(static_cast<const char*>(source) + r * floats), static_cast<char*>(destination) + r * row, columns);
    }
    return BAO_OK;
  });
}

int32_t bao_dequantize(int32_t dtype, const void* source, double source_bytes, void* destination, double destination_bytes, int32_t rows, int32_t columns) {
  return guarded("bao_dequantize", [&]() -> int32_t {
    const char* f = "bao_dequantize";
    int64_t row = 0, floats = int64_t(columns) * 4;
    if (int32_t status = check_rows(f, dtype, rows, columns, 6, &row)) return status;
    if (int32_t status = check_side(f, 2, source, source_bytes, row * rows)) return status;
    if (int32_t status = check_side(f, 4, destination, destination_bytes, floats * rows)) return status;
    for (int64_t r = 0; r < rows; r++) {
      dequantize_row(dtype, static_cast<const char*>(source) + r * row, reinterpret_cast<float*>(static_cast<char*>(destination) + r * floats), columns);
    }
    return BAO_OK;
  });
}

int32_t bao_quantize_error(int32_t dtype, const void* source, const void* quantised, double quantised_bytes, int32_t rows, int32_t columns, void* out) {
  return guarded("bao_quantize_error", [&]() -> int32_t {
    const char* f = "bao_quantize_error";
    int64_t row = 0, floats = int64_t(columns) * 4;
    if (int32_t status = check_rows(f, dtype, rows, columns, 5, &row)) return status;
    if (!source) return fail(BAO_INVALID, 2, f, "the address is null");
    if (int32_t status = check_side(f, 3, quantised, quantised_bytes, row * rows)) return status;
    if (!out) return fail(BAO_INVALID, 7, f, "the address is null");
    double sums[2] = {0, 0};
    for (int64_t r = 0; r < rows; r++) {
      quantize_stats(dtype, reinterpret_cast<const float*>(static_cast<const char*>(source) + r * floats), static_cast<const char*>(quantised) + r * row, columns, &sums[0], &sums[1]);
    }
    std::memcpy(out, sums, sizeof sums);
    return BAO_OK;
  });
}

const char* bao_host_info(void) {
  return guarded("bao_host_info", []() -> const char* {
    static const std::string& text = *new std::string(describe_host());
    return text.c_str();
  });
}

}  // extern "C"
