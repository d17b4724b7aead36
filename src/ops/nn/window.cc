#include "ops/nn/window.h"

#include <algorithm>
#include <limits>

#include "ops/choice.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

constexpr int64_t kMostSize = std::numeric_limits<int>::max() / 2;

int sized(int64_t value, const char* what) {
  require(value <= kMostSize, what, " ", value, " is too large; Encore's windows handle up to ", kMostSize);
  return int(value);
}

// The window's span in the input.
int64_t extent(const Window& w, int d) {
  return sized(int64_t(w.kernel[d] - 1) * w.dilation[d] + 1, "the dilated kernel");
}

void at_least(const std::optional<std::vector<int64_t>>& list, int64_t least, const char* what) {
  if (!list) return;
  for (int64_t value : *list)
    require(value >= least && value <= kMostSize, what, " holds ", value, "; it must be from ", least, " to ",
            kMostSize);
}

}  // namespace

bool Window::is_pointwise() const {
  for (int d = 0; d < kSpatial; ++d)
    if (kernel[d] != 1 || stride[d] != 1 || before[d] != 0 || after[d] != 0) return false;
  return true;
}

bool Window::is_disjoint() const {
  for (int d = 0; d < kSpatial; ++d)
    if (kernel[d] > stride[d] || (kernel[d] > 1 && dilation[d] != 1) || before[d] != 0 || after[d] != 0) return false;
  return true;
}

bool Window::is_exact() const {
  for (int d = 0; d < kSpatial; ++d) {
    const int64_t room = int64_t(in[d]) + before[d] + after[d] - extent(*this, d);
    if (room < 0 || room / stride[d] + 1 != out[d]) return false;
  }
  return true;
}

WindowAttributes::WindowAttributes(const NodeInfo& node)
    : ceil_(node.get_int("ceil_mode", 0) == 1),
      kernel_(node.find_ints("kernel_shape")),
      strides_(node.find_ints("strides")),
      dilations_(node.find_ints("dilations")),
      pads_(node.find_ints("pads")),
      output_padding_(node.find_ints("output_padding")),
      output_shape_(node.find_ints("output_shape")) {
  auto_pad_ = read_choice<AutoPad>(node, "auto_pad", "NOTSET",
                                   {{"NOTSET", AutoPad::notset},
                                    {"VALID", AutoPad::valid},
                                    {"SAME_UPPER", AutoPad::same_upper},
                                    {"SAME_LOWER", AutoPad::same_lower},
                                    {"", AutoPad::notset}});
  // Exporters write an empty list for "not given".
  for (auto* list : {&kernel_, &strides_, &dilations_, &pads_, &output_padding_, &output_shape_})
    if (*list && (*list)->empty()) list->reset();
  at_least(kernel_, 1, "kernel_shape");
  at_least(strides_, 1, "strides");
  at_least(dilations_, 1, "dilations");
  at_least(pads_, 0, "pads");
  at_least(output_padding_, 0, "output_padding");
  at_least(output_shape_, 1, "output_shape");
  if (const auto x = node.input_dims(0)) {
    require(x->size() >= 3 && x->size() <= 2 + kSpatial, "the input has rank ", x->size(),
            "; one to three spatial dimensions after batch and channels are supported");
    check_lengths(x->size() - 2);
  }
}

WindowAttributes WindowAttributes::with_pads(std::vector<int64_t> pads) const {
  WindowAttributes changed = *this;
  changed.pads_ = std::move(pads);
  at_least(changed.pads_, 0, "pads");
  return changed;
}

void WindowAttributes::check_lengths(size_t spatial) const {
  const auto check = [&](const std::optional<std::vector<int64_t>>& list, size_t wanted, const char* what) {
    require(!list || list->size() == wanted, what, " has ", list ? list->size() : 0, " values; ", wanted,
            " are wanted for ", spatial, " spatial dimensions");
  };
  check(kernel_, spatial, "kernel_shape");
  check(strides_, spatial, "strides");
  check(dilations_, spatial, "dilations");
  check(pads_, 2 * spatial, "pads");
  check(output_padding_, spatial, "output_padding");
  if (output_shape_ && output_shape_->size() != spatial + 2) check(output_shape_, spatial, "output_shape");
}

Window WindowAttributes::begin(const Shape& x, std::span<const int64_t> kernel) const {
  require(x.rank() >= 3 && x.rank() <= 2 + kSpatial, "the input has shape ", x.str(),
          "; one to three spatial dimensions after batch and channels are supported");
  const int spatial = x.rank() - 2;
  check_lengths(size_t(spatial));
  require(int(kernel.size()) == spatial, "the kernel has ", kernel.size(), " dimensions, the input ", x.str(), " has ",
          spatial, " spatial ones");
  Window w;
  for (int i = 0; i < spatial; ++i) {
    const int d = kSpatial - spatial + i;
    const auto of = [&](const std::optional<std::vector<int64_t>>& list, int from, int64_t otherwise) {
      return int(list ? (*list)[size_t(from + i)] : otherwise);
    };
    require(kernel[size_t(i)] > 0, "dimension ", i, " of the kernel is ", kernel[size_t(i)]);
    w.in[d] = sized(x[2 + i], "a spatial dimension");
    w.kernel[d] = sized(kernel[size_t(i)], "a kernel");
    w.stride[d] = of(strides_, 0, 1);
    w.dilation[d] = of(dilations_, 0, 1);
    if (auto_pad_ == AutoPad::notset) {
      w.before[d] = of(pads_, 0, 0);
      w.after[d] = of(pads_, spatial, 0);
    }
  }
  return w;
}

