// The memory of this machine: pages from the system, and how much of them there is.
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

}  // namespace bao
