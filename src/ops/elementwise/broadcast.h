// Elementwise kernels of several operands under NumPy's broadcasting.
#pragma once
#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "device/divide.h"
#include "device/fault.h"
#include "device/transform.h"
#include "ops/elementwise/rough.h"
#include "ops/op.h"

namespace encore::ops {

using device::FaultRef;

inline constexpr int kMostInputs = 4;
struct WalkedDim {
  int64_t size, strides[kMostInputs];  // strides in elements
};
// The dimensions of an output and how they lie in its inputs, which must be broadcastable to it; innermost first. Those
// that every input walks alike are one. The innermost has a stride of 1, or of 0 where an input repeats one value.
std::vector<WalkedDim> walked_dims(const Shape& output, std::span<const Shape> inputs);

// How inputs are walked to make `count` neighbouring outputs.
class Walk {
 public:
  static constexpr int kMostDims = 8;

  Walk(std::span<const WalkedDim> dims, int64_t count);

  // Outputs that are neighbours in every operand that does not repeat.
  BOTH_FN int64_t run() const { return sizes_[0].divisor(); }
  BOTH_FN bool repeats(int input) const { return strides_[0][input] == 0; }
  // Whether all that lies between runs of this operand is a multiple of `count`.
  bool moves_by(int input, int64_t count) const {
    for (int d = 1; d < rank_; ++d)
      if (strides_[d][input] % count != 0) return false;
    return true;
  }
  // Whether output i takes this operand's value i.
  BOTH_FN bool is_flat(int input) const { return flat_ >> input & 1; }

  // Where the operands of output `i` are. Returns how many outputs are left from it to the end of its run.
  template <int kInputs>
  DEVICE_FN int64_t find(int64_t i, int64_t (&at)[kInputs]) const {
    if (small_ && rank_ == 2) return find_in_rows(i, at);
    return small_ ? find_in<uint32_t>(i, at) : find_in<int64_t>(i, at);
  }
  // Where they are for the first output of the run behind that which has `left` outputs from `i` on, at `here`.
  template <int kInputs>
  DEVICE_FN void find_next(int64_t i, int64_t left, const int64_t (&here)[kInputs], int64_t (&at)[kInputs]) const {
    if (rank_ != 2) {
      find(i + left, at);
      return;
    }
    UNROLL for (int k = 0; k < kInputs; ++k) at[k] = here[k] + strides_[1][k] - (run() - left) * strides_[0][k];
  }

 private:
  // The same of rows of outputs, which most are.
  template <int kInputs>
  DEVICE_FN int64_t find_in_rows(int64_t i, int64_t (&at)[kInputs]) const {
    int64_t rest;
    const uint32_t row = uint32_t(sizes_[0](i, rest));
    UNROLL for (int k = 0; k < kInputs; ++k) at[k] =
        int64_t(uint32_t(rest) * uint32_t(strides_[0][k]) + row * uint32_t(strides_[1][k]));
    return run() - rest;
  }
  template <class Index, int kInputs>
  DEVICE_FN int64_t find_in(int64_t i, int64_t (&at)[kInputs]) const {
    Index sums[kInputs] = {};
    int64_t index = i;
    NO_UNROLL for (int d = 0; d + 1 < rank_; ++d) {
      int64_t rest;
      i = int64_t(Index(sizes_[d](i, rest)));
      if (d == 0) index = int64_t(Index(rest));
      UNROLL for (int k = 0; k < kInputs; ++k) sums[k] += Index(rest) * Index(strides_[d][k]);
    }
    UNROLL for (int k = 0; k < kInputs; ++k) at[k] = int64_t(sums[k] + Index(i) * Index(strides_[rank_ - 1][k]));
    return run() - index;
  }

  int rank_ = 0;
  bool small_;         // 32 bits are enough
  unsigned flat_ = 0;  // a bit for each input
  device::Divider sizes_[kMostDims];
  int64_t strides_[kMostDims][kMostInputs] = {};
};

// y[i] = f(x[i]...), computed in float for half types. An f with is_bad(x...) and a FaultRef `fault` reports bad
// operands.
template <class Out, class F, class... In>
struct BroadcastBase {
  static constexpr int kInputs = sizeof...(In), kPack = device::pack_size<Out, In...>();
  static constexpr bool kChecks = requires(F f, Compute<In>... x) { f.is_bad(x...); };
  static constexpr bool kRough = (kIsHalf<In> && ...) && requires(F f, Compute<In>... x) { f.rough(x...); };

