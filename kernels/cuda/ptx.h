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

// ---- copies that count on a barrier in shared memory. On sm_90 one lane's instruction copies everything; below, a warp's lanes share the copy.
__device__ __forceinline__ uint32_t shared_address(const void* p) { return uint32_t(__cvta_generic_to_shared(p)); }

// A barrier of the copies that one lane (sm_90) or the 32 lanes of a warp start. Made by one lane; __syncwarp() before the others use it.
__device__ __forceinline__ void barrier_make(uint64_t* barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(shared_address(barrier)) : "memory");
#else
  asm volatile("mbarrier.init.shared.b64 [%0], 32;" ::"r"(shared_address(barrier)) : "memory");
#endif
}
// After barrier_make, by the same lane, before the first copy.
__device__ __forceinline__ void barriers_made() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;\n\tfence.proxy.async.shared::cta;" ::: "memory");
#endif
}
// Returns when the phase of this parity (0 first, then 1, 0, ...) has ended: its copies have all arrived.
__device__ __forceinline__ void barrier_wait(const uint64_t* barrier, uint32_t parity) {
  uint32_t at = shared_address(barrier), done;
  do {
#if __CUDA_ARCH__ >= 900
    asm volatile("{\n\t.reg .pred p;\n\tmbarrier.try_wait.parity.shared.b64 p, [%1], %2;\n\tselp.u32 %0, 1, 0, p;\n\t}" : "=r"(done) : "r"(at), "r"(parity) : "memory");
#else
    asm volatile("{\n\t.reg .pred p;\n\tmbarrier.test_wait.parity.shared.b64 p, [%1], %2;\n\tselp.u32 %0, 1, 0, p;\n\t}" : "=r"(done) : "r"(at), "r"(parity) : "memory");
#endif
  } while (!done);
}
#if __CUDA_ARCH__ >= 900
// By one lane: the copy of a phase, of a multiple of 16 bytes (0: none), both sides aligned to 16.
__device__ __forceinline__ void copy_whole(void* to, const void* from, uint32_t bytes, uint64_t* barrier) {
  uint32_t at = shared_address(barrier);
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
  if (bytes) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(to)), "l"(from), "r"(bytes), "r"(at)
                 : "memory");
  }
}
#else
// By every lane of the warp, with the same arguments.
__device__ __forceinline__ void copy_shared(void* to, const void* from, uint32_t bytes, uint64_t* barrier) {
  for (uint32_t i = (threadIdx.x & 31) * 16; i < bytes; i += 512) copy_async(static_cast<char*>(to) + i, static_cast<const char*>(from) + i);
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}
#endif

}  // namespace bao
