// Asks the processor (cpuid, hardware capabilities) and the system (affinity, cgroup quota, core topology); decides nothing else.
#include "features.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <set>
#include <string>
#include <thread>

#include "../bao.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif
#if defined(__linux__)
#include <sched.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace bao {
namespace {

#if defined(__x86_64__)
Features detect() {
  Features found;
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return found;
  bool saves = (c >> 27) & 1, fma = (c >> 12) & 1, f16c = (c >> 29) & 1, avx = (c >> 28) & 1;
  if (!saves || !avx) return found;
  // The operating system must save the registers too.
  unsigned low, high;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  bool ymm = (low & 0x06) == 0x06, zmm = (low & 0xe6) == 0xe6;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return found;
  bool avx2 = (b >> 5) & 1, bmi2 = (b >> 8) & 1;
  found.avx2 = ymm && avx2 && bmi2 && fma && f16c;
  bool f = (b >> 16) & 1, dq = (b >> 17) & 1, bw = (b >> 30) & 1, vl = (b >> 31) & 1, vnni = (c >> 11) & 1;
  found.avx512 = found.avx2 && zmm && f && dq && bw && vl && vnni;
#if defined(BAO_AVX512_EMULATED)
  found.avx512 = found.avx2;  // its kernels consist of AVX2: make test-avx512
#endif
  if (found.avx512 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) found.avx512_bf16 = (a >> 5) & 1;
  return found;
}
#elif defined(__aarch64__)
Features detect() {
  Features found;
#if defined(__linux__)
  unsigned long capabilities = getauxval(AT_HWCAP), more = getauxval(AT_HWCAP2);
  // All that the compiler may use in isa_neon.cpp (armv8.2-a+dotprod+fp16), as bits because older C libraries lack some names:
  // CRC32, ATOMICS, FPHP, ASIMDHP, ASIMDRDM, ASIMDDP.
  constexpr unsigned long needed = 1ul << 7 | 1ul << 8 | 1ul << 9 | 1ul << 10 | 1ul << 12 | 1ul << 20;
  found.neon = (capabilities & needed) == needed;
  found.i8mm = (more & (1ul << 13)) != 0;  // HWCAP2_I8MM
#elif defined(__APPLE__)
  int value = 0;
  size_t size = sizeof value;
  found.neon = true;  // every Apple Silicon processor
  found.i8mm = sysctlbyname("hw.optional.arm.FEAT_I8MM", &value, &size, nullptr, 0) == 0 && value;
#endif
  return found;
}
#else
Features detect() { return {}; }
#endif

#if defined(__linux__)
std::string first_line(const std::string& path) {
  char line[512] = "";
  if (std::FILE* file = std::fopen(path.c_str(), "re")) {
    if (!std::fgets(line, sizeof line, file)) line[0] = 0;
    std::fclose(file);
  }
  line[std::strcspn(line, "\n")] = 0;
  return line;
}

// Processors' worth of time that the cgroup grants, 0 = no limit. Version 2 first; inside a container the group is the root.
double quota() {
  std::string group;
  if (std::FILE* file = std::fopen("/proc/self/cgroup", "re")) {
    char line[512];
    while (std::fgets(line, sizeof line, file)) {
      line[std::strcspn(line, "\n")] = 0;
      if (std::strncmp(line, "0::", 3) == 0) group = line + 3;
    }
    std::fclose(file);
  }
  double smallest = 0;
  // A limit of any ancestor holds as well.
  for (;;) {
    long long limit = 0, period = 0;
    std::string text = first_line("/sys/fs/cgroup" + (group == "/" ? "" : group) + "/cpu.max");
    if (std::sscanf(text.c_str(), "%lld %lld", &limit, &period) == 2 && limit > 0 && period > 0) {
      double share = static_cast<double>(limit) / static_cast<double>(period);
      smallest = smallest == 0 ? share : std::min(smallest, share);
    }
    if (group.empty() || group == "/") break;
    group.erase(group.rfind('/') == std::string::npos ? 0 : group.rfind('/'));
  }
  long long limit = std::atoll(first_line("/sys/fs/cgroup/cpu/cpu.cfs_quota_us").c_str());
  long long period = std::atoll(first_line("/sys/fs/cgroup/cpu/cpu.cfs_period_us").c_str());
  if (limit > 0 && period > 0) {
    double share = static_cast<double>(limit) / static_cast<double>(period);
    smallest = smallest == 0 ? share : std::min(smallest, share);
  }
  return smallest;
}

void count_processors(int32_t* logical, int32_t* physical) {
  // Machines with more processors than a fixed cpu_set_t holds need a larger one.
  for (int capacity = 1024; capacity <= 1 << 16; capacity *= 4) {
    cpu_set_t* set = CPU_ALLOC(capacity);
    if (!set) break;
    size_t size = CPU_ALLOC_SIZE(capacity);
    CPU_ZERO_S(size, set);
    bool known = sched_getaffinity(0, size, set) == 0;
    if (known) {
      *logical = CPU_COUNT_S(size, set);
      std::set<std::string> cores;
      for (int i = 0; i < capacity; i++) {
        if (!CPU_ISSET_S(i, size, set)) continue;
        std::string number = std::to_string(i);
        std::string siblings = first_line("/sys/devices/system/cpu/cpu" + number + "/topology/thread_siblings_list");
        cores.insert(siblings.empty() ? "cpu" + number : siblings);
      }
      *physical = static_cast<int32_t>(cores.size());
    }
    CPU_FREE(set);
    if (known) return;
  }
  *logical = *physical = static_cast<int32_t>(std::thread::hardware_concurrency());
}
#else
double quota() { return 0; }

void count_processors(int32_t* logical, int32_t* physical) {
  *logical = *physical = static_cast<int32_t>(std::thread::hardware_concurrency());
#if defined(__APPLE__)
  // Efficiency cores would make every stage wait for its slowest piece.
  int value = 0;
  size_t size = sizeof value;
  if (sysctlbyname("hw.perflevel0.physicalcpu", &value, &size, nullptr, 0) == 0 && value > 0) *physical = value;
#endif
}
#endif

int32_t within_quota(int32_t processors) {
  double share = quota();
  if (share > 0) processors = std::min(processors, static_cast<int32_t>(std::min(std::ceil(share), 65536.0)));
  return std::max(processors, 1);
}

}  // namespace

