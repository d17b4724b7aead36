// CausalConvWithState: a depthwise convolution that looks back, over what came before and what comes now.
#include <algorithm>
#include <bit>
#include <cmath>

#include "device/divide.h"
#include "device/fast_math.h"
#include "device/launch.h"
#include "device/transform.h"
#include "ops/choice.h"
#include "ops/dispatch.h"
#include "ops/next_state.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

using device::Divider;
using device::Pack;

bool is_silu(const NodeInfo& node) {
  return read_choice<bool>(node, "activation", "none", {{"none", false}, {"silu", true}, {"swish", true}});
}
int64_t dilation_of(const NodeInfo& node) {
  const int64_t dilation = node.get_int("dilation", 1);
  require(dilation >= 1 && dilation <= INT32_MAX, "dilation is ", dilation, "; it must be at least 1");
  return dilation;
}
int64_t few(const NodeInfo& node, const char* attribute) {
  const int64_t value = node.get_int(attribute, 0);
  require(value >= 0 && value <= 8, attribute, " is ", value, "; it must be from 0 to 8");
  return value;
}
template <class T>
const T* data_of(const Tensor* tensor) {
  return tensor ? tensor->as<const T>() : nullptr;
}

// Where the element of a channel at a place is: batch * by_batch + channel * by_channel + place * by_place.
struct Lay {
  int64_t by_batch, by_channel, by_place;

  Lay(bool last, int64_t channels, int64_t places)
      : by_batch(channels * places), by_channel(last ? 1 : places), by_place(last ? channels : 1) {}
  DEVICE_FN int64_t operator()(int64_t batch, int64_t channel, int64_t place) const {
    return batch * by_batch + channel * by_channel + place * by_place;
  }
};

template <class T>
struct Taps {
  const T *w, *bias;  // bias may be null
  int64_t kernel, dilation;
  bool silu;

  // seen(distance): what was there so many places before.
  template <class F>
  DEVICE_FN T sum(int64_t channel, F seen) const {
    float sum = bias ? float(bias[channel]) : 0;
    for (int64_t j = 0; j < kernel; ++j)
      sum += float(w[channel * kernel + j]) * float(seen((kernel - 1 - j) * dilation));
    if (silu) sum = sum / (1 + expf(-sum));
    return T(sum);
  }
};

// A thread makes a number of y, or of one of the states after the last places, which follow y's places.
template <class T>
struct CausalConv {
  Taps<T> taps;
  const T *x, *past;  // past may be null
  T *y, *present;
  int64_t length, kept, slots, slot_size;  // kept: of a state
  Lay lay, state;
  bool last;
  int64_t first_place;
  Divider by_places, by_channels;  // places from the first on

  DEVICE_FN void operator()(int64_t i) const {
    int64_t place, channel, batch;
    if (last) {
      batch = by_places(by_channels(i, channel), place);
    } else {
      batch = by_channels(by_places(i, place), channel);
    }
    place += first_place;
    if (place < length) {
      y[lay(batch, channel, place)] =
          taps.sum(channel, [&](int64_t distance) { return seen(batch, channel, place - distance); });
      return;
    }
    int64_t slot = 0;
    for (place -= length; place >= kept; place -= kept) ++slot;
    const int64_t end = length - (slots - 1 - slot);  // places that this state is after
    present[slot * slot_size + state(batch, channel, place)] =
        end > 0 || slot == slots - 1 ? seen(batch, channel, end + place - kept) : T(0.f);
  }

 private:
  DEVICE_FN T seen(int64_t batch, int64_t channel, int64_t at) const {
    if (at >= 0) return x[lay(batch, channel, at)];
    return past ? past[(slots - 1) * slot_size + state(batch, channel, at + kept)] : T(0.f);
  }
};

