// Elementwise kernels: y[i] = f(x[i]...), moved in packs of up to 16 bytes.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "device/launch.h"
#include "device/pack.h"

namespace encore::device {

// Whether packs of kCount values may be moved at this address.
template <int kCount, class T>
BOTH_FN bool is_pack_aligned(const T* address) {
  return reinterpret_cast<uintptr_t>(address) % sizeof(Pack<T, kCount>) == 0;
}

// A pack at an aligned address. Elsewhere a GPU faults, and the virtual one fails. The latter's types say nothing of
// alignment: where packs that are aligned have a branch of their own, g++ may do in both what suits only them.
template <int kCount, class T>
DEVICE_FN Pack<T, kCount> load_aligned(const T* from) {
#ifdef __CUDACC__
  return *reinterpret_cast<const Pack<T, kCount>*>(from);
#else
  virtual_gpu::check_alignment(is_pack_aligned<kCount>(from));
  Pack<T, kCount> pack;
  std::memcpy(&pack, from, sizeof pack);
  return pack;
#endif
}
template <int kCount, class T>
DEVICE_FN void store_aligned(T* to, const Pack<T, kCount>& pack) {
#ifdef __CUDACC__
  *reinterpret_cast<Pack<T, kCount>*>(to) = pack;
#else
  virtual_gpu::check_alignment(is_pack_aligned<kCount>(to));
  std::memcpy(to, &pack, sizeof pack);
#endif
}

// `aligned` is the same for all threads. A pack of which only `count` (at least one) values are there repeats the
// first.
template <int kCount, class T>
DEVICE_FN Pack<T, kCount> load_pack(const T* from, bool aligned, int count = kCount) {
  if (aligned && count == kCount) return load_aligned<kCount>(from);
  Pack<T, kCount> pack;
  UNROLL for (int i = 0; i < kCount; ++i) pack.at[i] = from[i < count ? i : 0];
  return pack;
}
// A pack at any address, in as few pieces as its alignment allows.
template <int kCount, class T>
DEVICE_FN Pack<T, kCount> load_unaligned(const T* from) {
  Pack<T, kCount> pack;
  const auto take = [&]<int kPiece>(int begin, int end) {
    UNROLL for (int i = begin; i < end; i += kPiece) {
      const auto piece = load_aligned<kPiece>(from + i);
      UNROLL for (int j = 0; j < kPiece; ++j) pack.at[i + j] = piece.at[j];
    }
  };
  if (is_pack_aligned<kCount>(from)) {
    take.template operator()<kCount>(0, kCount);
  } else if constexpr (kCount > 2) {
    if (is_pack_aligned<kCount / 2>(from)) {
      take.template operator()<kCount / 2>(0, kCount);
    } else if (is_pack_aligned<2>(from)) {
      take.template operator()<2>(0, kCount);
    } else {  // the neighbours of an odd one are pairs
      pack.at[0] = from[0];
      take.template operator()<2>(1, kCount - 1);
      pack.at[kCount - 1] = from[kCount - 1];
    }
  } else {
    take.template operator()<1>(0, kCount);
  }
  return pack;
}

template <int kCount, class T>
DEVICE_FN void store_pack(T* to, const Pack<T, kCount>& pack, bool aligned, int count = kCount) {
  if (aligned && count == kCount) {
    store_aligned(to, pack);
    return;
  }
  UNROLL for (int i = 0; i < kCount; ++i) {
    if (i < count) to[i] = pack.at[i];
  }
}

// How many values a pack has if its widest type fills 16 bytes.
template <class... T>
constexpr int pack_size() {
  size_t widest = 1;
  ((widest = sizeof(T) > widest ? sizeof(T) : widest), ...);
  return widest < 16 ? int(16 / widest) : 1;
}

template <class Out, class F, class... In>
struct Transform {
  static constexpr int kPack = pack_size<Out, In...>();

  int64_t n;
  Out* y;
  const void* x[sizeof...(In) + 1];  // one more, since there may be no input
  F f;
  bool aligned;

  DEVICE_FN void operator()(int64_t pack) const { apply(pack * kPack, std::index_sequence_for<In...>{}); }

 private:
  template <size_t... kInput>
  DEVICE_FN void apply(int64_t first, std::index_sequence<kInput...>) const {
    const int count = n - first < kPack ? int(n - first) : kPack;
    store_pack(y + first, map(load_pack<kPack>(static_cast<const In*>(x[kInput]) + first, aligned, count)...), aligned,
               count);
  }
  DEVICE_FN Pack<Out, kPack> map(const Pack<In, kPack>&... in) const {
    Pack<Out, kPack> out;
    UNROLL for (int i = 0; i < kPack; ++i) out.at[i] = Out(f(in.at[i]...));
    return out;
  }
};

// y[i] = Out(f(x[i]...)) for i in [0, n). y may be one of the x, but may not overlap one in part. f is pure: the last
// pack may call it again for values it has seen.
template <class Out, class F, class... In>
void transform(StreamRef stream, int64_t n, Out* y, F f, const In*... x) {
  using Kernel = Transform<Out, F, In...>;
  const bool aligned = is_pack_aligned<Kernel::kPack>(y) && (is_pack_aligned<Kernel::kPack>(x) && ...);
  for_each_index(stream, (n + Kernel::kPack - 1) / Kernel::kPack, Kernel{n, y, {x..., nullptr}, f, aligned});
}

}  // namespace encore::device
