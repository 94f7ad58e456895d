// Barriers and simdgroup functions: every lane puts its value into a slot, all live lanes meet, every lane reads the slots.
#pragma once

namespace metal {

enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2, mem_texture = 4 };
inline mem_flags operator|(mem_flags a, mem_flags b) { return (mem_flags)((int)a | (int)b); }
inline void threadgroup_barrier(mem_flags flags, EMU_SITE) { emu_threadgroup_barrier((int)flags, site); }
inline void simdgroup_barrier(mem_flags flags, EMU_SITE) { emu_simdgroup_barrier((int)flags, site); }

EMU_UNCHECKED inline unsigned _lane() { return emu_current->context.lane; }

template <class T>
struct _exchange {
  uint32_t mask;  // lanes that took part
  unsigned lane;
  unsigned char (*slot)[64];
  EMU_UNCHECKED _exchange(T value, int site, const char* op) {
    static_assert(sizeof(T) <= 64, "simd value");
    emu::Fiber* f = emu_current;
    lane = f->context.lane;
    slot = f->group->slot[f->half];
    __builtin_memcpy(slot[lane], &value, sizeof(T));
    f->half ^= 1;
    emu_meet(site, op);
    mask = f->group->mask;
  }
  EMU_UNCHECKED T at(unsigned i) const {
    T value;
    __builtin_memcpy(&value, slot[i], sizeof(T));
    return value;
  }
  bool has(unsigned i) const { return i < 32 && (mask >> i & 1); }
  bool full() const { return mask == 0xffffffffu; }
};

// A fixed tree, as a butterfly would do; in order when lanes are missing.
template <class T, class F>
EMU_UNCHECKED inline T _reduce(T value, int site, const char* op, F combine) {
  _exchange<T> e(value, site, op);
  if (__builtin_expect(e.full(), 1)) {
    T t[16];
    for (int i = 0; i < 16; i++) t[i] = combine(e.at(i), e.at(i + 16));
    for (int n = 8; n; n >>= 1) {
      for (int i = 0; i < n; i++) t[i] = combine(t[i], t[i + n]);
    }
    return t[0];
  }
  bool any = false;
  for (unsigned i = 0; i < 32; i++) {
    if (!e.has(i)) continue;
    value = any ? combine(value, e.at(i)) : e.at(i);
    any = true;
  }
  return value;
}
#define EMU_REDUCTION(name, expression)                                         \
  template <class T>                                                            \
  inline T name(T value, EMU_SITE) {                                            \
    return _reduce(value, site, #name, [](T a, T b) -> T { return expression; }); \
  }
EMU_REDUCTION(simd_sum, a + b)
EMU_REDUCTION(simd_product, a* b)
EMU_REDUCTION(simd_max, max(a, b))
EMU_REDUCTION(simd_min, min(a, b))
EMU_REDUCTION(simd_and, a& b)
EMU_REDUCTION(simd_or, a | b)
EMU_REDUCTION(simd_xor, a ^ b)

// The value of lane `from`; past the edge (shuffle up and down) a lane keeps its own.
template <class T>
EMU_UNCHECKED inline T _pick(T value, int from, int site, const char* op) {
  _exchange<T> e(value, site, op);
  if (from < 0 || from > 31) return value;
  if (!e.has((unsigned)from)) emu_fail("%s reads lane %d, which is not active (line %d)", op, from, site / 1000);
  return e.at((unsigned)from);
}
inline int _checked_lane(unsigned lane, int site) {
  if (lane > 31) emu_fail("simd_shuffle/broadcast of lane %u (line %d)", lane, site / 1000);
  return (int)lane;
}
template <class T>
inline T simd_shuffle(T value, ushort lane, EMU_SITE) {
  return _pick(value, _checked_lane(lane, site), site, "simd_shuffle");
}
template <class T>
inline T simd_broadcast(T value, ushort lane, EMU_SITE) {
  return _pick(value, _checked_lane(lane, site), site, "simd_broadcast");
}
template <class T>
inline T simd_shuffle_xor(T value, ushort mask, EMU_SITE) {
  return _pick(value, _checked_lane(_lane() ^ mask, site), site, "simd_shuffle_xor");
}
template <class T>
inline T simd_shuffle_down(T value, ushort delta, EMU_SITE) {
  return _pick(value, (int)_lane() + delta, site, "simd_shuffle_down");
}
template <class T>
inline T simd_shuffle_up(T value, ushort delta, EMU_SITE) {
  return _pick(value, (int)_lane() - delta, site, "simd_shuffle_up");
}
template <class T>
EMU_UNCHECKED inline T simd_broadcast_first(T value, EMU_SITE) {
  _exchange<T> e(value, site, "simd_broadcast_first");
  return e.at((unsigned)__builtin_ctz(e.mask));
}

template <class T>
EMU_UNCHECKED inline T simd_prefix_inclusive_sum(T value, EMU_SITE) {
  _exchange<T> e(value, site, "simd_prefix_inclusive_sum");
  T sum{};
  for (unsigned i = 0; i <= e.lane; i++) {
    if (e.has(i)) sum += e.at(i);
  }
  return sum;
}
template <class T>
EMU_UNCHECKED inline T simd_prefix_exclusive_sum(T value, EMU_SITE) {
  _exchange<T> e(value, site, "simd_prefix_exclusive_sum");
  T sum{};
  for (unsigned i = 0; i < e.lane; i++) {
    if (e.has(i)) sum += e.at(i);
  }
  return sum;
}

struct simd_vote {
  ulong lanes;
  explicit operator ulong() const { return lanes; }
  bool all() const { return lanes == 0xffffffffu; }
  bool any() const { return lanes; }
};
EMU_UNCHECKED inline simd_vote simd_ballot(bool value, EMU_SITE) {
  _exchange<unsigned char> e(value, site, "simd_ballot");
  ulong lanes = 0;
  for (unsigned i = 0; i < 32; i++) {
    if (e.has(i) && e.at(i)) lanes |= 1ul << i;
  }
  return {lanes};
}
EMU_UNCHECKED inline bool simd_all(bool value, EMU_SITE) {
  _exchange<unsigned char> e(value, site, "simd_all");
  for (unsigned i = 0; i < 32; i++) {
    if (e.has(i) && !e.at(i)) return false;
  }
  return true;
}
EMU_UNCHECKED inline bool simd_any(bool value, EMU_SITE) {
  _exchange<unsigned char> e(value, site, "simd_any");
  for (unsigned i = 0; i < 32; i++) {
    if (e.has(i) && e.at(i)) return true;
  }
  return false;
}

}  // namespace metal
