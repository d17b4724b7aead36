// Pad in its four modes.
#include <algorithm>
#include <cstring>

#include "device/divide.h"
#include "device/pieces.h"
#include "ops/choice.h"
#include "ops/dispatch.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

enum class PadMode { constant, reflect, edge, wrap };

// One dimension: what is left of it when cropped, and how that lies in the result.
struct PadDim {
  int64_t in, out, stride, before;
};

// Where the elements of the result come from.
constexpr int kMostDims = 16;
struct PadSource {
  PadMode mode;
  int64_t offset;  // of the first element that is not cropped
  int rank;
  device::Divider out_dims[kMostDims];
  int64_t in_dims[kMostDims], in_strides[kMostDims], before[kMostDims];

  // The index of the input's element, or -1 for the constant, and how many of the result lie as it does, `step` apart.
  struct Place {
    int64_t from, left, step;
  };
  DEVICE_FN Place operator()(int64_t i) const {
    int64_t from = offset, left = 1, left_of_row = 1, step = 1;
    NO_UNROLL for (int d = rank - 1; d >= 0; --d) {
      int64_t at;
      i = out_dims[d](i, at);
      const int64_t dim = in_dims[d], end = out_dims[d].divisor();
      if (d == rank - 1) left_of_row = end - at;
      at -= before[d];
      if (at >= 0 && at < dim) {
        if (d == rank - 1) {
          left = dim - at;
          step = in_strides[d];
        }
      } else if (mode == PadMode::constant) {
        return {-1, d == rank - 1 && at < 0 ? -at : left_of_row, 1};
      } else if (mode == PadMode::edge) {
        at = at < 0 ? 0 : dim - 1;
      } else if (mode == PadMode::wrap) {
        at = (at % dim + dim) % dim;
      } else {  // reflect, without repeating the edge
        at = at < 0 ? -at : 2 * (dim - 1) - at;
      }
      from += at * in_strides[d];
    }
    return {from, left, step};
  }
};

template <class T>
struct PaddedPieces {
  const T* in;
  T value;
  PadSource source;
  DEVICE_FN device::Piece<T> operator()(int64_t i) const {
    const PadSource::Place place = source(i);
    if (place.from < 0) return {nullptr, place.left};
    return {in + place.from, place.left, place.step};
  }
};

// An index makes a byte of several elements.
struct PadPacked {
  const uint8_t* in;
  uint8_t* out;
  uint8_t value;  // in the low bits
  int bits;
  int64_t count;  // of the result's elements
  PadSource source;
  DEVICE_FN void operator()(int64_t i) const {
    const int each = 8 / bits;
    uint32_t byte = 0;
    for (int e = 0; e < each && i * each + e < count; ++e) {
      const int64_t from = source(i * each + e).from;
      const uint32_t held = from < 0 ? value : uint32_t(in[from / each]) >> (from % each * bits);
      byte |= (held & ((1u << bits) - 1)) << (e * bits);
    }
    out[i] = uint8_t(byte);
  }
};