const Features& features() {
  static const Features found = detect();
  return found;
}

bool has_isa(int32_t isa) {
  switch (isa) {
    case BAO_ISA_BASE: return true;
    case BAO_ISA_AVX2: return features().avx2;
    case BAO_ISA_AVX512: return features().avx512;
    case BAO_ISA_NEON: return features().neon;
    default: return false;
  }
}

int32_t best_isa() {
  for (int32_t isa : {BAO_ISA_NEON, BAO_ISA_AVX512, BAO_ISA_AVX2}) {
    if (has_isa(isa)) return isa;
  }
  return BAO_ISA_BASE;
}

const char* isa_name(int32_t isa) {
  switch (isa) {
    case BAO_ISA_BASE: return "base";
    case BAO_ISA_AVX2: return "avx2";
    case BAO_ISA_AVX512: return "avx512";
    case BAO_ISA_NEON: return "neon";
    default: return "unknown";
  }
}

std::string processor_name() {
  std::string name;
#if defined(__linux__)
  if (std::FILE* file = std::fopen("/proc/cpuinfo", "re")) {
    char line[512];
    while (name.empty() && std::fgets(line, sizeof line, file)) {
      const char* colon = std::strchr(line, ':');
      if (colon && std::strncmp(line, "model name", 10) == 0) name = colon + 1;
    }
    std::fclose(file);
  }
#elif defined(__APPLE__)
  char text[256] = "";
  size_t size = sizeof text - 1;
  if (sysctlbyname("machdep.cpu.brand_string", text, &size, nullptr, 0) == 0) name = text;
#endif
  std::string clean;
  for (char c : name) {
    if (c < 32 || c > 126 || c == '"' || c == '\\') continue;
    if (c == ' ' && (clean.empty() || clean.back() == ' ')) continue;
    clean += c;
  }
  return clean.empty() ? architecture_name() : clean;
}

const char* architecture_name() {
#if defined(__x86_64__)
  return "x86_64";
#elif defined(__aarch64__)
  return "arm64";
#else
  return "other";
#endif
}

int32_t usable_processors() {
  int32_t logical = 1, physical = 1;
  count_processors(&logical, &physical);
  return within_quota(logical);
}

int32_t default_threads() {
  int32_t logical = 1, physical = 1;
  count_processors(&logical, &physical);
  return std::min(within_quota(physical), 256);
}

}  // namespace bao
