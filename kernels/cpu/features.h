// What this processor and this process can use: instruction sets for the choice of kernels, and the default number of threads.
#pragma once
#include <cstdint>
#include <string>

namespace bao {

struct Features {
  bool avx2 = false;    // with FMA, F16C, BMI2: what isa_avx2.cpp is compiled for
  bool avx512 = false;  // F, BW, DQ, VL, VNNI, on top of avx2: what isa_avx512.cpp is compiled for
  bool avx512_bf16 = false;
  bool neon = false;    // ARMv8.2 with the dot product and half precision: what isa_neon.cpp is compiled for
  bool i8mm = false;
};

const Features& features();
bool has_isa(int32_t isa);             // BAO_ISA_BASE ... BAO_ISA_NEON
int32_t best_isa();
const char* isa_name(int32_t isa);     // "base", "avx2", "avx512", "neon"
std::string processor_name();          // as the system calls it, safe inside JSON
const char* architecture_name();       // "x86_64", "arm64"
int32_t usable_processors();           // logical ones that the scheduler and the cgroup's quota leave to this process
int32_t default_threads();             // the same in physical cores, 1 ... 256

}  // namespace bao
