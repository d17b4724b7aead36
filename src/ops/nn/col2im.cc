// Col2Im: images from the columns of their windows, which are added where they overlap.
#include <limits>

#include "ops/nn/im2col.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

class Col2Im : public Op {
 public:
  explicit Col2Im(const NodeInfo& node)
      : strides_(node.find_ints("strides")), dilations_(node.find_ints("dilations")), pads_(node.find_ints("pads")) {
    // Exporters write an empty list for "not given".
    for (auto* list : {&strides_, &dilations_, &pads_})
      if (*list && (*list)->empty()) list->reset();
    check_range(strides_, 1, "strides");
    check_range(dilations_, 1, "dilations");
    check_range(pads_, 0, "pads");
    if (const Tensor* image = node.constant_input(1)) check_spatial(host_ints(*image, "image_shape").size());
  }

  void run(Context& context) const override {
    const Tensor& columns = context.input(0);
    const auto image = host_ints(context.input(1), "image_shape"), block = host_ints(context.input(2), "block_shape");
    check_spatial(image.size());
    require(block.size() == image.size(), "block_shape has ", block.size(), " values, image_shape ", image.size());
    require(columns.shape.rank() == 3, "the input has shape ", columns.shape.str(),
            "; [batch, rows, columns] is wanted");
    check_range(image, 0, "image_shape");
    check_range(block, 1, "block_shape");
    const Window w = window(image, block);
    int64_t taps = 1, places = 1;
    for (int d = 0; d < kSpatial; ++d) {
      taps = checked_product(taps, w.kernel[d]);
      places = checked_product(places, w.out[d]);
    }
    const int64_t rows = columns.shape[1];
    require(rows % taps == 0, "the ", rows, " rows of the input cannot be divided by a block of ", taps);
    require(columns.shape[2] == places, "the input has ", columns.shape[2], " columns; a block has ", places,
            " places in the image");
    std::vector<int64_t> shape{columns.shape[0], rows / taps};
    shape.insert(shape.end(), image.begin(), image.end());
    const Tensor y = context.output(0, Shape(shape));
    if (y.count() == 0) return;
    const ConvProblem problem{columns.type, Layout::channels_first, w, shape[0], 1, shape[1], 1, false};
    col2im(context.stream(), problem, shape[0], columns.data, nullptr, y.data);
  }

 private:
  static constexpr int64_t kMost = std::numeric_limits<int>::max() / 4;

  static void check_range(const std::optional<std::vector<int64_t>>& values, int64_t least, const char* what) {
    if (!values) return;
    for (int64_t value : *values)
      require(value >= least && value <= kMost, what, " holds ", value, "; it must be from ", least, " to ", kMost);
  }
  static void check_spatial(size_t spatial) {
    if (spatial < 1 || spatial > size_t(kSpatial))
      fail(Code::not_supported, "image_shape has ", spatial, " values; one to three spatial dimensions are supported");
  }

  // The window that slides over the image and gives the columns.
  Window window(const std::vector<int64_t>& image, const std::vector<int64_t>& block) const {
    const size_t spatial = image.size();
    const auto check_count = [&](const std::optional<std::vector<int64_t>>& values, size_t wanted, const char* what) {
      require(!values || values->size() == wanted, what, " has ", values ? values->size() : 0, " values; ", wanted,
              " are wanted for ", spatial, " spatial dimensions");
    };
    check_count(strides_, spatial, "strides");
    check_count(dilations_, spatial, "dilations");
    check_count(pads_, 2 * spatial, "pads");
    Window w;
    for (size_t i = 0; i < spatial; ++i) {
      const size_t d = size_t(kSpatial) - spatial + i;
      w.in[d] = int(image[i]);
      w.kernel[d] = int(block[i]);
      if (strides_) w.stride[d] = int((*strides_)[i]);
      if (dilations_) w.dilation[d] = int((*dilations_)[i]);
      if (pads_) {
        w.before[d] = int((*pads_)[i]);
        w.after[d] = int((*pads_)[spatial + i]);
      }
      const int64_t span = int64_t(w.kernel[d] - 1) * w.dilation[d] + 1;
      const int64_t room = int64_t(w.in[d]) + w.before[d] + w.after[d] - span;
      require(room >= 0, "a block spans ", span, " and the padded image ", room + span, " along spatial dimension ", i);
      w.out[d] = int(room / w.stride[d] + 1);
    }
    return w;
  }

  std::optional<std::vector<int64_t>> strides_, dilations_, pads_;
};

}  // namespace

std::vector<OpRow> col2im_rows() {
  return {{.name = "Col2Im", .since = 18, .types = {in(0, kFloats)}, .make = make<Col2Im>, .host_inputs = {1, 2}}};
}

}  // namespace encore::ops
