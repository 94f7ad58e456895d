// How the executor calls a kernel: arguments by their attributes, and the table that tells their types. Written for what the translator emits.
#pragma once

namespace emu {

template <class T, int Id>
inline threadgroup T& threadgroup_variable() {
#if EMU_CHECK_SPACES
  return *(threadgroup T*)0;
#else
  static const char key = 0;
  return *(T*)emu_threadgroup_variable(&key, sizeof(T), alignof(T));
#endif
}

// A place in the grid, as uint or ushort, with up to three components.
template <class V>
EMU_UNCHECKED inline V place(const uint32_t* p) {
  using E = typename metal::_traits<V>::Element;
  static_assert(std::is_same_v<E, uint> || std::is_same_v<E, ushort>, "a position attribute needs uint or ushort");
  if constexpr (metal::_is_vector<V>) {
    V v;
    for (int i = 0; i < metal::_size<V>; i++) v[i] = (E)p[i];
    return v;
  } else {
    return (E)p[0];
  }
}

template <class A>
struct ArgumentType {
  static constexpr bool pointer = std::is_pointer_v<A>, reference = std::is_reference_v<A>;
  using Pointee = std::remove_pointer_t<std::remove_reference_t<A>>;
  using Sized = std::conditional_t<std::is_void_v<Pointee>, char, Pointee>;
};

template <class A, Kind K, int I>
EMU_UNCHECKED inline decltype(auto) argument(const Context* c) {
  using T = ArgumentType<A>;
  if constexpr (K == K_BUFFER || K == K_THREADGROUP) {
    static_assert(T::pointer || T::reference, "[[buffer]]/[[threadgroup]] needs a pointer or a reference");
    void* p = K == K_BUFFER ? c->buffer[I] : c->group_memory[I];
    if constexpr (T::reference) return (A) * (typename T::Pointee*)p;
    else return (A)p;
  } else {
    static_assert(!T::pointer && !T::reference, "attribute needs a value");
    if constexpr (K == K_POSITION_IN_GRID) return place<A>(c->position);
    else if constexpr (K == K_POSITION_IN_GROUP) return place<A>(c->position_in_group);
    else if constexpr (K == K_GROUP_POSITION) return place<A>(c->group);
    else if constexpr (K == K_THREADS_PER_GROUP) return place<A>(c->threads);
    else if constexpr (K == K_DISPATCH_THREADS_PER_GROUP) return place<A>(c->dispatch_threads);
    else if constexpr (K == K_THREADS_PER_GRID) return place<A>(c->grid);
    else if constexpr (K == K_GROUPS_PER_GRID) return place<A>(c->groups);
    else {
      static_assert(std::is_same_v<A, uint> || std::is_same_v<A, ushort>, "attribute needs uint or ushort");
      return (A)(K == K_INDEX_IN_GROUP ? c->index : K == K_LANE ? c->lane : K == K_SIMDGROUP ? c->simdgroup : K == K_SIMDGROUPS_PER_GROUP ? c->simdgroups : 32u);
    }
  }
}

template <auto F, const Parameter* P, class S = decltype(F)>
struct Thunk;
template <auto F, const Parameter* P, class... A>
struct Thunk<F, P, void (*)(A...)> {
  template <size_t... N>
  EMU_UNCHECKED static inline void call(const Context* c, std::index_sequence<N...>) {
    F(argument<A, P[N].kind, P[N].index>(c)...);
  }
  EMU_UNCHECKED static void run(const Context* c) { call(c, std::index_sequence_for<A...>{}); }

  struct Table { Argument argument[sizeof...(A) + 1]; };
  template <size_t... N>
  static constexpr Table make(std::index_sequence<N...>) {
    return Table{{Argument{P[N].kind, P[N].index, ArgumentType<A>::pointer, ArgumentType<A>::reference, std::is_const_v<typename ArgumentType<A>::Pointee>,
                           (uint32_t)sizeof(typename ArgumentType<A>::Sized), (uint32_t)alignof(typename ArgumentType<A>::Sized)}...}};
  }
  static constexpr Table table = make(std::index_sequence_for<A...>{});
  static constexpr int count = sizeof...(A);
};

template <class T>
constexpr char type_code() {
  return std::is_same_v<T, bool> ? 'b' : std::is_same_v<T, int> ? 'i' : std::is_same_v<T, uint> ? 'u' : std::is_same_v<T, float> ? 'f' : std::is_same_v<T, half> ? 'h' : std::is_same_v<T, short> ? 's' : std::is_same_v<T, ushort> ? 't' : '?';
}

}  // namespace emu
