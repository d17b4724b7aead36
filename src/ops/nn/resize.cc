// Resize and Upsample: what their many attributes and inputs say of each dimension.
#include "ops/nn/resize.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "device/memory.h"
#include "ops/choice.h"
#include "ops/dispatch.h"
#include "ops/registry.h"
#include "ops/shape/movement.h"

namespace encore::ops {
namespace {

// Float values in host memory.
std::vector<float> host_floats(const Tensor& tensor, const char* what) {
  require(tensor.where == Where::host, what, " is not in host memory");
  require(tensor.shape.rank() <= 1 || tensor.shape.back() == tensor.count(), what, " has shape ", tensor.shape.str(),
          "; it must be a vector");
  std::vector<float> values(size_t(tensor.count()));
  dispatch(FloatList{}, tensor.type, [&]<class T>() {
    for (size_t i = 0; i < values.size(); ++i) values[i] = float(tensor.as<const T>()[i]);
  });
  return values;
}

constexpr Types kInterpolated = kFloats | Types{Type::i8, Type::u8, Type::i32};

enum class Aspect { stretch, not_larger, not_smaller };

class Resize : public Op {
 public:
  explicit Resize(const NodeInfo& node)
      : grows_(node.op_type() == "Upsample"),
        first_(grows_ || node.since_version() == 10),
        scales_(node.find_floats("scales")) {
    if (first_ && node.since_version() == 1) {  // of images, before scales were a list
      const auto height = node.find_float("height_scale"), width = node.find_float("width_scale");
      require(height && width, "height_scale and width_scale are wanted");
      scales_ = {1.f, 1.f, *height, *width};
    }
    check_rank(node);
    rule_.mode = read_choice<ResizeMode>(node, "mode", "nearest",
                                         {{"nearest", ResizeMode::nearest},
                                          {"linear", ResizeMode::linear},
                                          {"bilinear", ResizeMode::linear},  // Upsample's first name for it
                                          {"cubic", ResizeMode::cubic}});
    if (rule_.mode != ResizeMode::nearest && !kInterpolated.has(node.input_type(0)))
      fail(Code::not_supported, "interpolation of ", device::name(node.input_type(0)), "; only of ",
           kInterpolated.str());
    if (first_) {
      if (rule_.mode == ResizeMode::cubic)
        fail(Code::not_supported, "mode is 'cubic', which this version does not have");
      rule_.coordinates = CoordinateMode::asymmetric;
      rule_.nearest = Nearest::simple;
      return;
    }
    rule_.coordinates = read_choice<CoordinateMode>(node, "coordinate_transformation_mode", "half_pixel",
                                                    {{"half_pixel", CoordinateMode::half_pixel},
                                                     {"half_pixel_symmetric", CoordinateMode::half_pixel_symmetric},
                                                     {"pytorch_half_pixel", CoordinateMode::pytorch_half_pixel},
                                                     {"align_corners", CoordinateMode::align_corners},
                                                     {"asymmetric", CoordinateMode::asymmetric},
                                                     {"tf_half_pixel_for_nn", CoordinateMode::tf_half_pixel_for_nn},
                                                     {"tf_crop_and_resize", CoordinateMode::tf_crop_and_resize}});
    rule_.nearest = read_choice<Nearest>(node, "nearest_mode", "round_prefer_floor",
                                         {{"round_prefer_floor", Nearest::round_prefer_floor},
                                          {"round_prefer_ceil", Nearest::round_prefer_ceil},
                                          {"floor", Nearest::floor},
                                          {"ceil", Nearest::ceil}});
    rule_.cubic_coefficient = node.get_float("cubic_coeff_a", -0.75f);
    rule_.exclude_outside = node.get_int("exclude_outside", 0) != 0;
    rule_.extrapolation = node.get_float("extrapolation_value", 0);
    aspect_ = read_choice<Aspect>(
        node, "keep_aspect_ratio_policy", "stretch",
        {{"stretch", Aspect::stretch}, {"not_larger", Aspect::not_larger}, {"not_smaller", Aspect::not_smaller}});
    axes_ = node.find_ints("axes");
    rule_.antialias = node.get_int("antialias", 0) != 0 && rule_.mode != ResizeMode::nearest;
    if (rule_.mode == ResizeMode::cubic && !rule_.antialias && !kFloats.has(node.input_type(0)))
      fail(Code::not_supported, "cubic interpolation of ", device::name(node.input_type(0)),
           "; only of floating-point types, or with antialias");
  }

  void run(Context& context) const override {
    const Tensor& x = context.input(0);
    const Sizes sizes = read_sizes([&](int i) { return context.find_input(i); });
    const std::vector<ResizeAxis> axes = plan(sizes, x.shape);
    make(context, axes, x, context.output(0, made_shape(axes)));
  }