class Pad : public Op {
 public:
  explicit Pad(const NodeInfo& node) : pads_(node.find_ints("pads")), value_(node.get_float("value", 0)) {
    if (!pads_) pads_ = node.find_ints("paddings");  // opset 1
    mode_ = read_choice<PadMode>(node, "mode", "constant",
                                 {{"constant", PadMode::constant},
                                  {"reflect", PadMode::reflect},
                                  {"edge", PadMode::edge},
                                  {"wrap", PadMode::wrap}});
    const Tensor* constant = pads_ ? nullptr : node.constant_input(1);
    const std::vector<int64_t> pads = pads_ ? *pads_ : constant ? host_ints(*constant, "pads") : std::vector<int64_t>();
    size_t padded = 0;
    for (size_t i = 0; i < pads.size() / 2; ++i) padded += pads[i] != 0 || pads[i + pads.size() / 2] != 0;
    check_rank(padded);
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
    std::vector<int64_t> before(static_cast<size_t>(rank)), after(before), dims(before);
    for (size_t i = 0; i < axes.size(); ++i) {
      const auto axis = size_t(checked_axis(axes[i], rank));
      before[axis] = given[i];
      after[axis] = given[i + axes.size()];
    }
    const auto strides = strides_of(in.shape);
    std::vector<PadDim> all;
    int64_t offset = 0;  // of the first element that is not cropped
    for (size_t i = 0; i < dims.size(); ++i) {
      const int64_t dim = in.shape[int(i)];
      require(!__builtin_add_overflow(dim, before[i], &dims[i]) &&
                  !__builtin_add_overflow(dims[i], after[i], &dims[i]) && dims[i] >= 0,
              "padding ", before[i], " and ", after[i], " do not fit axis ", i, ", which has ", dim);
      // What is negative crops, before anything is added.
      const int64_t first = std::clamp<int64_t>(before[i], -dim, 0), last = std::clamp<int64_t>(after[i], -dim, 0);
      const PadDim next{std::max<int64_t>(dim + first + last, 0), dims[i], strides[i], std::max<int64_t>(before[i], 0)};
      check_source(next, i, dim, in.count() == 0, std::max<int64_t>(after[i], 0));
      if (next.in > 0) offset -= first * next.stride;
      all.push_back(next);
    }
    const Tensor out = context.output(0, Shape(dims));
    if (out.count() == 0) return;
    const std::vector<PadDim> padded = joined(all);
    check_rank(padded.size());
    PadSource source{mode_, offset, 0, {}, {}, {}, {}};
    for (const PadDim& dim : padded) {
      source.out_dims[source.rank] = device::Divider(dim.out, out.count());
      source.in_dims[source.rank] = dim.in;
      source.in_strides[source.rank] = dim.stride;
      source.before[source.rank++] = dim.before;
    }
    const uint64_t value = fill_value(context, in.type);
    if (device::is_packed(in.type))
      return device::for_each_index(context.stream(), int64_t(out.bytes()),
                                    PadPacked{in.as<const uint8_t>(), out.as<uint8_t>(), uint8_t(value),
                                              device::size_bits(in.type), out.count(), source});
    dispatch_size(device::size_bytes(in.type), [&]<class T>() {
      if constexpr (sizeof(T) <= sizeof value) {
        PaddedPieces<T> pad{in.as<const T>(), {}, source};
        std::memcpy(&pad.value, &value, sizeof(T));
        const bool long_pieces = !padded.empty() && padded.back().in >= 8 * device::pack_size<T>();
        device::fill_rows(context.stream(), out.as<T>(), 1, out.count(), out.count(), long_pieces, pad);
      }
    });
  }

 private:
  static void check_rank(size_t rank) {
    if (rank > kMostDims)
      fail(Code::not_supported, "padding along ", rank, " dimensions; up to ", kMostDims, " are supported");
  }

  // Whether there are values to fill the padding with.
  void check_source(const PadDim& padded, size_t axis, int64_t dim, bool is_empty, int64_t after) const {
    if (mode_ == PadMode::constant) return;
    if (is_empty) {
      require(dim > 0 || padded.out == 0, "axis ", axis, " is empty and can only be padded with a constant");
      return;
    }
    require(padded.in > 0, "negative pads leave nothing of axis ", axis, ", which has ", dim,
            "; such an axis can only be padded with a constant");
    require(mode_ != PadMode::reflect || std::max(padded.before, after) < padded.in, "pads ", padded.before, " and ",
            after, " are too long to reflect; axis ", axis, " has ", padded.in - 1,
            " values beside the edge once it is cropped");
  }

  // Neighbours that are padded as one.
  std::vector<PadDim> joined(const std::vector<PadDim>& all) const {
    std::vector<PadDim> dims;
    for (const PadDim& next : all) {
      const bool kept = next.in == next.out;
      if (kept && next.in == 1) continue;
      PadDim* const outer = dims.empty() ? nullptr : &dims.back();
      if (outer && kept && outer->stride == next.stride * next.in &&
          (mode_ == PadMode::constant || outer->in == outer->out))
        *outer = {outer->in * next.in, outer->out * next.out, next.stride, outer->before * next.out};
      else
        dims.push_back(next);
    }
    return dims;
  }

  uint64_t fill_value(Context& context, Type type) const {
    uint64_t bits = 0;
    if (const Tensor* given = pads_ ? nullptr : context.find_input(2)) {
      require(given->type == type && given->count() == 1, "constant_value must be one value of the input's type");
      std::memcpy(&bits, given->data, given->bytes());
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
  return {
      {.name = "Pad", .since = 1, .types = {in(0, kFixedSize | kPacked)}, .make = make<Pad>, .host_inputs = {1, 2, 3}}};
}

}  // namespace encore::ops
