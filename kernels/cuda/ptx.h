// Instructions that CUDA C++ has no name for: matrix multiplication of bytes, and copies to shared memory that nobody waits for at once.
#pragma once
#include <cstdint>
#include <cuda_runtime.h>

namespace bao {

// c (16 x 8, 32 bit) += a (16 x 32 signed bytes) b (32 x 8). Lane 4 g + t: a[0], a[2] are row g, columns 8 t ... 8 t + 3 and + 4 ... + 7 of a in any order of
// columns that b has too; a[1], a[3] row g + 8; b column g; c[0], c[1] row g, columns 2 t and 2 t + 1; c[2], c[3] row g + 8.
__device__ __forceinline__ void multiply_bytes(int32_t (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// 16 bytes, both sides aligned; past the first-level cache.
__device__ __forceinline__ void copy_async(void* shared, const void* global) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(uint32_t(__cvta_generic_to_shared(shared))), "l"(global) : "memory");
}
// The thread's copies since the last call are one group; waiting leaves the newest N groups in flight.
__device__ __forceinline__ void copies_end_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N>
__device__ __forceinline__ void copies_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

}  // namespace bao