  // What the node has besides x, as far as it counts.
  struct Sizes {
    std::optional<std::vector<float>> scales, roi;
    std::optional<std::vector<int64_t>> sizes;
  };
  // `find` gives an input, or null.
  template <class Find>
  Sizes read_sizes(Find find) const {
    const auto given = [&](int i) {
      const Tensor* tensor = find(i);
      return tensor && tensor->count() > 0 ? tensor : nullptr;
    };
    Sizes read{scales_, {}, {}};
    if (const Tensor* scales = scales_ ? nullptr : given(first_ ? 1 : 2)) read.scales = host_floats(*scales, "scales");
    if (const Tensor* sizes = first_ ? nullptr : given(3)) read.sizes = host_ints(*sizes, "sizes");
    if (rule_.coordinates == CoordinateMode::tf_crop_and_resize)
      if (const Tensor* roi = find(1)) read.roi = host_floats(*roi, "roi");
    return read;
  }

  std::vector<ResizeAxis> plan(const Sizes& sizes, const Shape& x) const {
    const int rank = x.rank();
    std::vector<ResizeAxis> all;
    for (int i = 0; i < rank; ++i) {
      const int size = sized(double(x[i]), "a dimension");
      all.push_back({size, size, 1});
    }
    // The dimensions that are spoken of, in the order of the inputs' values.
    std::vector<ResizeAxis*> named;
    std::vector<bool> seen(size_t(rank), false);
    for (int i = 0; i < (axes_ ? int(axes_->size()) : rank); ++i) {
      const auto axis = size_t(axes_ ? checked_axis((*axes_)[size_t(i)], rank, "axes") : i);
      require(!seen[axis], "axes names dimension ", axis, " twice");
      seen[axis] = true;
      named.push_back(&all[axis]);
    }
    const auto check_count = [&](size_t count, size_t wanted, const char* what) {
      require(count == wanted, what, " has ", count, " values; ", wanted, " are wanted for ", named.size(),
              " dimensions");
    };
    require(bool(sizes.scales) + bool(sizes.sizes) == 1 || named.empty(),
            "either scales or sizes must be given, and not both");
    if (sizes.scales) {
      const std::vector<float>& values = *sizes.scales;
      check_count(values.size(), named.size(), "scales");
      for (size_t i = 0; i < values.size(); ++i) {
        require(values[i] > 0 && std::isfinite(values[i]), "scales holds ", values[i]);
        require(!grows_ || values[i] >= 1, "scales holds ", values[i],
                "; of Upsample 1 is the least, but not of Resize");
        named[i]->scale = values[i];
        named[i]->out = sized(std::floor(values[i] * float(named[i]->in)), "an output dimension");
      }
    } else if (sizes.sizes) {
      const std::vector<int64_t>& values = *sizes.sizes;
      check_count(values.size(), named.size(), "sizes");
      for (size_t i = 0; i < values.size(); ++i) named[i]->out = sized(double(values[i]), "sizes:");
      apply_sizes(named);
    }
    if (sizes.roi) {
      check_count(sizes.roi->size(), 2 * named.size(), "roi");
      for (size_t i = 0; i < named.size(); ++i) {
        named[i]->roi_start = (*sizes.roi)[i];
        named[i]->roi_end = (*sizes.roi)[named.size() + i];
      }
    }
    for (const ResizeAxis& axis : all)
      require(axis.in > 0 || axis.out == 0, "the empty input ", x.str(), " cannot be resized to ",
              made_shape(all).str());
    return all;
  }

  static Shape made_shape(const std::vector<ResizeAxis>& axes) {
    std::vector<int64_t> dims;
    for (const ResizeAxis& axis : axes) dims.push_back(axis.out);
    return Shape(dims);
  }

  void make(Context& context, const std::vector<ResizeAxis>& axes, const Tensor& x, const Tensor& y) const {
    if (rule_.antialias)
      resize_antialiased(context, rule_, axes, x, y);
    else
      resize(context.stream(), rule_, axes, x, y);
  }

  const ResizeRule& rule() const { return rule_; }

 private:
  void check_rank(const NodeInfo& node) const {
    const Tensor* constant = scales_ ? nullptr : node.constant_input(first_ ? 1 : 2);
    const std::vector<float> scales = scales_    ? *scales_
                                      : constant ? host_floats(*constant, "scales")
                                                 : std::vector<float>();
    const auto resized = scales.size() - size_t(std::count(scales.begin(), scales.end(), 1.f));
    if (resized > size_t(kMostResizeDims))
      fail(Code::not_supported, "resizing across ", resized, " dimensions; up to ", kMostResizeDims, " are supported");
  }

  static int sized(double value, const char* what) {
    require(value >= 0 && value <= std::numeric_limits<int>::max(), what, " ", value, " is outside [0,",
            std::numeric_limits<int>::max(), "]");
    return int(value);
  }

  void apply_sizes(const std::vector<ResizeAxis*>& named) const {
    float common = aspect_ == Aspect::not_smaller ? 0 : std::numeric_limits<float>::max();
    for (ResizeAxis* axis : named) {
      if (axis->in == 0) continue;  // plan() looks after these
      axis->scale = float(axis->out) / float(axis->in);
      common = aspect_ == Aspect::not_smaller ? std::max(common, axis->scale) : std::min(common, axis->scale);
    }
    if (aspect_ == Aspect::stretch) return;
    for (ResizeAxis* axis : named) {
      if (axis->in == 0) continue;
      axis->scale = common;
      axis->out = sized(std::round(common * float(axis->in)), "an output dimension");
    }
  }