// The same for packs of neighbours, of a few taps: along places, or along channels where those are last. States are
// left to CausalConv.
template <class T, int kKernel, bool kLast>
struct WideConv {
  static constexpr int kPack = device::pack_size<T>();
  using Values = Pack<T, kPack>;
  using Sums = Pack<float, kPack>;

  Taps<T> taps;
  const T *x, *past;  // past may be null
  T* y;
  int64_t length, kept, channels;
  Divider by_packs, by_rows;  // packs of a row; rows of an image: places if channels are last, else channels

  DEVICE_FN void operator()(int64_t i) const {
    int64_t pack, row;
    const int64_t batch = by_rows(by_packs(i, pack), row), first = pack * kPack;
    Sums sums{};
    if (taps.bias) {
      if constexpr (kLast) {
        const Values bias = load(taps.bias + first);
        UNROLL for (int k = 0; k < kPack; ++k) sums.at[k] = float(bias.at[k]);
      } else {
        UNROLL for (int k = 0; k < kPack; ++k) sums.at[k] = float(taps.bias[row]);
      }
    }
    if constexpr (kLast)
      sums = add_channels(batch, row, first, sums);
    else
      sums = add_places(batch, row, first, sums);
    Values made;
    UNROLL for (int k = 0; k < kPack; ++k) {
      const float sum = sums.at[k], squashed = sum * device::fast_reciprocal(1 + expf(-sum));
      made.at[k] = T(taps.silu ? squashed : sum);
    }
    const int64_t at = kLast ? (batch * length + row) * channels + first : (batch * channels + row) * length + first;
    static_assert(sizeof(Values) == sizeof(Bytes16));  // stored as words: nvcc takes this pack apart
    *reinterpret_cast<Bytes16*>(y + at) = std::bit_cast<Bytes16>(made);
  }

 private:
  DEVICE_FN static Values load(const T* from) { return *reinterpret_cast<const Values*>(from); }

  // Neighbouring places read each other's: this pack, and the end of what is before.
  DEVICE_FN Sums add_places(int64_t batch, int64_t channel, int64_t first, Sums sums) const {
    const int64_t row = batch * channels + channel;
    const Values here = load(x + row * length + first);
    float seen[kKernel - 1 + kPack];
    if (first > 0) {
      const Values before = load(x + row * length + first - kPack);
      UNROLL for (int k = 0; k < kKernel - 1; ++k) seen[k] = float(before.at[kPack - (kKernel - 1) + k]);
    } else {
      UNROLL for (int k = 0; k < kKernel - 1; ++k) seen[k] = past ? float(past[row * kept + k]) : 0.f;
    }
    UNROLL for (int k = 0; k < kPack; ++k) seen[kKernel - 1 + k] = float(here.at[k]);
    UNROLL for (int j = 0; j < kKernel; ++j) {
      const float w = float(taps.w[channel * kKernel + j]);
      UNROLL for (int k = 0; k < kPack; ++k) sums.at[k] += w * seen[j + k];
    }
    return sums;
  }
  // The weights of neighbouring channels lie side by side, too.
  DEVICE_FN Sums add_channels(int64_t batch, int64_t place, int64_t first, Sums sums) const {
    Values w[kKernel], seen[kKernel];
    UNROLL for (int j = 0; j < kKernel; ++j) {
      w[j] = load(taps.w + first * kKernel + j * kPack);
      const int64_t at = place - (kKernel - 1 - j) * taps.dilation;
      seen[j] = Values{};
      if (at >= 0)
        seen[j] = load(x + (batch * length + at) * channels + first);
      else if (past)
        seen[j] = load(past + (batch * kept + at + kept) * channels + first);
    }
    UNROLL for (int j = 0; j < kKernel; ++j) {
      UNROLL for (int k = 0; k < kPack; ++k) {
        const int at = k * kKernel + j;
        sums.at[k] += float(w[at / kPack].at[at % kPack]) * float(seen[j].at[k]);
      }
    }
    return sums;
  }
};

