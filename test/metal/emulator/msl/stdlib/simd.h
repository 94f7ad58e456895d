// Barriers and simdgroup functions: every lane puts its value into a slot, all live lanes meet, every lane reads the slots.
#pragma once

namespace metal {

enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2, mem_texture = 4 };
inline mem_flags operator|(mem_flags a, mem_flags b) { return (mem_flags)((int)a | (int)b); }
inline void threadgroup_barrier(mem_flags flags, EMU_SITE) { emu_threadgroup_barrier((int)flags, site); }
inline void simdgroup_barrier(mem_flags flags, EMU_SITE) { emu_simdgroup_barrier((int)flags, site); }

EMU_UNCHECKED inline unsigned _lane() { return emu_current->context.lane; }

using _finish = void (*)(emu::Simdgroup*, unsigned char (*)[64]);
template <class T>
EMU_UNCHECKED inline T _read(const unsigned char (*slot)[64], unsigned i) {
  T value;
  __builtin_memcpy(&value, slot[i], sizeof(T));
  return value;
}
template <class T>
EMU_UNCHECKED inline void _write(unsigned char (*slot)[64], unsigned i, T value) {
  __builtin_memcpy(slot[i], &value, sizeof(T));
}

// `finish` is done once, by the lane that comes last, and may replace what lies in the slots.
template <class T>
struct _exchange {
  uint32_t mask;  // lanes that took part
  unsigned lane;
  unsigned char (*slot)[64];
  EMU_UNCHECKED _exchange(T value, int site, const char* op, _finish finish = nullptr) {
    static_assert(sizeof(T) <= 64, "simd value");
    emu::Fiber* f = emu_current;
    lane = f->context.lane;
    slot = f->group->slot[f->half];
    _write(slot, lane, value);
    emu_meet(site, op, finish);
    f->half ^= 1;
    mask = f->group->mask;
  }
  EMU_UNCHECKED T at(unsigned i) const { return _read<T>(slot, i); }
  bool has(unsigned i) const { return i < 32 && (mask >> i & 1); }
};
EMU_UNCHECKED inline bool _has(const emu::Simdgroup* g, unsigned i) { return g->mask >> i & 1; }
EMU_UNCHECKED inline bool _full(const emu::Simdgroup* g) { return g->mask == 0xffffffffu; }

// A fixed tree, as a butterfly would do; in order when lanes are missing. The result lies in slot 0.
template <class T, class F>
EMU_UNCHECKED void _reduce_slots(emu::Simdgroup* g, unsigned char (*slot)[64]) {
  F combine;
  if (__builtin_expect(_full(g), 1)) {
    T t[16];
    for (unsigned i = 0; i < 16; i++) t[i] = combine(_read<T>(slot, i), _read<T>(slot, i + 16));
    for (int n = 8; n; n >>= 1) {
      for (int i = 0; i < n; i++) t[i] = combine(t[i], t[i + n]);
    }
    return _write(slot, 0, t[0]);
  }
  unsigned first = (unsigned)__builtin_ctz(g->mask);
  T value = _read<T>(slot, first);
  for (unsigned i = first + 1; i < 32; i++) {
    if (_has(g, i)) value = combine(value, _read<T>(slot, i));
  }
  _write(slot, 0, value);
}
#define EMU_REDUCTION(name, expression)                                      \
  struct _##name {                                                           \
    template <class T>                                                       \
    EMU_UNCHECKED T operator()(T a, T b) const { return expression; }        \
  };                                                                         \
  template <class T>                                                         \
  EMU_UNCHECKED inline T name(T value, EMU_SITE) {                           \
    return _exchange<T>(value, site, #name, _reduce_slots<T, _##name>).at(0); \
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

template <class T, bool Inclusive>
EMU_UNCHECKED void _prefix_slots(emu::Simdgroup* g, unsigned char (*slot)[64]) {
  T sum{};
  for (unsigned i = 0; i < 32; i++) {
    if (!_has(g, i)) continue;
    T before = sum;
    sum += _read<T>(slot, i);
    _write(slot, i, Inclusive ? sum : before);
  }
}
template <class T>
EMU_UNCHECKED inline T simd_prefix_inclusive_sum(T value, EMU_SITE) {
  _exchange<T> e(value, site, "simd_prefix_inclusive_sum", _prefix_slots<T, true>);
  return e.at(e.lane);
}
template <class T>
EMU_UNCHECKED inline T simd_prefix_exclusive_sum(T value, EMU_SITE) {
  _exchange<T> e(value, site, "simd_prefix_exclusive_sum", _prefix_slots<T, false>);
  return e.at(e.lane);
}

struct simd_vote {
  ulong lanes;
  explicit operator ulong() const { return lanes; }
  bool all() const { return lanes == 0xffffffffu; }
  bool any() const { return lanes; }
};
// Slot 0 gets the votes and the voters.
EMU_UNCHECKED inline void _ballot_slots(emu::Simdgroup* g, unsigned char (*slot)[64]) {
  ulong lanes = 0;
  for (unsigned i = 0; i < 32; i++) {
    if (_has(g, i) && slot[i][0]) lanes |= 1ul << i;
  }
  _write(slot, 0, ulong2{lanes, g->mask});
}
EMU_UNCHECKED inline ulong2 _ballot(bool value, int site, const char* op) {
  _exchange<ulong2> e(ulong2{value ? 1ul : 0ul, 0}, site, op, _ballot_slots);
  return e.at(0);
}
EMU_UNCHECKED inline simd_vote simd_ballot(bool value, EMU_SITE) { return {_ballot(value, site, "simd_ballot").x}; }
EMU_UNCHECKED inline bool simd_all(bool value, EMU_SITE) {
  ulong2 votes = _ballot(value, site, "simd_all");
  return votes.x == votes.y;
}
EMU_UNCHECKED inline bool simd_any(bool value, EMU_SITE) { return _ballot(value, site, "simd_any").x != 0; }

}  // namespace metal
