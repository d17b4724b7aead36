// Elementwise kernels of several operands under NumPy's broadcasting.
#pragma once
#include <algorithm>
#include <bit>
#include <span>
#include <utility>
#include <vector>

#include "device/apart.h"
#include "device/divide.h"
#include "device/fault.h"
#include "device/transform.h"
#include "ops/elementwise/channel_map.h"
#include "ops/elementwise/rough.h"
#include "ops/op.h"

namespace encore::ops {

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
  // Whether it lies otherwise in each row of the outermost dimension, which is not the run's.
  bool moves_outermost(int input) const { return rank_ > 1 && strides_[rank_ - 1][input] != 0; }
  // After how many packs they differ by nothing but the outermost dimension.
  int64_t period(int pack) const;
  // How far an operand moves in so many outputs, a multiple of that.
  int64_t moved(int input, int64_t outputs) const;
  // How many runs have values of their own if an operand that repeats has but one a run, in turn; 0 of more dimensions.
  // The other operand must be flat.
  int64_t runs_in_turn() const { return rank_ > 3 ? 0 : rank_ == 1 ? 1 : sizes_[1].divisor(); }
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

  int64_t inner() const;  // outputs in a row of the outermost dimension

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

// Any others. A thread makes packs of neighbouring outputs, each of which lies in at most two runs, or one output where
// runs are shorter than a pack. Its packs are so far apart that all lie in their runs as the first one does, whose
// operands alone have to be found; what is the same for all is read once.
template <class Out, class F, class... In>
struct Broadcast : BroadcastBase<Out, F, In...> {
  using Base = BroadcastBase<Out, F, In...>;
  static constexpr int kInputs = Base::kInputs, kPack = Base::kPack, kAtOnce = kInputs > 2 ? 2 : 4;
  bool packs;
  int64_t whole, step;     // packs that are whole, and from one of a thread to its next
  int64_t moves[kInputs];  // from an operand's values for a pack to those for the next

  int64_t threads() const { return packs ? step + (this->n > whole * kPack) : this->n; }
  DEVICE_FN void operator()(int64_t i) const { run(i, std::index_sequence_for<In...>{}); }

 private:
  // Where an operand's values for a pack are: `left` of them here, the others there.
  struct Place {
    int64_t here, there;
    int left;
  };
  // A thread's packs of an operand, in words: a compiler would take short values for registers of their own.
  template <class T>
  struct Several {
    using Values = device::Pack<T, kPack>;
    using Word = std::conditional_t<sizeof(Values) % 4 == 0, uint32_t, uint8_t>;
    using Words = device::Pack<Word, int(sizeof(Values) / sizeof(Word))>;
    Words words[kAtOnce];
    DEVICE_FN Values operator[](int u) const { return std::bit_cast<Values>(words[u]); }
    DEVICE_FN void set(int u, const Values& values) { words[u] = std::bit_cast<Words>(values); }
  };