class CausalConvWithState : public Op {
 public:
  explicit CausalConvWithState(const NodeInfo& node)
      : silu_(is_silu(node)),
        last_(node.get_int("channels_last", 0) != 0),
        dilation_(dilation_of(node)),
        windows_(few(node, "state_window")) {
    read_choice<int>(node, "ndim", 1, {{1, 1}});
  }
  void run(Context& context) const override {
    const Tensor &x = context.input(0), &w = context.input(1);
    const Tensor *bias = context.find_input(2), *past = context.find_input(3);
    require(last_ ? x.shape.rank() >= 3 : x.shape.rank() == 3, "the input has shape ", x.shape.str(), ", not (batch, ",
            last_ ? "length, channels...)" : "channels, length)");
    const int64_t batch = x.shape[0], length = x.shape[last_ ? 1 : 2];
    const int64_t channels = last_ ? x.shape.count(2, x.shape.rank()) : x.shape[1];
    require(w.shape.rank() == 3 && w.shape[0] == channels && w.shape[1] == 1 && w.shape[2] >= 1,
            "the weight has shape ", w.shape.str(), ", not (", channels, ", 1, k)");
    const int64_t kernel = w.shape[2], kept = checked_product(kernel - 1, dilation_);
    require(!bias || bias->shape == Shape{channels}, "the bias has another shape than (", channels, ")");
    Shape state = x.shape.with(last_ ? 1 : 2, kept);
    const int64_t slot_size = state.count(), slots = windows_ ? windows_ : 1;
    if (windows_) {
      std::vector<int64_t> dims(state.dims().begin(), state.dims().end());
      dims.insert(dims.begin(), windows_);
      state = Shape(dims);
    }
    require(!past || past->shape == state, "past_state has another shape than ", state.str());
    const Tensor y = context.output(0, x.shape);
    const Tensor present = context.wants_output(1) ? context.output(1, state) : Tensor();
    const int64_t states = present.data ? checked_product(slots, kept) : 0;
    const NextState next(context, present, past);
    dispatch(TypeList<float, Half, BFloat16>{}, x.type, [&]<class T> {
      const Taps<T> taps{w.as<const T>(), data_of<T>(bias), kernel, dilation_, silu_};
      const T* const before = past ? past->as<const T>() + (slots - 1) * slot_size : nullptr;
      const bool wide = run_wide(context.stream(), taps, x, before, y, channels, length, kept);
      const int64_t places = states + (wide ? 0 : length);
      const int64_t count = checked_product(checked_product(batch, channels), places);
      device::for_each_index(
          context.stream(), count,
          CausalConv<T>{taps, x.as<const T>(), data_of<T>(past), y.as<T>(), static_cast<T*>(next.data()), length, kept,
                        slots, slot_size, Lay(last_, channels, length), Lay(last_, channels, kept), last_,
                        wide ? length : 0, Divider(places, count), Divider(channels, count)});
    });
    next.settle(context.stream());
  }

 private:
  // False where WideConv does not do it.
  template <class T>
  bool run_wide(StreamRef stream, const Taps<T>& taps, const Tensor& x, const T* past, const Tensor& y,
                int64_t channels, int64_t length, int64_t kept) const {
    constexpr int kPack = device::pack_size<T>();
    const auto aligned = [](const T* address) { return device::is_pack_aligned<kPack>(address); };
    const int64_t row = last_ ? channels : length, rows = last_ ? length : channels;
    if (row % kPack != 0 || row == 0 || (!last_ && dilation_ != 1) || !aligned(x.as<const T>()) ||
        !aligned(y.as<const T>()) || (last_ && (!aligned(taps.w) || !aligned(taps.bias) || !aligned(past))))
      return false;
    const int64_t count = x.count() / kPack;
    const auto launch = [&]<int kKernel, bool kLast> {
      device::for_each_index(stream, count,
                             WideConv<T, kKernel, kLast>{taps, x.as<const T>(), past, y.as<T>(), length, kept, channels,
                                                         Divider(row / kPack, count), Divider(rows, count)});
      return true;
    };
    switch (taps.kernel) {
      case 3: return last_ ? launch.template operator()<3, true>() : launch.template operator()<3, false>();
      case 4: return last_ ? launch.template operator()<4, true>() : launch.template operator()<4, false>();
      default: return false;
    }
  }