  bool grows_;  // and never shrinks
  bool first_;  // the meaning before opset 11
  ResizeRule rule_;
  Aspect aspect_ = Aspect::stretch;
  std::optional<std::vector<float>> scales_;
  std::optional<std::vector<int64_t>> axes_;
};

class JoinedResizes : public Op {
 public:
  JoinedResizes(const NodeInfo& all, std::span<const std::shared_ptr<const NodeInfo>> nodes) {
    if (const auto in_place = all.find_ints(kInPlace)) {
      require(in_place->size() == 3, kInPlace, " has ", in_place->size(), " values; 3 are wanted");
      made_ = Made{int((*in_place)[0]), (*in_place)[1], (*in_place)[2]};
    }
    for (const auto& node : nodes) {
      Piece& piece = pieces_.emplace_back();
      if (!node) continue;
      piece.resize.emplace(*node);
      piece.sizes = piece.resize->read_sizes([&](int i) { return node->constant_input(i); });
    }
  }

  // What is resized is written to its columns, if all pieces are packs of 16 bytes; else it is put there as others are.
  void run(Context& context) const override {
    std::vector<Tensor> parts;
    std::vector<std::vector<ResizeAxis>> axes(pieces_.size());
    for (size_t i = 0; i < pieces_.size(); ++i) {
      parts.push_back(context.input(int(i)));
      if (!pieces_[i].resize) continue;
      axes[i] = pieces_[i].resize->plan(pieces_[i].sizes, parts[i].shape);
      parts[i].shape = Resize::made_shape(axes[i]);
      parts[i].data = nullptr;
    }
    const int axis = checked_axis(-1, parts.front().shape.rank());
    const Tensor y = made_ ? output_around(context, parts, axis) : context.output(0, joined_shape(parts, axis));
    const auto bytes = [](const Tensor& part) { return size_t(part.shape.back()) * device::size_bytes(part.type); };
    const bool by_packs = std::ranges::all_of(parts, [&](const Tensor& part) { return bytes(part) % 16 == 0; });
    char* columns = static_cast<char*>(y.data);
    for (size_t i = 0; i < parts.size(); columns += bytes(parts[i++])) {
      if (!pieces_[i].resize) continue;
      const Resize& resize = *pieces_[i].resize;
      const Tensor& x = context.input(int(i));
      if (by_packs && makes_columns(resize.rule(), axes[i], x)) {
        Tensor to = parts[i];
        to.data = columns;
        resize_into_columns(context.stream(), resize.rule(), axes[i], x, to, y.shape.back());
      } else {
        parts[i].data = context.scratch(parts[i].bytes());
        resize.make(context, axes[i], x, parts[i]);
      }
    }
    concatenate(context.stream(), parts, axis, y);
  }

 private:
  struct Piece {
    std::optional<Resize> resize;
    Resize::Sizes sizes;
  };
  struct Made {
    int input;
    int64_t first_column, columns;
  };

  // What has the columns that are there.
  Tensor output_around(Context& context, std::vector<Tensor>& parts, int axis) const {
    const Tensor& made = context.input(made_->input);
    Tensor& part = parts[size_t(made_->input)];
    part.shape = made.shape.with(axis, made_->columns);
    part.data = nullptr;
    int64_t before = 0;
    for (int i = 0; i < made_->input; ++i) before += parts[size_t(i)].shape.back();
    const Shape joined = joined_shape(parts, axis);
    require(joined == made.shape && before == made_->first_column, "what is ", joined.str(), " with piece ",
            made_->input, " from column ", before, " on was expected to be ", made.shape.str(), " from ",
            made_->first_column, " on");
    const Tensor y = context.output_in_place(0, joined, made_->input);
    if (y.data != made.data) device::copy(context.stream(), y.data, made.data, y.bytes());
    return y;
  }

  std::vector<Piece> pieces_;
  std::optional<Made> made_;
};

}  // namespace

std::unique_ptr<Op> make_joined_resizes(const NodeInfo& node,
                                        std::span<const std::shared_ptr<const NodeInfo>> resizes) {
  return std::make_unique<JoinedResizes>(node, resizes);
}

std::vector<OpRow> resize_rows() {
  const Types types = kFixedSize;  // the nearest is only moved
  return {
      {.name = "Upsample",
       .since = 1,
       .until = 6,
       .types = {in(0, Types{Type::boolean, Type::i32, Type::i64, Type::f16, Type::f32, Type::f64})},
       .make = make<Resize>},
      {.name = "Upsample", .since = 7, .until = 9, .types = {in(0, types)}, .make = make<Resize>, .host_inputs = {1}},
      {.name = "Resize", .since = 10, .until = 10, .types = {in(0, types)}, .make = make<Resize>, .host_inputs = {1}},
      {.name = "Resize", .since = 11, .types = {in(0, types)}, .make = make<Resize>, .host_inputs = {1, 2, 3}},
  };
}

}  // namespace encore::ops