  template <size_t... kInput>
  DEVICE_FN void run(int64_t i, std::index_sequence<kInput...> all) const {
    if (packs && i < step) return make(i, all, flat<In>(int(kInput), i)...);
    const int64_t first = packs ? whole * kPack : i, end = packs ? this->n : i + 1;
    NO_UNROLL for (int64_t one = first; one < end; ++one) {
      int64_t at[kInputs];
      this->walk.find(one, at);
      this->y[one] = this->template map<1>(device::Pack<In, 1>{values<In>(int(kInput))[at[kInput]]}...).at[0];
    }
  }
  // What lies as the output does is asked for before the others' places are found.
  template <class T>
  DEVICE_FN Several<T> flat(int input, int64_t i) const {
    Several<T> packs{};
    if (!this->walk.is_flat(input)) return packs;
    const T* const from = values<T>(input) + i * kPack;
    packs.set(0, device::load_unaligned<kPack>(from));
    UNROLL for (int u = 1; u < kAtOnce; ++u) {
      if (has(i, u)) packs.set(u, device::load_pack<kPack>(from + u * moves[input], true));
    }
    return packs;
  }
  template <size_t... kInput>
  DEVICE_FN void make(int64_t i, std::index_sequence<kInput...>, Several<In>... in) const {
    int64_t here[kInputs], there[kInputs] = {};
    const int64_t left = this->walk.find(i * kPack, here);
    if (left < kPack) this->walk.find_next(i * kPack, left, here, there);
    const int first = left < kPack ? int(left) : kPack;
    (take<In>(in, int(kInput), i, {here[kInput], there[kInput], first}), ...);
    UNROLL for (int u = 0; u < kAtOnce; ++u) {
      if (has(i, u)) device::store_pack(this->y + (i + u * step) * kPack, this->template map<kPack>(in[u]...), true);
    }
  }
  template <class T>
  DEVICE_FN void take(Several<T>& packs, int input, int64_t i, const Place& place) const {
    if (this->walk.is_flat(input)) return;
    const T* const from = values<T>(input);
    if (this->walk.repeats(input)) {
      T here[kAtOnce], there[kAtOnce];
      UNROLL for (int u = 0; u < kAtOnce; ++u) {
        const int64_t moved = has(i, u) ? u * moves[input] : 0;
        here[u] = from[place.here + moved];
        there[u] = place.left < kPack ? from[place.there + moved] : here[u];
      }
      UNROLL for (int u = 0; u < kAtOnce; ++u) {
        typename Several<T>::Values values;
        UNROLL for (int j = 0; j < kPack; ++j) values.at[j] = j < place.left ? here[u] : there[u];
        packs.set(u, values);
      }
      return;
    }
    if (place.left == kPack) {
      packs.set(0, device::load_unaligned<kPack>(from + place.here));
    } else {
      typename Several<T>::Values values;
      UNROLL for (int j = 0; j < kPack; ++j) values.at[j] =
          from[j < place.left ? place.here + j : place.there + (j - place.left)];
      packs.set(0, values);
    }
    UNROLL for (int u = 1; u < kAtOnce; ++u) packs.words[u] = packs.words[0];
  }
  DEVICE_FN bool has(int64_t i, int u) const { return u == 0 || i + u * step < whole; }
  template <class T>
  DEVICE_FN const T* values(int input) const {
    return static_cast<const T*>(this->x[input]);
  }
};

// Operands of the output's type of which one lies as the output does and the other has one value a run, as columns and
// numbers of channels are.
template <class T, class F>
struct OneValueARun {
  using C = Compute<T>;
  static constexpr bool kReads = true;
  const T* values;
  F f;
  bool first;  // they are f's first operand
  DEVICE_FN C of(int64_t run) const { return C(values[run]); }
  DEVICE_FN C apply(C of, C x) const { return first ? f(of, x) : f(x, of); }
};

// Whether such operands have a kernel of their own: an F that asks for it with kByRuns.
template <class Out, class F, class... In>
inline constexpr bool kHasRuns = false;
template <class T, class F>
requires F::kByRuns inline constexpr bool kHasRuns<T, F, T, T> = std::is_same_v<T, float> || kIsHalf<T>;

// Does what Broadcast does, if the operands are like that and packs of both runs and what is flat are aligned.
template <class T, class F>
bool broadcast_by_runs(StreamRef stream, const BroadcastBase<T, F, T, T>& given) {
  constexpr int kPack = device::pack_size<T>();
  const Walk& walk = given.walk;
  const int64_t in_turn = walk.runs_in_turn();
  if (in_turn == 0 || walk.run() < kPack || !device::is_pack_aligned<kPack>(given.y)) return false;
  for (const int values : {0, 1}) {
    const auto* const flat = static_cast<const T*>(given.x[1 - values]);
    if (!walk.repeats(values) || !walk.is_flat(1 - values) || !device::is_pack_aligned<kPack>(flat)) continue;
    map_rows<true, 2>(stream, flat, given.y, given.n / walk.run(), in_turn, walk.run(),
                      OneValueARun<T, F>{static_cast<const T*>(given.x[values]), given.f, values == 0});
    return true;
  }
  return false;
}

// What transform_broadcast() does that is the same for all types and functions: all but the launch itself.
class BroadcastPlan {
 public:
  struct Types {
    int pack, at_once;            // values of a pack, and packs that Broadcast has at once
    size_t out, in[kMostInputs];  // bytes of a value
  };
  struct Launch {
    Walk walk;
    int64_t n;
    void* y;
    const void* x[kMostInputs];
    bool in_runs;  // for BroadcastWhole
    bool packs;    // for Broadcast, as all that follows
    int64_t whole, step;
    int64_t moves[kMostInputs];
  };
  BroadcastPlan(StreamRef stream, const Shape& shape, void* y, std::span<const std::pair<Shape, const void*>> x,
                const Types& types);

  // One, unless there are more dimensions than a kernel walks; none where there is no output.
  int64_t launches() const { return launches_; }
  Launch launch(int64_t i) const;

 private:
  StreamRef stream_;
  void* y_;
  std::span<const std::pair<Shape, const void*>> x_;
  Types types_;
  std::vector<WalkedDim> dims_;
  size_t inner_;  // of these, those that a kernel walks
  int64_t launches_ = 1;
  int64_t n_ = 0;  // outputs of a launch
};

// Launches Broadcast for an output of `shape`. `y` may be an input that is not broadcast.
template <class Out, class... In, class F>
void transform_broadcast(StreamRef stream, const Shape& shape, void* y, F f,
                         const std::pair<Shape, const void*> (&x)[sizeof...(In)]) {
  using Kernel = Broadcast<Out, F, In...>;
  using Whole = BroadcastWhole<Out, F, In...>;
  static_assert(Kernel::kInputs <= kMostInputs);
  const BroadcastPlan plan(stream, shape, y, x, {Kernel::kPack, Kernel::kAtOnce, sizeof(Out), {sizeof(In)...}});
  for (int64_t i = 0; i < plan.launches(); ++i) {
    const BroadcastPlan::Launch launch = plan.launch(i);
    Kernel kernel{
        {launch.walk, launch.n, static_cast<Out*>(launch.y), {}, f}, launch.packs, launch.whole, launch.step, {}};
    std::copy_n(launch.x, Kernel::kInputs, kernel.x);
    std::copy_n(launch.moves, Kernel::kInputs, kernel.moves);
    if (launch.in_runs) {
      device::for_each_index(stream, kernel.whole, Whole{kernel});
      continue;
    }
    if constexpr (kHasRuns<Out, F, In...>)
      if (broadcast_by_runs<Out, F>(stream, kernel)) continue;
    device::for_each_index(stream, kernel.threads(), kernel);
  }
}

// For arithmetic and comparisons which do not care about the sign: int8 becomes uint8, and bool too.
Type as_unsigned(Type type);

}  // namespace encore::ops