Window WindowAttributes::slide(const Shape& x, std::span<const int64_t> kernel, bool may_be_empty) const {
  Window w = begin(x, kernel);
  for (int d = kSpatial - (x.rank() - 2); d < kSpatial; ++d) {
    const int64_t span = extent(w, d), in = w.in[d], stride = w.stride[d];
    if (auto_pad_ == AutoPad::same_upper || auto_pad_ == AutoPad::same_lower) {
      require(in > 0 || may_be_empty, "the input ", x.str(), " is empty, and auto_pad asks for as much");
      w.out[d] = int((in + stride - 1) / stride);
      const int64_t total = std::max<int64_t>((w.out[d] - 1) * stride + span - in, 0);
      w.before[d] = int((total + (auto_pad_ == AutoPad::same_lower)) / 2);
      w.after[d] = int(total - w.before[d]);
      continue;
    }
    const int64_t padded = sized(in + w.before[d] + w.after[d], "a padded dimension");
    require(padded >= span, "the window spans ", span, " and the input ", x.str(), " with its padding ", padded,
            " along spatial dimension ", d - (kSpatial - (x.rank() - 2)));
    const int64_t room = padded - span;
    w.out[d] = int(room / stride + 1);
    // The last window may hang over, but has to start before the padding at the end.
    if (ceil_ && room % stride != 0 && w.out[d] * stride < in + w.before[d]) ++w.out[d];
  }
  return w;
}

Window WindowAttributes::slide_transposed(const Shape& x, std::span<const int64_t> kernel) const {
  Window w = begin(x, kernel);
  const int spatial = x.rank() - 2;
  for (int i = 0; i < spatial; ++i) {
    const int d = kSpatial - spatial + i;
    const int64_t in = w.in[d], stride = w.stride[d], more = output_padding_ ? (*output_padding_)[size_t(i)] : 0;
    const int64_t whole = (in - 1) * stride + extent(w, d) + more;  // of nothing, what the kernel alone would reach
    sized(whole, "an unpadded output dimension");
    require(in > 0 || (more == 0 && !output_shape_), "spatial dimension ", i, " of the input ", x.str(),
            " is empty; it goes with neither output_padding nor output_shape");
    const bool same = auto_pad_ == AutoPad::same_upper || auto_pad_ == AutoPad::same_lower;
    int64_t out = whole - w.before[d] - w.after[d];
    if (output_shape_ || same) {
      // The padding follows from the size that is wanted; an odd one is in front but for SAME_UPPER.
      const int64_t wanted =
          output_shape_ ? (*output_shape_)[size_t(int(output_shape_->size()) - spatial + i)] : in * stride;
      const int64_t total = std::max<int64_t>(whole - wanted, 0);
      w.after[d] = int(auto_pad_ == AutoPad::same_upper ? total - total / 2 : total / 2);
      w.before[d] = int(total - w.after[d]);
      out = output_shape_ ? wanted : whole - total;
      require(!output_shape_ || (out + total - extent(w, d)) / stride + 1 == in, "output_shape asks for ", wanted,
              " along spatial dimension ", i, ", which an input of ", in, " cannot give");
    }
    require(out > 0, "pads ", w.before[d], " and ", w.after[d], " leave nothing of the whole output dimension of ",
            whole);
    // For the result of a transposed convolution the roles of the two swap.
    w.out[d] = w.in[d];
    w.in[d] = sized(out, "an output dimension");
  }
  return w;
}

Layout layout_of(const NodeInfo& node) {
  const bool last = node.domain() == kChannelsLast || (node.domain() == kMicrosoft && node.op_type() == "NhwcConv");
  return last ? Layout::channels_last : Layout::channels_first;
}

Shape channels_first(const Shape& stored, Layout layout) {
  if (layout == Layout::channels_first || stored.rank() < 3) return stored;
  Shape shape = stored.with(1, stored.back());
  for (int i = 2; i < stored.rank(); ++i) shape = shape.with(i, stored[i - 1]);
  return shape;
}

Shape stored(const Shape& channels_first, Layout layout) {
  if (layout == Layout::channels_first || channels_first.rank() < 3) return channels_first;
  Shape shape = channels_first.with(channels_first.rank() - 1, channels_first[1]);
  for (int i = 2; i < channels_first.rank(); ++i) shape = shape.with(i - 1, channels_first[i]);
  return shape;
}

Shape with_spatial(const Shape& x, int64_t channels, const int (&spatial)[kSpatial]) {
  Shape shape = x.with(1, channels);
  for (int i = 2; i < x.rank(); ++i) shape = shape.with(i, spatial[kSpatial - x.rank() + i]);
  return shape;
}

}  // namespace encore::ops
