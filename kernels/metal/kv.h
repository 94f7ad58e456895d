// Where a token's keys and values lie in a layer of a KV pool, and how they are rounded. MSL only.
#ifndef BAO_METAL_KV_H
#define BAO_METAL_KV_H

#define PAGE_TOKENS 64

// The plane of one KV head in a page: bytes from the layer's start.
inline int64_t plane_at(constant PoolLayer &pool, int32_t page, int32_t head, bool v) {
  return page * pool.page_stride_bytes + ((v ? pool.kv_heads : 0) + head) * pool.plane_bytes;
}

// Whole simdgroups, of threads first, first + threads, ..., store a head's values as token `slot` of a plane, to the bit as the reference does.
template <class P>
inline void store_head(constant PoolLayer &pool, device uint8_t *plane, int32_t slot, P x, int32_t first, int32_t threads) {
  const int32_t n = pool.head_dim;
  if (pool.dtype == DTYPE_F32) {
    device float *dst = (device float *)plane + slot * n;
    for (int32_t i = first; i < n; i += threads) dst[i] = x[i];
  } else if (pool.dtype == DTYPE_F16) {
    device uint16_t *dst = (device uint16_t *)plane + slot * n;
    for (int32_t i = first; i < n; i += threads) dst[i] = f32_to_f16(x[i]);
  } else {
    device int8_t *dst = (device int8_t *)plane + slot * n;
    device uint32_t *scales = (device uint32_t *)(plane + pool.scales_bytes) + slot * (n / 32);
    for (int32_t i = first; i < n; i += threads) {  // a block of 32 is one simdgroup's lanes
      const float value = x[i];
      const uint32_t most = simd_max(as_type<uint32_t>(value) & 0x7FFFFFFFu);
      const bool finite = most < 0x7F800000u;
      const float d = as_type<float>(finite ? most : 0u) / 127.0f;
      const float q = d > 0.0f ? rint(value / d) : 0.0f;
      dst[i] = int8_t(int32_t(clamp(q, -127.0f, 127.0f)));
      if (i % 32 == 0) scales[i / 32] = finite ? as_type<uint32_t>(d) : 0x7FC00000u;
    }
  }
}

#endif
