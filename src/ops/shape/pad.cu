// Pad in its four modes.
#include <cstring>

#include "device/divide.h"
#include "device/launch.h"
#include "ops/dispatch.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

enum class PadMode { constant, reflect, edge, wrap };

template <class T>
struct PadElements {
  const T* in;
  T* out;
  T value;
  PadMode mode;
  int rank;
  device::Divider out_dims[kMaxRank];
  int64_t in_dims[kMaxRank], in_strides[kMaxRank], before[kMaxRank];
  DEVICE_FN void operator()(int64_t i) const {
    int64_t from = 0, rest = i;
    for (int d = rank - 1; d >= 0; --d) {
      int64_t at;
      rest = out_dims[d](rest, at);
      at -= before[d];
      const int64_t dim = in_dims[d];
      if (at < 0 || at >= dim) {
        if (mode == PadMode::constant) {
          out[i] = value;
          return;
        }
        if (mode == PadMode::edge)
          at = at < 0 ? 0 : dim - 1;
        else if (mode == PadMode::wrap)
          at = (at % dim + dim) % dim;
        else {  // reflect, without repeating the edge, as often as the padding is long
          const int64_t period = dim > 1 ? 2 * (dim - 1) : 1;
          at = (at % period + period) % period;
          if (at >= dim) at = period - at;
        }
      }
      from += at * in_strides[d];
    }
    out[i] = in[from];
  }
};

class Pad : public Op {
 public:
  explicit Pad(const NodeInfo& node) : pads_(node.find_ints("pads")), value_(node.get_float("value", 0)) {
    if (!pads_) pads_ = node.find_ints("paddings");  // opset 1
    const std::string mode = node.get_string("mode", "constant");
    if (mode == "constant")
      mode_ = PadMode::constant;
    else if (mode == "reflect")
      mode_ = PadMode::reflect;
    else if (mode == "edge")
      mode_ = PadMode::edge;
    else if (mode == "wrap")
      mode_ = PadMode::wrap;
    else
      fail(Code::not_supported, "mode '", mode, "' is not one of constant, reflect, edge, wrap");
  }

  void run(Context& context) const override {
    const Tensor& in = context.input(0);
    const int rank = in.shape.rank();
    const std::vector<int64_t> given = pads_ ? *pads_ : host_ints(context.input(1), "pads");
    std::vector<int64_t> axes;
    if (const Tensor* named = context.find_input(3))
      axes = host_ints(*named, "axes");
    else
      for (int i = 0; i < rank; ++i) axes.push_back(i);
    require(given.size() == 2 * axes.size(), "pads has ", given.size(), " values for ", axes.size(), " axes");
    std::array<int64_t, kMaxRank> before{}, after{}, dims{};
    for (size_t i = 0; i < axes.size(); ++i) {
      const auto axis = size_t(checked_axis(axes[i], rank));
      before[axis] = given[i];
      after[axis] = given[i + axes.size()];
    }
    for (int i = 0; i < rank; ++i) {
      int64_t& dim = dims[size_t(i)];
      require(!__builtin_add_overflow(in.shape[i], before[size_t(i)], &dim) &&
                  !__builtin_add_overflow(dim, after[size_t(i)], &dim) && dim >= 0,
              "padding ", before[size_t(i)], " and ", after[size_t(i)], " do not fit dimension ", in.shape[i]);
      require(mode_ == PadMode::constant || in.shape[i] > 0 || dim == 0,
              "an empty dimension can only be padded with a constant");
    }
    const Tensor out = context.output(0, Shape(std::span<const int64_t>(dims.data(), size_t(rank))));
    if (out.count() == 0) return;
    const auto in_strides = strides_of(in.shape);
    const size_t bytes = device::size_bytes(in.type);
    const uint64_t value = fill_value(context, in.type);
    dispatch_size(bytes, [&]<class T>() {
      if constexpr (sizeof(T) <= sizeof value) {
        PadElements<T> pad{in.as<const T>(), out.as<T>(), {}, mode_, rank, {}, {}, {}, {}};
        std::memcpy(&pad.value, &value, sizeof(T));
        for (int i = 0; i < rank; ++i) {
          pad.out_dims[i] = device::Divider(dims[size_t(i)], out.count());
          pad.in_dims[i] = in.shape[i];
          pad.in_strides[i] = in_strides[size_t(i)];
          pad.before[i] = before[size_t(i)];
        }
        device::for_each_index(context.stream(), out.count(), pad);
      }
    });
  }

 private:
  uint64_t fill_value(Context& context, Type type) const {
    uint64_t bits = 0;
    if (const Tensor* given = pads_ ? nullptr : context.find_input(2)) {
      require(given->type == type && given->count() == 1, "constant_value must be one value of the input's type");
      std::memcpy(&bits, given->data, device::size_bytes(type));
    } else if (value_ != 0) {
      dispatch(FloatList{}, type, [&]<class T>() {
        const T value = T(value_);
        std::memcpy(&bits, &value, sizeof value);
      });
    }
    return bits;
  }

  PadMode mode_;
  std::optional<std::vector<int64_t>> pads_;
  float value_;
};

}  // namespace

std::vector<OpRow> pad_rows() {
  return {{.name = "Pad", .since = 1, .types = {in(0, kFixedSize)}, .make = make<Pad>, .host_inputs = {1, 2, 3}}};
}

}  // namespace encore::ops
