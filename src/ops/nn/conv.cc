// Conv, ConvTranspose and their kin of com.microsoft: cuDNN where it is there, Encore's own kernels and matrix products
// elsewhere.
#include <algorithm>
#include <functional>
#include <memory>
#include <optional>

#include "ops/inner_context.h"
#include "ops/nn/convolve_tiles.h"
#include "ops/nn/depthwise.h"
#include "ops/registry.h"
#include "ops/shape/interleave.h"
#include "ops/shape/movement.h"
#include "ops/shape/strided.h"

namespace encore::ops {
namespace {

// The same run of a node again and again: each time it gets the scratch of the first time, which is the search's and
// not the run's, for later runs have nothing to search.
class Again final : public InnerContext {
 public:
  explicit Again(Context& first) : InnerContext(first) {}
  void begin() { next_ = 0; }

  int input_count() const override { return outer_.input_count(); }
  int output_count() const override { return outer_.output_count(); }
  const Tensor* find_input(int i) override { return outer_.find_input(i); }
  Tensor output(int i, const Shape& shape) override { return outer_.output(i, shape); }
  bool wants_output(int i) const override { return outer_.wants_output(i); }
  void* scratch(size_t bytes) override {
    if (next_ == blocks_.size()) blocks_.emplace_back();
    Block& block = blocks_[next_++];
    if (bytes > block.bytes) block = {dnn().settings().memory(bytes), bytes};
    return block.at.get();
  }

 private:
  struct Block {
    std::shared_ptr<void> at;
    size_t bytes = 0;
  };
  std::vector<Block> blocks_;
  size_t next_ = 0;
};

// All of it without cuDNN. `width`: the positions of an image.
void convolve_whole(Context& context, const ConvProblem& problem, const ConvData& data, const Epilogue& rest,
                    int64_t width) {
  if (convolve_pointwise(context, problem, data, rest.residual, rest.activation)) return;
  convolve(context, problem, data);
  finish(context.stream(), problem, width, rest, data.y);
}

TileGemmWay way_by_tiles(StreamRef stream, const ConvProblem& problem, const ConvData& data, const Epilogue& rest) {
  if (!suits_tiles(problem, data, rest.residual)) return {};
  return tile_convolution_way(problem, rest.activation, tile_room(stream.device()));
}
// Of single positions, which are a product.
bool is_product_by_tiles(StreamRef stream, const ConvProblem& problem, const ConvData& data, const Epilogue& rest) {
  const auto gemm = pointwise_product(problem, data, rest.residual);
  const ProductData product{data.x, data.w, data.bias, data.y, rest.residual};
  return gemm && tile_gemm_way(*gemm, product, rest.activation, stream.device()).parts > 0;
}

// The rival of cuDNN's engines, which is run many times to be timed.
struct Product {
  Again context;
  const ConvProblem& problem;
  const ConvData& data;
  const Epilogue& rest;
  int64_t width;
  void operator()() {
    context.begin();
    convolve_whole(context, problem, data, rest, width);
  }
};

class ConvBase : public Op {
 public:
  explicit ConvBase(const NodeInfo& node)
      : attributes_(node),
        layout_(layout_of(node)),
        weights_last_(node.domain() == kMicrosoft && layout_ == Layout::channels_last),
        groups_(node.get_int("group", 1)),
        use_tf32_(node.settings.use_tf32),
        takes_planes_(node.get_int(kTakesPlanes, 0) != 0),
        first_channel_(node.get_int(kFirstChannel, 0)),
        last_channel_(node.get_int(kLastChannel, 0)) {
    require(groups_ >= 1, "group is ", groups_, "; it must be at least 1");
    const auto x = node.input_dims(0), w = node.input_dims(1);
    if (w) require(w->size() >= 3 && (!x || w->size() == x->size()), "W has rank ", w->size(), ", not that of X");
  }