  bool silu_, last_;
  int64_t dilation_, windows_;
};

// Where each sequence's tokens begin among all, and one more. A sequence whose range is none of the tokens is left out.
struct Ends {
  const int32_t* ends;
  int64_t batches, tokens;

  DEVICE_FN void check(int64_t batch, device::FaultRef fault) const {
    const int64_t begin = ends[batch], end = ends[batch + 1];
    if (begin < 0 || end < begin || end > tokens) fault.report(device::FaultKind::index_out_of_range, end, tokens);
  }
  DEVICE_FN bool find(int64_t batch, int64_t& begin, int64_t& end) const {
    begin = ends[batch], end = ends[batch + 1];
    return 0 <= begin && begin < end && end <= tokens;
  }
  // The sequence of a token; `batches` if there is none.
  DEVICE_FN int64_t of(int64_t token) const {
    int64_t low = 0, high = batches;  // the first whose end is beyond the token
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (ends[middle + 1] > token)
        high = middle;
      else
        low = middle + 1;
    }
    return low;
  }
};

template <class T>
struct PackedConv {
  Taps<T> taps;
  const T *x, *past;
  T* y;
  Ends ends;
  int64_t count, channels, kept;
  Divider by_channels;
  device::FaultRef fault;

  // There are as many indices as sequences, too, which are looked at on the way: ends may be wrong where no token shows
  // it.
  DEVICE_FN void operator()(int64_t i) const {
    if (i < ends.batches) ends.check(i, fault);
    if (i >= count) return;
    int64_t channel, begin = 0, end = 0;
    const int64_t token = by_channels(i, channel), batch = ends.of(token);
    if (batch == ends.batches || !ends.find(batch, begin, end) || token < begin || ends.ends[0] != 0) {
      fault.report(device::FaultKind::index_out_of_range, end, ends.tokens);
      y[i] = T(0.f);
      return;
    }
    y[i] = taps.sum(channel, [&](int64_t distance) {
      const int64_t at = token - distance;
      return at >= begin ? x[at * channels + channel] : past[(batch * channels + channel) * kept + (at - begin) + kept];
    });
  }
};

// The state after each sequence. A thread has a channel's whole state, since both may be the same memory.
template <class T>
struct PackedState {
  const T *x, *past;
  T* present;
  Ends ends;
  int64_t channels, kept;
  Divider by_channels;

  DEVICE_FN void operator()(int64_t i) const {
    int64_t channel, begin, end;
    const int64_t batch = by_channels(i, channel);
    if (!ends.find(batch, begin, end)) end = begin = 0;
    const T* const from = past + i * kept;
    T* const to = present + i * kept;
    for (int64_t k = 0; k < kept; ++k) {
      const int64_t at = end - begin + k - kept;
      to[k] = at >= 0 ? x[(begin + at) * channels + channel] : from[at + kept];
    }
  }
};

// The first tokens of each sequence, as many as are counted, and zeros.
template <class T>
struct FirstTokens {
  const T* x;
  T* first;
  const int32_t* counts;
  Ends ends;
  int64_t channels;
  Divider by_channels, by_most;

  DEVICE_FN void operator()(int64_t i) const {
    int64_t channel, slot, begin, end;
    const int64_t batch = by_most(by_channels(i, channel), slot);
    const bool there = ends.find(batch, begin, end) && slot < counts[batch] && slot < end - begin;
    first[i] = there ? x[(begin + slot) * channels + channel] : T(0.f);
  }
};

