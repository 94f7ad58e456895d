// Atomics. MSL has the relaxed order only: they order nothing else.
#pragma once

namespace metal {

enum memory_order { memory_order_relaxed };
template <class T>
struct atomic {
  T value;
};
typedef atomic<int> atomic_int;
typedef atomic<uint> atomic_uint;
typedef atomic<float> atomic_float;
typedef atomic<bool> atomic_bool;

#if EMU_CHECK_SPACES
#define EMU_ATOMICS(SPACE)                                                          \
  template <class T>                                                                \
  T atomic_load_explicit(const volatile SPACE atomic<T>* o, memory_order);          \
  template <class T>                                                                \
  void atomic_store_explicit(volatile SPACE atomic<T>* o, T x, memory_order);       \
  template <class T>                                                                \
  bool atomic_compare_exchange_weak_explicit(volatile SPACE atomic<T>* o, thread T* expected, T x, memory_order, memory_order); \
  EMU_ATOMIC(SPACE, exchange)                                                       \
  EMU_ATOMIC(SPACE, fetch_add)                                                      \
  EMU_ATOMIC(SPACE, fetch_sub)                                                      \
  EMU_ATOMIC(SPACE, fetch_and)                                                      \
  EMU_ATOMIC(SPACE, fetch_or)                                                       \
  EMU_ATOMIC(SPACE, fetch_max)                                                      \
  EMU_ATOMIC(SPACE, fetch_min)
#define EMU_ATOMIC(SPACE, name) \
  template <class T>            \
  T atomic_##name##_explicit(volatile SPACE atomic<T>* o, T x, memory_order);
EMU_ATOMICS(device)
EMU_ATOMICS(threadgroup)
#else
template <class T>
inline T atomic_load_explicit(const volatile atomic<T>* o, memory_order) {
  T r;
  __atomic_load(&o->value, &r, __ATOMIC_RELAXED);
  return r;
}
template <class T>
inline void atomic_store_explicit(volatile atomic<T>* o, T x, memory_order) {
  __atomic_store(&o->value, &x, __ATOMIC_RELAXED);
}
template <class T>
inline bool atomic_compare_exchange_weak_explicit(volatile atomic<T>* o, T* expected, T x, memory_order, memory_order) {
  return __atomic_compare_exchange(&o->value, expected, &x, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}
template <class T>
inline T atomic_exchange_explicit(volatile atomic<T>* o, T x, memory_order) {
  T r;
  __atomic_exchange(&o->value, &x, &r, __ATOMIC_RELAXED);
  return r;
}
template <class T>
inline T atomic_fetch_add_explicit(volatile atomic<T>* o, T x, memory_order) {
  if constexpr (std::is_same_v<T, float>) {
    T seen, sum;
    __atomic_load(&o->value, &seen, __ATOMIC_RELAXED);
    do sum = seen + x;
    while (!__atomic_compare_exchange(&o->value, &seen, &sum, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return seen;
  } else {
    return __atomic_fetch_add(&o->value, x, __ATOMIC_RELAXED);
  }
}
#define EMU_ATOMIC(name)                                                        \
  template <class T>                                                            \
  inline T atomic_##name##_explicit(volatile atomic<T>* o, T x, memory_order) { \
    return __atomic_##name(&o->value, x, __ATOMIC_RELAXED);                     \
  }
EMU_ATOMIC(fetch_sub)
EMU_ATOMIC(fetch_and)
EMU_ATOMIC(fetch_or)
EMU_ATOMIC(fetch_max)
EMU_ATOMIC(fetch_min)
#endif
#undef EMU_ATOMIC

}  // namespace metal