  void prepare(Prepack& prepack) override {
    if (expected_ && !is_by_tiles(prepack.stream())) prepack.dnn().expect(*expected_);
    expected_.reset();
  }
  bool prepack(int input, const Tensor& constant, Prepack& prepack) override {
    if (input != 1) return false;
    has_constant_weights_ = true;
    if (constant.shape.rank() < 3 || constant.count() == 0) return false;
    const Tensor given = channels_first(constant);
    if (takes_planes_) {
      filled_ = prepack.keep(filled_bytes(given));
      fill_channels(prepack.stream(), given, filled_);
    }
    if (!wants_arranging(given.shape)) return false;
    arranged_ = given;
    arranged_.data = prepack.keep(given.bytes());
    arrange_weights(prepack.stream(), given, arranged_groups(), arranged_.data);
    return true;
  }

 protected:
  // That the weights are arranged for.
  virtual int64_t arranged_groups() const { return groups_; }
  // The weights, arranged once or now; their shape speaks of channels first.
  Tensor weights(Context& context) const { return arranged_.data ? arranged_ : channels_first(context.input(1)); }
  // As they are multiplied: arranged once and for all, or not at all.
  bool are_constant(const Tensor& given) const {
    return arranged_.data || (has_constant_weights_ && !wants_arranging(given.shape));
  }
  void arrange(Context& context, Tensor& w) const {
    if (arranged_.data || !wants_arranging(w.shape)) return;
    const Tensor given = w;
    w.data = context.scratch(w.bytes());
    arrange_weights(context.stream(), given, arranged_groups(), w.data);
  }
  // The weights' spatial dimensions, which kernel_shape may only repeat.
  std::span<const int64_t> kernel_of(const Tensor& x, const Tensor& w) const {
    require(x.shape.rank() >= 3, "X has shape ", x.shape.str(), "; it needs batch, channels and spatial dimensions");
    require(w.shape.rank() == x.shape.rank(), "W has shape ", w.shape.str(), ", whose rank is not that of X ",
            x.shape.str());
    require(w.type == x.type, "W is ", device::name(w.type), " and X is ", device::name(x.type));
    const auto kernel = w.shape.dims().subspan(2);
    if (const auto& given = attributes_.kernel_shape())
      require(std::equal(kernel.begin(), kernel.end(), given->begin(), given->end()), "kernel_shape is ",
              Shape(*given).str(), ", the weights have ", Shape(kernel).str());
    return kernel;
  }
  static const void* bias_of(Context& context, int input, Type type, int64_t channels) {
    const Tensor* bias = context.find_input(input);
    if (!bias) return nullptr;
    require(bias->shape == Shape{channels} && bias->type == type, "B has shape ", bias->shape.str(), " of ",
            device::name(bias->type), "; [", channels, "] of ", device::name(type), " is wanted");
    return bias->data;
  }

  Shape picture_of(const Shape& stored) const { return takes_planes_ ? stored : ops::channels_first(stored, layout_); }
  static Interleaving planes_of(const Shape& x) {
    const int64_t size = x.count(2, x.rank());
    return {x[0], x[1], size, x[1] * size, size};
  }
  // With kFilledChannels last.
  static void* fill_planes(Context& context, const Tensor& x) {
    const Interleaving planes = planes_of(x.shape);
    const size_t element = device::size_bytes(x.type);
    void* const made = context.scratch(size_t(planes.images * planes.size * kFilledChannels) * element);
    interleave_by_four(context.stream(), planes, x.data, made, element);
    return made;
  }
  // With as many channels as there are, which are last.
  static void* turn_planes(Context& context, const Tensor& x) {
    const auto [images, planes, size, image_stride, plane_stride] = planes_of(x.shape);
    void* const made = context.scratch(x.bytes());
    StridedCopy copy;
    copy.add(images, image_stride, image_stride);
    copy.add(size, 1, planes);
    copy.add(planes, plane_stride, 1);
    copy.run(context.stream(), x.data, made, device::size_bytes(x.type));
    return made;
  }

