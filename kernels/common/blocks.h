// What a quantised tensor looks like in memory: type ids, block structs and their sizes, as GGUF stores them.
// Compiles as C++14, CUDA and MSL, so that all backends read the same bytes; it computes nothing.
#ifndef BAO_COMMON_BLOCKS_H
#define BAO_COMMON_BLOCKS_H

#if !defined(__METAL_VERSION__)
#include <stdint.h>
#endif

#if defined(__BYTE_ORDER__) && defined(__ORDER_BIG_ENDIAN__)
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
#error "GGUF blocks are little-endian and read in place: big-endian hosts are not supported"
#endif
#endif

// Qualifies a function for host and device code alike. Always inlined on the host because the CPU library compiles the same headers for
// several instruction sets: of out-of-line copies the linker would keep one, perhaps the one that the running machine cannot execute.
#if defined(__CUDACC__)
#define BAO_FN __host__ __device__ static __forceinline__
#elif defined(__METAL_VERSION__)
#define BAO_FN static inline
#else
#define BAO_FN static inline __attribute__((always_inline))
#endif

namespace bao {

// The numbers are GGUF's tensor type ids, so a file's id is used without translation. A plain enum: its values convert to int in all
// three languages. The prefix keeps <math.h> and Metal names out of the way.
enum DType {
  DTYPE_F32 = 0,
  DTYPE_F16 = 1,
  DTYPE_Q4_0 = 2,
  DTYPE_Q4_1 = 3,
  DTYPE_Q5_0 = 6,
  DTYPE_Q5_1 = 7,
  DTYPE_Q8_0 = 8,
  DTYPE_Q2_K = 10,
  DTYPE_Q3_K = 11,
  DTYPE_Q4_K = 12,
  DTYPE_Q5_K = 13,
  DTYPE_Q6_K = 14,
  DTYPE_IQ4_NL = 20,
  DTYPE_IQ4_XS = 23,
  DTYPE_BF16 = 30,
  DTYPE_MXFP4 = 39,
  DTYPE_NVFP4 = 40
};

// Fields typed `uint16_t` are bit patterns of IEEE half; storage needs no half type and no language extension. No struct needs more than
// 2-byte alignment and none has padding, so an array of them is the file's byte stream. 32-bit fields are byte arrays for that reason.

struct BlockQ4_0 {
  uint16_t d;
  uint8_t qs[16];
};

struct BlockQ4_1 {
  uint16_t d;
  uint16_t m;
  uint8_t qs[16];
};

struct BlockQ5_0 {
  uint16_t d;
  uint8_t qh[4];  // bit i of the little-endian word = bit 4 of element i
  uint8_t qs[16];
};

struct BlockQ5_1 {
  uint16_t d;
  uint16_t m;
  uint8_t qh[4];
  uint8_t qs[16];
};

struct BlockQ8_0 {
  uint16_t d;
  int8_t qs[32];
};

struct BlockQ2_K {
  uint8_t scales[16];  // low nibble scale, high nibble minimum, of 16 elements each
  uint8_t qs[64];
  uint16_t d;
  uint16_t dmin;
};

struct BlockQ3_K {
  uint8_t hmask[32];  // bit i/32 of byte i%32: clear = subtract 4
  uint8_t qs[64];
  uint8_t scales[12];  // sixteen 6-bit scales, offset by 32
  uint16_t d;
};

struct BlockQ4_K {
  uint16_t d;
  uint16_t dmin;
  uint8_t scales[12];  // eight 6-bit scales and eight 6-bit minimums
  uint8_t qs[128];
};

struct BlockQ5_K {
  uint16_t d;
  uint16_t dmin;
  uint8_t scales[12];
  uint8_t qh[32];
  uint8_t qs[128];
};

struct BlockQ6_K {
  uint8_t ql[128];
  uint8_t qh[64];
  int8_t scales[16];
  uint16_t d;
};

struct BlockIQ4_NL {
  uint16_t d;
  uint8_t qs[16];  // indices into the table of iq4_value()
};

struct BlockIQ4_XS {
  uint16_t d;
  uint16_t scales_h;    // bits 4..5 of the eight scales
  uint8_t scales_l[4];  // bits 0..3
  uint8_t qs[128];
};

struct BlockMXFP4 {
  uint8_t e;  // E8M0: 2^(e - 127)
  uint8_t qs[16];
};

struct BlockNVFP4 {
  uint8_t d[4];  // UE4M3, one for 16 elements
  uint8_t qs[32];
};

static_assert(sizeof(BlockQ4_0) == 18, "Q4_0 is 18 bytes");
static_assert(sizeof(BlockQ4_1) == 20, "Q4_1 is 20 bytes");
static_assert(sizeof(BlockQ5_0) == 22, "Q5_0 is 22 bytes");
static_assert(sizeof(BlockQ5_1) == 24, "Q5_1 is 24 bytes");
static_assert(sizeof(BlockQ8_0) == 34, "Q8_0 is 34 bytes");
static_assert(sizeof(BlockQ2_K) == 84, "Q2_K is 84 bytes");
static_assert(sizeof(BlockQ3_K) == 110, "Q3_K is 110 bytes");
static_assert(sizeof(BlockQ4_K) == 144, "Q4_K is 144 bytes");
static_assert(sizeof(BlockQ5_K) == 176, "Q5_K is 176 bytes");
static_assert(sizeof(BlockQ6_K) == 210, "Q6_K is 210 bytes");
static_assert(sizeof(BlockIQ4_NL) == 18, "IQ4_NL is 18 bytes");
static_assert(sizeof(BlockIQ4_XS) == 136, "IQ4_XS is 136 bytes");
static_assert(sizeof(BlockMXFP4) == 17, "MXFP4 is 17 bytes");
static_assert(sizeof(BlockNVFP4) == 36, "NVFP4 is 36 bytes");

// Elements of one block; 1 for the plain types, 0 for an id that Bao does not read.
BAO_FN int block_elements(int dtype) {
  switch (dtype) {
    case DTYPE_F32:
    case DTYPE_F16:
    case DTYPE_BF16:
      return 1;
    case DTYPE_Q4_0:
    case DTYPE_Q4_1:
    case DTYPE_Q5_0:
    case DTYPE_Q5_1:
    case DTYPE_Q8_0:
    case DTYPE_IQ4_NL:
    case DTYPE_MXFP4:
      return 32;
    case DTYPE_NVFP4:
      return 64;
    case DTYPE_Q2_K:
    case DTYPE_Q3_K:
    case DTYPE_Q4_K:
    case DTYPE_Q5_K:
    case DTYPE_Q6_K:
    case DTYPE_IQ4_XS:
      return 256;
    default:
      return 0;
  }
}

// Bytes of one block; 0 for an id that Bao does not read.
BAO_FN int block_bytes(int dtype) {
  switch (dtype) {
    case DTYPE_F32: return 4;
    case DTYPE_F16: return 2;
    case DTYPE_BF16: return 2;
    case DTYPE_Q4_0: return sizeof(BlockQ4_0);
    case DTYPE_Q4_1: return sizeof(BlockQ4_1);
    case DTYPE_Q5_0: return sizeof(BlockQ5_0);
    case DTYPE_Q5_1: return sizeof(BlockQ5_1);
    case DTYPE_Q8_0: return sizeof(BlockQ8_0);
    case DTYPE_Q2_K: return sizeof(BlockQ2_K);
    case DTYPE_Q3_K: return sizeof(BlockQ3_K);
    case DTYPE_Q4_K: return sizeof(BlockQ4_K);
    case DTYPE_Q5_K: return sizeof(BlockQ5_K);
    case DTYPE_Q6_K: return sizeof(BlockQ6_K);
    case DTYPE_IQ4_NL: return sizeof(BlockIQ4_NL);
    case DTYPE_IQ4_XS: return sizeof(BlockIQ4_XS);
    case DTYPE_MXFP4: return sizeof(BlockMXFP4);
    case DTYPE_NVFP4: return sizeof(BlockNVFP4);
    default: return 0;
  }
}

}  // namespace bao

#endif
