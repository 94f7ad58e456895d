// Hopper's warpgroup product, for mma_kernel.cuh: operand A in registers, B in shared memory in rows of 128 swizzled bytes, 32, 64, 96 or 128 items.
#pragma once
#include <stdint.h>

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define BAO_WARPGROUP 1

namespace bao {
namespace mma {

// Registers that an unfinished product reads or adds to are not touched until warpgroup_wait; what they hold is written before warpgroup_begin.
__device__ __forceinline__ void settle(uint32_t& r) { asm volatile("" : "+r"(r)::"memory"); }
__device__ __forceinline__ void settle(float& r) { asm volatile("" : "+f"(r)::"memory"); }
__device__ __forceinline__ void warpgroup_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void warpgroup_end() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N>
__device__ __forceinline__ void warpgroup_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }
// What cp.async brought becomes visible to the tensor cores' own reads.
__device__ __forceinline__ void copies_seen() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Start / 16, 1024 bytes between groups of 8 rows, 128-byte swizzle. 16 columns on: + 2.
__device__ __forceinline__ uint64_t describe(uint32_t at) { return uint64_t((at & 0x3FFFFu) >> 4) | uint64_t(1) << 16 | uint64_t(64) << 32 | uint64_t(1) << 62; }

#define BAO_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define BAO_D16(i) BAO_D4(i), BAO_D4(i + 4), BAO_D4(i + 8), BAO_D4(i + 12)
template <int NT>
__device__ __forceinline__ void multiply_group(float* d, const uint32_t (&a)[4], uint64_t b) {
  if constexpr (NT == 2) {
    asm volatile("{.reg .pred add; setp.eq.u32 add, 0, 0; wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
        "{%16, %17, %18, %19}, %20, add, 1, 1, 0;}"
        : BAO_D16(0) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  } else if constexpr (NT == 4) {
    asm volatile("{.reg .pred add; setp.eq.u32 add, 0, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "{%32, %33, %34, %35}, %36, add, 1, 1, 0;}"
        : BAO_D16(0), BAO_D16(16) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  } else if constexpr (NT == 6) {
    asm volatile("{.reg .pred add; setp.eq.u32 add, 0, 0; wgmma.mma_async.sync.aligned.m64n96k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47}, "
        "{%48, %49, %50, %51}, %52, add, 1, 1, 0;}"
        : BAO_D16(0), BAO_D16(16), BAO_D16(32) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  } else {
    static_assert(NT == 8, "32, 64, 96 or 128 items");
    asm volatile("{.reg .pred add; setp.eq.u32 add, 0, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "{%64, %65, %66, %67}, %68, add, 1, 1, 0;}"
        : BAO_D16(0), BAO_D16(16), BAO_D16(32), BAO_D16(48) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  }
}
#undef BAO_D4
#undef BAO_D16

}  // namespace mma
}  // namespace bao
#endif