  // The picture that a convolution is of.
  Cut cut(const Tensor& given) const {
    const int last = given.shape.rank() - 1;
    return last_channel_ > 0 ? Cut(given, last, first_channel_, last_channel_) : Cut(given, last);
  }
  // x, which is a part, by itself.
  static void* made_dense(Context& context, const Tensor& x, int64_t pitch, int64_t channels) {
    void* const made = context.scratch(x.bytes());
    StridedCopy copy;
    copy.add(x.count() / channels, pitch, channels);
    copy.add(channels, 1, 1);
    copy.run(context.stream(), x.data, made, device::size_bytes(x.type));
    return made;
  }

  // What cuDNN will be asked for, if the model tells all dimensions but the batch.
  void expect(const NodeInfo& node, const WindowAttributes& attributes, bool transposed, int bias_input,
              bool has_residual, const Activation& activation) {
    auto x_dims = node.input_dims(0), w_dims = node.input_dims(1);
    if (!x_dims || !w_dims || x_dims->size() < 3 || x_dims->size() != w_dims->size()) return;
    if (last_channel_ > 0) x_dims->back() = last_channel_ - first_channel_;
    const bool any_batch = x_dims->front() < 0;
    if (any_batch) x_dims->front() = 1;
    for (const auto* dims : {&*x_dims, &*w_dims})
      if (*std::ranges::min_element(*dims) <= 0) return;
    try {
      const Shape x = picture_of(Shape(*x_dims)),
                  w = ops::channels_first(Shape(*w_dims), weights_last_ ? layout_ : Layout::channels_first);
      const auto kernel = w.dims().subspan(2);
      const Window window = transposed ? attributes.slide_transposed(x, kernel) : attributes.slide(x, kernel);
      const int64_t out_channels = transposed ? checked_product(w[1], groups_) : w[0];
      const Type type = node.input_type(0);
      const ConvProblem problem{type, layout_,      window,  x[0],
                                x[1], out_channels, groups_, use_tf32_ && type == Type::f32};
      if (transposed ? !window.is_exact() : is_depthwise(problem)) return;
      if (last_channel_ > 0 && pointwise_product(problem, {}, nullptr)) return;
      const Shape y = with_spatial(x, out_channels, transposed ? window.in : window.out);
      if (type == Type::f64) return;
      expected_ = for_dnn(problem, transposed, x, w, y, node.has_input(bias_input), has_residual, activation);
      if (any_batch)
        expected_->x[0] = expected_->y[0] = -1;
      else if (!transposed)
        expected_problem_ = {problem, activation};
    } catch (const Error&) {  // the run will say what is wrong
    }
  }

  // cuDNN has no double precision worth its while, and wants aligned addresses.
  bool suits_dnn(Context& context, const ConvProblem& problem, bool transposed, const Tensor& x, const Tensor& w,
                 const ConvData& data, const Epilogue& rest) const {
    if (problem.type == Type::f64 || x.count() == 0 || w.count() == 0) return false;
    for (const void* address : {data.x, data.w, data.bias, rest.residual, static_cast<const void*>(data.y)})
      if (reinterpret_cast<uintptr_t>(address) % 16 != 0) return false;
    device::Dnn& dnn = context.dnn();
    return (transposed || !is_product(problem, dnn.settings())) && dnn.available();
  }