  Walk walk;
  int64_t n;
  Out* y;
  const void* x[kInputs];
  F f;

  template <int kCount>
  DEVICE_FN device::Pack<Out, kCount> map(const device::Pack<In, kCount>&... in) const {
    device::Pack<Out, kCount> out;
    UNROLL for (int i = 0; i < kCount; ++i) {
      if constexpr (kRough)
        out.at[i] = Out(f.rough(Compute<In>(in.at[i])...));
      else
        out.at[i] = Out(f(Compute<In>(in.at[i])...));
    }
    if constexpr (kChecks) {
      bool bad = false;
      UNROLL for (int i = 0; i < kCount; ++i) bad |= f.is_bad(Compute<In>(in.at[i])...);
      if (bad) f.fault.report(F::kFault, 0, 0);
    }
    return out;
  }
};

// Packs that each lie in one run, at aligned addresses: most are like this, and a kernel that does nothing else has
// more threads.
template <class Out, class F, class... In>
struct BroadcastWhole : BroadcastBase<Out, F, In...> {
  using Base = BroadcastBase<Out, F, In...>;
  static constexpr int kInputs = Base::kInputs, kPack = Base::kPack;

  DEVICE_FN void operator()(int64_t i) const { make(i * kPack, std::index_sequence_for<In...>{}); }

 private:
  template <size_t... kInput>
  DEVICE_FN void make(int64_t first, std::index_sequence<kInput...>) const {
    int64_t at[kInputs];
    this->walk.find(first, at);
    device::store_pack<kPack>(this->y + first, this->template map<kPack>(load<In>(int(kInput), at[kInput])...), true);
  }
  template <class T>
  DEVICE_FN device::Pack<T, kPack> load(int input, int64_t at) const {
    const T* from = static_cast<const T*>(this->x[input]) + at;
    if (!this->walk.repeats(input)) return device::load_pack<kPack>(from, true);
    const T value = *from;
    device::Pack<T, kPack> pack;
    UNROLL for (int i = 0; i < kPack; ++i) pack.at[i] = value;
    return pack;
  }
};

// Any others. A thread makes a pack of neighbouring outputs, which lie in at most two runs, or one output where runs
// are shorter than a pack.
template <class Out, class F, class... In>
struct Broadcast : BroadcastBase<Out, F, In...> {
  using Base = BroadcastBase<Out, F, In...>;
  static constexpr int kInputs = Base::kInputs, kPack = Base::kPack;
  bool packs;

  DEVICE_FN void operator()(int64_t i) const {
    if (packs)
      make<kPack>(i * kPack, std::index_sequence_for<In...>{});
    else
      make<1>(i, std::index_sequence_for<In...>{});
  }

 private:
  // Where an operand's values for a pack are: `left` of them here, the others there.
  struct Place {
    int64_t here, there;
    int left, count;
    DEVICE_FN bool is_whole() const { return left >= count; }
  };

