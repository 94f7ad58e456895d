// Hopper's warpgroup product, for mma_kernel.cuh and attention_warpgroup.cu: operand A in registers, B in shared memory in rows of 128 swizzled bytes, 32, 64, 96 or 128 items.
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

// The same with A in shared memory as well, in rows of 128 swizzled bytes. add: whether d counts. B_IS_ROWS: B lies with its items in a row, as V does, and
// is described by describe_rows; else as above. N: 64, 128 or 256.
template <int N, bool B_IS_ROWS>
__device__ __forceinline__ void multiply_shared(float* d, uint64_t a, uint64_t b, bool add) {
  if constexpr (N == 64) {
    asm volatile("{.reg .pred add; setp.ne.b32 add, %34, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
        "}, %32, %33, add, 1, 1, 0, %35;}"
        : BAO_D16(0), BAO_D16(16) : "l"(a), "l"(b), "r"(int(add)), "n"(int(B_IS_ROWS)));
  } else if constexpr (N == 128) {
    asm volatile("{.reg .pred add; setp.ne.b32 add, %66, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "
        "%62, %63"
        "}, %64, %65, add, 1, 1, 0, %67;}"
        : BAO_D16(0), BAO_D16(16), BAO_D16(32), BAO_D16(48) : "l"(a), "l"(b), "r"(int(add)), "n"(int(B_IS_ROWS)));
  } else {
    static_assert(N == 256, "64, 128 or 256 items");
    asm volatile("{.reg .pred add; setp.ne.b32 add, %130, 0; wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "
        "%62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, "
        "%92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, "
        "%118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
        "}, %128, %129, add, 1, 1, 0, %131;}"
        : BAO_D16(0), BAO_D16(16), BAO_D16(32), BAO_D16(48), BAO_D16(64), BAO_D16(80), BAO_D16(96), BAO_D16(112) : "l"(a), "l"(b), "r"(int(add)), "n"(int(B_IS_ROWS)));
  }
}

// d (64 x 256) += a b, A in registers, B as for describe_rows.
__device__ __forceinline__ void multiply_rows(float* d, const uint32_t (&a)[4], uint64_t b) {
  asm volatile("{.reg .pred add; setp.eq.u32 add, 0, 0; wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "
      "%62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, "
      "%92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, "
      "%118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
      "}, {%128, %129, %130, %131}, %132, add, 1, 1, 1;}"
      : BAO_D16(0), BAO_D16(16), BAO_D16(32), BAO_D16(48), BAO_D16(64), BAO_D16(80), BAO_D16(96), BAO_D16(112) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

// B whose items lie in a row: groups of 64 items `stride` bytes apart; 16 columns (rows in memory) on: + 128.
__device__ __forceinline__ uint64_t describe_rows(uint32_t at, uint32_t stride) {
  return uint64_t((at & 0x3FFFFu) >> 4) | uint64_t(stride >> 4) << 16 | uint64_t(64) << 32 | uint64_t(1) << 62;
}
#undef BAO_D4
#undef BAO_D16

}  // namespace mma
}  // namespace bao
#endif