  // Nothing for an activation that cuDNN is not asked for: another kernel passes over y anyway.
  static std::optional<device::Convolution::Curve> curve_of(const Activation& activation) {
    using Kind = Activation::Kind;
    using Curve = device::Convolution::Curve;
    switch (activation.kind) {
      case Kind::none: return Curve::none;
      case Kind::relu: return Curve::relu;
      case Kind::silu: return Curve::silu;
      case Kind::gelu: return Curve::gelu;
      case Kind::fast_gelu: return Curve::gelu_tanh;
      default: return std::nullopt;
    }
  }
  static device::Convolution for_dnn(const ConvProblem& problem, bool transposed, const Shape& x, const Shape& w,
                                     const Shape& y, bool has_bias, bool has_residual, const Activation& activation) {
    const auto list = [](const Shape& shape) { return std::vector<int64_t>(shape.dims().begin(), shape.dims().end()); };
    const auto spatial = [&](const int(&values)[kSpatial]) {
      return std::vector<int64_t>(values + kSpatial - (x.rank() - 2), values + kSpatial);
    };
    const Window& window = problem.window;
    device::Convolution convolution;
    convolution.type = problem.type;
    convolution.x = list(x);
    convolution.w = list(w);
    convolution.y = list(y);
    convolution.channels_last = problem.layout == Layout::channels_last;
    convolution.pads_begin = spatial(window.before);
    convolution.pads_end = spatial(window.after);
    convolution.strides = spatial(window.stride);
    convolution.dilations = spatial(window.dilation);
    convolution.groups = problem.groups;
    convolution.transposed = transposed;
    if (const auto curve = curve_of(activation)) {
      convolution.has_bias = has_bias;
      convolution.has_residual = has_residual;
      convolution.curve = *curve;
    }
    convolution.tf32 = problem.tf32;
    return convolution;
  }

  // `rest` is what follows beside the bias. False if cuDNN has no engine for it, or a product turns out faster.
  bool run_dnn(Context& context, const ConvProblem& problem, bool transposed, const Shape& x, const Shape& w,
               const Shape& y, const ConvData& data, const Epilogue& rest) const {
    const bool whole = curve_of(rest.activation).has_value();
    const device::Convolution convolution =
        for_dnn(problem, transposed, x, w, y, data.bias, rest.residual, rest.activation);
    device::Dnn& dnn = context.dnn();
    const int64_t width = y.count(2, y.rank());
    Product product{Again(context), problem, data, rest, width};
    device::Dnn::Rival rival;
    if (!transposed && suits_product(problem)) rival = std::ref(product);
    const auto prepared = dnn.prepare(context.stream(), convolution, rival);
    if (!prepared || prepared->rival_won) return false;
    void* workspace = context.scratch(prepared->workspace_bytes);
    dnn.run(context.stream(), convolution, data.x, data.w, data.bias, rest.residual, data.y, workspace);
    if (!whole || !prepared->fused)
      finish(context.stream(), problem, width, {data.bias, rest.residual, rest.activation}, data.y);
    return true;
  }

  WindowAttributes attributes_;
  Layout layout_;
  bool weights_last_;  // the weights' channels are last, too
  int64_t groups_;
  bool use_tf32_;
  // x has its channels first: few, which tiles want filled up, as they want constant weights.
  bool takes_planes_;
  void* filled_ = nullptr;
  int64_t first_channel_, last_channel_;  // of x, if that is part of something wider; else 0

 private:
  // What is expected will not go to cuDNN.
  bool is_by_tiles(StreamRef stream) const {
    if (!expected_problem_) return false;
    const auto& [problem, activation] = *expected_problem_;
    const ConvData data{.constant_w = true, .is_filled = filled_ != nullptr};
    const Epilogue rest{nullptr, nullptr, activation};
    return way_by_tiles(stream, problem, data, rest).parts > 0 || is_product_by_tiles(stream, problem, data, rest);
  }
  Tensor channels_first(Tensor w) const {
    if (weights_last_) w.shape = ops::channels_first(w.shape, Layout::channels_last);
    return w;
  }
  // Weights whose channels are last are arranged already, unless there is a group for each channel.
  bool wants_arranging(const Shape& w) const {
    return layout_ == Layout::channels_last && !(weights_last_ && w[1] > 1) &&
           ops::wants_arranging(w, arranged_groups());
  }

  std::optional<device::Convolution> expected_;
  struct Expected {
    ConvProblem problem;
    Activation activation;
  };
  std::optional<Expected> expected_problem_;  // if the batch is known, too
  bool has_constant_weights_ = false;
  Tensor arranged_;  // the weights, if they are constant; with the shape of those given
};

class Conv : public ConvBase {
 public:
  explicit Conv(const NodeInfo& node) : Conv(node, {}) {}

