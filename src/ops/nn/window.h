// Windows that slide over up to three spatial dimensions: what convolutions and pools share.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "device/divide.h"
#include "ops/op.h"

namespace encore::ops {

inline constexpr int kSpatial = 3;

// [batch, channels, spatial…] or [batch, spatial…, channels]. Shapes are always spoken of as the former.
enum class Layout { channels_first, channels_last };
Layout layout_of(const NodeInfo& node);  // as its domain says, or its name
Shape channels_first(const Shape& stored, Layout layout);
Shape stored(const Shape& channels_first, Layout layout);

// Spatial dimensions that a tensor lacks come first and have size one. All sizes, padded ones too, fit an int.
struct Window {
  int in[kSpatial] = {1, 1, 1}, out[kSpatial] = {1, 1, 1};
  int kernel[kSpatial] = {1, 1, 1}, stride[kSpatial] = {1, 1, 1}, dilation[kSpatial] = {1, 1, 1};
  int before[kSpatial] = {}, after[kSpatial] = {};  // padding

  BOTH_FN int64_t in_count() const { return int64_t(in[0]) * in[1] * in[2]; }
  BOTH_FN int64_t out_count() const { return int64_t(out[0]) * out[1] * out[2]; }
  // From one input position to the next in a dimension.
  int64_t in_step(int d) const { return d == 0 ? int64_t(in[1]) * in[2] : d == 1 ? in[2] : 1; }
  BOTH_FN int64_t taps() const { return int64_t(kernel[0]) * kernel[1] * kernel[2]; }
  // Whether every output position reads its own input position and nothing else.
  bool is_pointwise() const;
  // Whether no two windows share an input position and none reaches into padding.
  bool is_disjoint() const;
  // Whether the window, slid over `in` with its padding, gives just `out`.
  bool is_exact() const;
};

// The attributes of a node with a window; the constructor refuses what no input could make right.
class WindowAttributes {
 public:
  explicit WindowAttributes(const NodeInfo& node);

  // The window that slides over x, channels first. `kernel` is kernel_shape where there is that attribute. Nothing goes
  // with an auto_pad that asks for as much only if x may be empty.
  Window slide(const Shape& x, std::span<const int64_t> kernel, bool may_be_empty = false) const;
  // The window that slides over the result of a transposed convolution and gives x.
  Window slide_transposed(const Shape& x, std::span<const int64_t> kernel) const;

  // The same, where pads are an input.
  WindowAttributes with_pads(std::vector<int64_t> pads) const;

  const std::optional<std::vector<int64_t>>& kernel_shape() const { return kernel_; }

 private:
  enum class AutoPad { notset, valid, same_upper, same_lower };
  void check_lengths(size_t spatial) const;
  Window begin(const Shape& x, std::span<const int64_t> kernel) const;

  AutoPad auto_pad_;
  bool ceil_;
  std::optional<std::vector<int64_t>> kernel_, strides_, dilations_, pads_, output_padding_, output_shape_;
};

// [batch, channels, the last spatial dimensions of these]
Shape with_spatial(const Shape& x, int64_t channels, const int (&spatial)[kSpatial]);

// Splits an index into what is before the spatial dimensions and the position in them.
struct Positions {
  device::Divider dims[kSpatial];

  Positions(const int (&sizes)[kSpatial], int64_t elements) {
    for (int d = 0; d < kSpatial; ++d) dims[d] = device::Divider(sizes[d], elements);
  }
  DEVICE_FN int64_t operator()(int64_t index, int (&at)[kSpatial]) const {
    int64_t rest;
    UNROLL for (int d = kSpatial - 1; d >= 0; --d) {
      index = dims[d](index, rest);
      at[d] = int(rest);
    }
    return index;
  }
};

// Splits the index of an element into its image, channel and position.
struct Elements {
  bool last;
  Positions positions;
  device::Divider channels;

  Elements(Layout layout, int64_t channels, const int (&sizes)[kSpatial], int64_t elements)
      : last(layout == Layout::channels_last), positions(sizes, elements), channels(channels, elements) {}
  DEVICE_FN int64_t operator()(int64_t index, int64_t& channel, int (&at)[kSpatial]) const {
    if (last) return positions(channels(index, channel), at);
    return channels(positions(index, at), channel);
  }
};

// Where the planes of a tensor begin; neighbours in one are `step` apart.
struct Planes {
  int64_t image, channel, step;

  Planes(Layout layout, int64_t channels, int64_t plane)
      : image(channels * plane),
        channel(layout == Layout::channels_last ? 1 : plane),
        step(layout == Layout::channels_last ? channels : 1) {}
  DEVICE_FN int64_t operator()(int64_t i, int64_t c) const { return i * image + c * channel; }
};

}  // namespace encore::ops