class VarlenCausalConvWithState : public Op {
 public:
  explicit VarlenCausalConvWithState(const NodeInfo& node)
      : silu_(is_silu(node)), dilation_(dilation_of(node)), most_(few(node, "state_update_capacity")) {
    require((most_ > 0) == node.has_input(5), "state_update_capacity ", most_, most_ > 0 ? " needs" : " takes no",
            " capture_count");
    require(most_ > 0 || !node.has_output(2), "state_update is asked for, and state_update_capacity is 0");
  }
  void run(Context& context) const override {
    const Tensor &x = context.input(0), &w = context.input(1), &given = context.input(2), &past = context.input(4);
    const Tensor *bias = context.find_input(3), *counts = context.find_input(5);
    require(x.shape.rank() == 2, "the input has shape ", x.shape.str(), ", not (tokens, channels)");
    const int64_t tokens = x.shape[0], channels = x.shape[1];
    require(w.shape.rank() == 3 && w.shape[0] == channels && w.shape[1] == 1 && w.shape[2] >= 1,
            "the weight has shape ", w.shape.str(), ", not (", channels, ", 1, k)");
    require(!bias || bias->shape == Shape{channels}, "the bias has another shape than (", channels, ")");
    require(given.shape.rank() == 1 && given.shape[0] >= 1, "cumulative_sequence_length has shape ", given.shape.str(),
            "; one more than the sequences is wanted");
    const int64_t batch = given.shape[0] - 1, kernel = w.shape[2], kept = checked_product(kernel - 1, dilation_);
    const Shape state{batch, channels, kept};
    require(past.shape == state, "initial_state has shape ", past.shape.str(), ", not ", state.str());
    require(!counts || counts->shape == Shape{batch}, "capture_count has another shape than ", Shape{batch}.str());
    const Tensor y = context.output(0, x.shape);
    const Tensor present = context.output(1, state);
    const Tensor first = most_ && context.wants_output(2) ? context.output(2, Shape{batch, most_, channels}) : Tensor();
    const Ends ends{given.as<const int32_t>(), batch, tokens};
    const Divider by_channels(channels, std::max({x.count(), batch * channels, batch * most_ * channels}));
    dispatch(TypeList<float, Half, BFloat16>{}, x.type, [&]<class T> {
      const Taps<T> taps{w.as<const T>(), data_of<T>(bias), kernel, dilation_, silu_};
      device::for_each_index(context.stream(), std::max(x.count(), batch),
                             PackedConv<T>{taps, x.as<const T>(), past.as<const T>(), y.as<T>(), ends, x.count(),
                                           channels, kept, by_channels, context.fault()});
      if (present.data)
        device::for_each_index(
            context.stream(), kept ? batch * channels : 0,
            PackedState<T>{x.as<const T>(), past.as<const T>(), present.as<T>(), ends, channels, kept, by_channels});
      if (first.data)
        device::for_each_index(context.stream(), first.count(),
                               FirstTokens<T>{x.as<const T>(), first.as<T>(), counts->as<const int32_t>(), ends,
                                              channels, by_channels, Divider(most_, batch * most_)});
    });
  }

 private:
  bool silu_;
  int64_t dilation_, most_;
};

}  // namespace

std::vector<OpRow> causal_conv_rows() {
  const Types types = kHalves | Types{Type::f32};
  return {{.name = "CausalConvWithState", .since = 27, .types = {in(0, types)}, .make = make<CausalConvWithState>},
          {.domain = kMicrosoft,
           .name = "CausalConvWithState",
           .since = 1,
           .types = {in(0, types)},
           .make = make<CausalConvWithState>},
          {.domain = kMicrosoft,
           .name = "VarlenCausalConvWithState",
           .since = 1,
           .types = {in(0, types), in(2, Types{Type::i32}), in(5, Types{Type::i32})},
           .make = make<VarlenCausalConvWithState>}};
}

}  // namespace encore::ops