  void run(Context& context) const override {
    auto [x, pitch] = cut(context.input(0));
    Tensor w = weights(context);
    x.shape = picture_of(x.shape);
    const auto kernel = kernel_of(x, w);
    const int64_t in_channels = x.shape[1], out_channels = w.shape[0];
    require(checked_product(w.shape[1], groups_) == in_channels, "X has ", in_channels, " channels; W ", w.shape.str(),
            " with group ", groups_, " wants ", w.shape[1], " x ", groups_);
    require(out_channels % groups_ == 0, "the ", out_channels, " output channels cannot be divided by group ", groups_);
    const ConvProblem problem{x.type,       layout_, attributes_.slide(x.shape, kernel), x.shape[0], in_channels,
                              out_channels, groups_, use_tf32_ && x.type == Type::f32};
    const void* bias = bias_of(context, 2, x.type, out_channels);
    const Shape shape = with_spatial(x.shape, out_channels, problem.window.out);
    const Tensor y = context.output(0, stored(shape, layout_));
    const Epilogue rest{nullptr, residual_of(context, y), activation_};
    if (y.count() == 0) return;
    arrange(context, w);
    ConvData data{x.data, w.data, bias, y.data, are_constant(w)};
    if (last_channel_ > 0) data.x_pitch = pitch;
    if (run_tiles(context, problem, x, data, rest)) return;
    if (takes_planes_) data.x = x.data = turn_planes(context, x);
    const bool is_part = data.x_pitch != 0, is_pointwise = is_part && pointwise_product(problem, data, rest.residual);
    if (is_part && x.count() > 0 && !is_pointwise && !reads_parts_depthwise(problem, data, rest)) {
      data.x = x.data = made_dense(context, x, pitch, in_channels);
      data.x_pitch = 0;
    }
    if (is_pointwise || is_product_by_tiles(context.stream(), problem, data, rest))
      return convolve_whole(context, problem, data, rest, shape.count(2, shape.rank()));
    const bool depthwise = is_depthwise(problem);  // cuDNN is slow at these
    if (!depthwise && suits_dnn(context, problem, false, x, w, data, rest) &&
        run_dnn(context, problem, false, x.shape, w.shape, shape, data, rest))
      return;
    if (x.count() == 0)
      set_bias(context, problem, y, bias);
    else if (depthwise)
      return convolve_depthwise(context.stream(), problem, data, rest);
    else
      return convolve_whole(context, problem, data, rest, shape.count(2, shape.rank()));
    finish(context.stream(), problem, shape.count(2, shape.rank()), rest, y.data);
  }

 protected:
  Conv(const NodeInfo& node, const Activation& activation, bool has_residual = false)
      : ConvBase(node), activation_(activation) {
    expect(node, attributes_, false, 2, has_residual, activation_);
  }
  bool run_tiles(Context& context, const ConvProblem& problem, const Tensor& x, ConvData data,
                 const Epilogue& rest) const {
    const StreamRef stream = context.stream();
    if (takes_planes_) {
      if (!filled_) return false;
      data.x = nullptr, data.w = filled_, data.is_filled = true;  // x goes to scratch memory
    }
    const TileGemmWay way = way_by_tiles(stream, problem, data, rest);
    if (way.parts == 0) return false;
    if (takes_planes_) data.x = fill_planes(context, x);
    convolve_tiles(stream, problem, data, rest, way);
    return true;
  }

  // What is added to the result: shaped and laid out as it is.
  virtual const void* residual_of(Context&, const Tensor& /*y*/) const { return nullptr; }

 private:
  Activation activation_;
};

// A convolution with what follows it: y = activation(conv(X, W) + B + Z).
class FusedConv : public Conv {
 public:
  explicit FusedConv(const NodeInfo& node) : Conv(node, Activation::of(node), node.has_input(3)) {}

 private:
  const void* residual_of(Context& context, const Tensor& y) const override {
    const Tensor* const z = context.find_input(3);
    if (!z) return nullptr;
    require(z->shape == y.shape && z->type == y.type, "Z is ", device::name(z->type), " ", z->shape.str(), "; ",
            device::name(y.type), " ", y.shape.str(), ", as the result, is wanted");
    return z->data;
  }
};

class ConvTranspose : public ConvBase {
 public:
  explicit ConvTranspose(const NodeInfo& node) : ConvTranspose(node, 2) {}
  void run(Context& context) const override { run(context, attributes_, 2); }