  template <int kCount, size_t... kInput>
  DEVICE_FN void make(int64_t first, std::index_sequence<kInput...>) const {
    const int count = this->n - first < kCount ? int(this->n - first) : kCount;
    place<kCount>(first, count, std::index_sequence<kInput...>{}, flat<kCount, In>(int(kInput), first, count)...);
  }
  // What lies as the output does is asked for before the others' places are found.
  template <int kCount, class T>
  DEVICE_FN device::Pack<T, kCount> flat(int input, int64_t first, int count) const {
    if (this->walk.is_flat(input) && count == kCount)
      return device::load_unaligned<kCount>(static_cast<const T*>(this->x[input]) + first);
    return {};
  }
  template <int kCount, size_t... kInput>
  DEVICE_FN void place(int64_t first, int count, std::index_sequence<kInput...>,
                       const device::Pack<In, kCount>&... flats) const {
    int64_t here[kInputs], there[kInputs] = {};
    const int64_t left = this->walk.find(first, here);
    if (left < count) this->walk.find_next(first, left, here, there);
    const int whole = left < kCount ? int(left) : kCount;
    device::store_pack<kCount>(this->y + first,
                               this->template map<kCount>(load<kCount, In>(
                                   int(kInput), {here[kInput], there[kInput], whole, count}, flats)...),
                               true, count);
  }
  template <int kCount, class T>
  DEVICE_FN device::Pack<T, kCount> load(int input, const Place& place, const device::Pack<T, kCount>& flat) const {
    if (this->walk.is_flat(input) && place.count == kCount) return flat;
    const T* from = static_cast<const T*>(this->x[input]);
    device::Pack<T, kCount> pack;
    if (this->walk.repeats(input)) {
      const T here = from[place.here], there = place.is_whole() ? here : from[place.there];
      UNROLL for (int i = 0; i < kCount; ++i) pack.at[i] = i < place.left ? here : there;
      return pack;
    }
    if (place.count == kCount && place.is_whole()) return device::load_unaligned<kCount>(from + place.here);
    UNROLL for (int i = 0; i < kCount; ++i) {
      const int j = i < place.count ? i : 0;
      pack.at[i] = from[j < place.left ? place.here + j : place.there + (j - place.left)];
    }
    return pack;
  }
};

// Launches Broadcast for an output of `shape`: once, unless there are more dimensions than a kernel walks. `y` may be
// an input that is not broadcast.
template <class Out, class... In, class F>
void transform_broadcast(StreamRef stream, const Shape& shape, void* y, F f,
                         const std::pair<Shape, const void*> (&x)[sizeof...(In)]) {
  using Kernel = Broadcast<Out, F, In...>;
  using Whole = BroadcastWhole<Out, F, In...>;
  static_assert(Kernel::kInputs <= kMostInputs);
  if (shape.count() == 0) return;
  Shape shapes[Kernel::kInputs];
  for (int k = 0; k < Kernel::kInputs; ++k) shapes[k] = x[k].first;
  const std::vector<WalkedDim> dims = walked_dims(shape, shapes);
  const auto inner = std::span(dims).first(std::min<size_t>(dims.size(), Walk::kMostDims));
  const auto outer = std::span(dims).subspan(inner.size());
  int64_t launches = 1;
  for (const WalkedDim& dim : outer) launches *= dim.size;
  const int64_t n = shape.count() / launches;
  constexpr size_t kBytes[] = {sizeof(In)...};
  for (int64_t launch = 0; launch < launches; ++launch) {
    Kernel kernel{{Walk(inner, n), n, static_cast<Out*>(y) + launch * n, {}, f}, false};
    const int64_t run = kernel.walk.run();
    kernel.packs = device::is_pack_aligned<Kernel::kPack>(kernel.y) && (run >= Kernel::kPack || run == n);
    bool whole = kernel.packs && run % Kernel::kPack == 0;
    for (int k = 0; k < Kernel::kInputs; ++k) {
      int64_t at = 0, rest = launch;
      for (const WalkedDim& dim : outer) {
        at += rest % dim.size * dim.strides[k];
        rest /= dim.size;
      }
      kernel.x[k] = static_cast<const char*>(x[k].second) + at * int64_t(kBytes[k]);
      whole = whole && (kernel.walk.repeats(k) ||
                        (reinterpret_cast<uintptr_t>(kernel.x[k]) % (size_t(Kernel::kPack) * kBytes[k]) == 0 &&
                         kernel.walk.moves_by(k, Kernel::kPack)));
    }
    if (whole) {
      device::for_each_index(stream, n / Kernel::kPack, Whole{kernel});
      continue;
    }
    const int step = kernel.packs ? Kernel::kPack : 1;
    device::for_each_index(stream, (n + step - 1) / step, kernel);
  }
}

// For arithmetic and comparisons which do not care about the sign: int8 becomes uint8, and bool too.
Type as_unsigned(Type type);

}  // namespace encore::ops