 protected:
  ConvTranspose(const NodeInfo& node, int bias_input) : ConvBase(node) {
    if (bias_input == 2 || !node.has_input(2)) expect(node, attributes_, true, bias_input, false, {});
  }
  void run(Context& context, const WindowAttributes& attributes, int bias_input) const {
    Tensor x = context.input(0), w = weights(context);
    x.shape = ops::channels_first(x.shape, layout_);
    const auto kernel = kernel_of(x, w);
    const int64_t in_channels = x.shape[1], out_channels = checked_product(w.shape[1], groups_);
    require(w.shape[0] == in_channels, "X has ", in_channels, " channels; W ", w.shape.str(), " wants ", w.shape[0]);
    require(in_channels % groups_ == 0, "the ", in_channels, " input channels cannot be divided by group ", groups_);
    const ConvProblem problem{x.type,
                              layout_,
                              attributes.slide_transposed(x.shape, kernel),
                              x.shape[0],
                              in_channels,
                              out_channels,
                              groups_,
                              use_tf32_ && x.type == Type::f32};
    const void* bias = bias_of(context, bias_input, x.type, out_channels);
    const Shape shape = with_spatial(x.shape, out_channels, problem.window.in);
    const Tensor y = context.output(0, stored(shape, layout_));
    if (y.count() == 0) return;
    if (x.count() == 0) return set_bias(context, problem, y, bias);
    arrange(context, w);
    const ConvData data{x.data, w.data, bias, y.data};
    // For cuDNN the result has to be the input of a convolution that gives just x.
    if (!problem.window.is_exact() || !suits_dnn(context, problem, true, x, w, data, {}) ||
        !run_dnn(context, problem, true, x.shape, w.shape, shape, data, {}))
      convolve_transposed(context, problem, data);
  }

 private:
  int64_t arranged_groups() const override { return 1; }
};

// Whose pads are an input, in host memory.
class ConvTransposeWithDynamicPads : public ConvTranspose {
 public:
  explicit ConvTransposeWithDynamicPads(const NodeInfo& node) : ConvTranspose(node, 3) {}
  void run(Context& context) const override {
    const Tensor* const pads = context.find_input(2);
    if (!pads) return ConvTranspose::run(context, attributes_, 3);
    ConvTranspose::run(context, attributes_.with_pads(host_ints(*pads, "Pads")), 3);
  }
};

}  // namespace

std::vector<OpRow> conv_rows() {
  constexpr Types kFusedFloats{Type::f16, Type::f32, Type::f64};  // as its schema has it
  return {
      {.name = "Conv", .since = 1, .types = {in(0, kFloats)}, .make = make<Conv>},
      {.domain = kChannelsLast, .name = "Conv", .since = 11, .types = {in(0, kChannelsLastFloats)}, .make = make<Conv>},
      {.domain = kMicrosoft, .name = "FusedConv", .since = 1, .types = {in(0, kFusedFloats)}, .make = make<FusedConv>},
      {.domain = kMicrosoft, .name = "NhwcConv", .since = 1, .types = {in(0, kFusedFloats)}, .make = make<Conv>},
      {.name = "ConvTranspose", .since = 1, .types = {in(0, kFloats)}, .make = make<ConvTranspose>},
      {.domain = kChannelsLast,
       .name = "ConvTranspose",
       .since = 11,
       .types = {in(0, kChannelsLastFloats)},
       .make = make<ConvTranspose>},
      {.domain = kMicrosoft,
       .name = "ConvTransposeWithDynamicPads",
       .since = 1,
       .types = {in(0, kFusedFloats), in(2, Types{Type::i64})},
       .make = make<ConvTransposeWithDynamicPads>,
       .host_inputs = {2}},
  };
}

}  // namespace encore::ops
