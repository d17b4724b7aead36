// RNN, GRU, LSTM and DynamicQuantizeLSTM: attributes and shapes.
#include <algorithm>
#include <cctype>
#include <cmath>
#include <limits>

#include "device/dnn_recurrent.h"
#include "device/memory.h"
#include "ops/choice.h"
#include "ops/host_values.h"
#include "ops/quantize/scale_grid.h"
#include "ops/recurrent/persistent.h"
#include "ops/recurrent/recurrence.h"
#include "ops/recurrent/stacked.h"
#include "ops/registry.h"
#include "ops/shape/strided.h"

namespace encore::ops {
namespace {

struct KnownActivation {
  const char* name;  // in small letters: names are compared so
  Squash::Kind kind;
  int arguments;  // how many of alpha and beta it has
  float alpha = 0, beta = 0;
};
constexpr KnownActivation kActivations[] = {
    {"tanh", Squash::Kind::tanh, 0},
    {"sigmoid", Squash::Kind::sigmoid, 0},
    {"relu", Squash::Kind::relu, 0},
    {"affine", Squash::Kind::affine, 2, 1.f, 0.f},
    {"leakyrelu", Squash::Kind::leaky_relu, 1, 0.01f},
    {"thresholdedrelu", Squash::Kind::thresholded_relu, 1, 1.f},
    {"scaledtanh", Squash::Kind::scaled_tanh, 2, 1.f, 1.f},
    {"hardsigmoid", Squash::Kind::hard_sigmoid, 2, 0.2f, 0.5f},
    {"elu", Squash::Kind::elu, 1, 1.f},
    {"softsign", Squash::Kind::softsign, 0},
    {"softplus", Squash::Kind::softplus, 0},
};

const KnownActivation& activation_of(std::string name) {
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return char(std::tolower(c)); });
  const auto found = std::ranges::find(kActivations, name, &KnownActivation::name);
  if (found == std::end(kActivations)) fail(Code::not_supported, "there is no activation '", name, "'");
  return *found;
}

enum class Direction { forward, reverse, both };

// Which of a node's inputs and outputs are a layer's.
struct LayerPlaces {
  int w = 1, r = 2, b = 3, lengths = 4, h = 5, c = 6, p = 7;
  int y_h = 1, y_c = 2;
};

class Recurrent : public Op {
 public:
  explicit Recurrent(const NodeInfo& node, const LayerPlaces& at = {}) : at_(at) {
    const std::string& type = node.op_type();
    of_.cell = type.ends_with("LSTM") ? Cell::lstm : type == "GRU" ? Cell::gru : Cell::rnn;
    const Direction direction = read_choice<Direction>(node, "direction", "forward",
                                                       {{"foward", Direction::forward},  // the first GRU's default
                                                        {"forward", Direction::forward},
                                                        {"reverse", Direction::reverse},
                                                        {"bidirectional", Direction::both}});
    of_.directions = direction == Direction::both ? 2 : 1;
    of_.backward = direction == Direction::reverse;
    of_.batch_first = read_flag(node, "layout", false);
    of_.reset_after = node.get_int("linear_before_reset", 0) != 0;
    of_.coupled = node.get_int("input_forget", 0) != 0;
    of_.clip = node.get_float("clip", std::numeric_limits<float>::infinity());
    require(of_.clip > 0, "clip is ", of_.clip, "; it must be more than 0");
    of_.tf32 = node.settings.use_tf32;
    of_.hidden = node.get_int("hidden_size", 0);
    require(of_.hidden >= 0, "hidden_size is ", of_.hidden);
    read_activations(node);
    suits_library_ = !of_.backward && !of_.coupled && std::isinf(of_.clip) && !node.has_input(at.lengths) &&
                     !node.has_input(at.p) && (of_.cell != Cell::gru || of_.reset_after) && of_.has_usual_activations();
    wanted_parts_ = node.has_input(at.b) ? 3 : 2;
  }

  // The library has weights in an order of its own. ONNX's stay, for what it can't do shows only in a run.
  bool prepack(int input, const Tensor& constant, Prepack& prepack) override {
    using Part = device::DnnRecurrent::Part;
    if (!suits_library_ || input < 1 || input > 3 || constant.shape.rank() != (input == 3 ? 2 : 3)) return false;
    const int64_t gates = gates_of(of_.cell), directions = of_.directions;
    if (input == 1) {
      device::RecurrentLayer layer;
      layer.cell = of_.cell == Cell::lstm                        ? device::RecurrentLayer::Cell::lstm
                   : of_.cell == Cell::gru                       ? device::RecurrentLayer::Cell::gru
                   : of_.squash[0][0].kind == Squash::Kind::relu ? device::RecurrentLayer::Cell::rnn_relu
                                                                 : device::RecurrentLayer::Cell::rnn_tanh;
      layer.type = constant.type;
      layer.hidden = constant.shape[1] / gates;
      layer.input = constant.shape[2];
      layer.both_directions = directions == 2;
      layer.tf32 = of_.tf32;
      layer_ = device::DnnRecurrent::make(prepack.dnn(), layer);
      if (!layer_) return false;
      weights_ = prepack.keep(layer_->weight_bytes());
      device::fill(prepack.stream(), weights_, 0, layer_->weight_bytes());
      hidden_ = layer.hidden;
    }
    const int64_t width = input == 1 ? constant.shape[2] : input == 2 ? hidden_ : 2;
    if (!layer_ || constant.count() != directions * gates * hidden_ * width) return false;
    layer_->pack(prepack.stream(), input == 1 ? Part::w : input == 2 ? Part::r : Part::b, constant.data, weights_);
    ++packed_parts_;
    return false;
  }

  void run(Context& context) const override { run(context, context.input(0).data, context.input(1), context.input(2)); }
  size_t cleared_bytes() const override { return size_t(most_persistent_bytes(of_, 1)); }

  // What a run is about, but for Y.
  Recurrence bind(Context& context, const Tensor& x, const Tensor& w, const Tensor& weights) const {
    Recurrence r = of_;
    require(x.shape.rank() == 3, "X has shape ", x.shape.str(), "; it needs three dimensions");
    require(weights.shape.rank() == 3, "R has shape ", weights.shape.str(), "; it needs three dimensions");
    r.type = x.type;
    r.steps = x.shape[r.batch_first ? 1 : 0];
    r.batch = x.shape[r.batch_first ? 0 : 1];
    r.input = x.shape[2];
    if (r.hidden == 0) r.hidden = weights.shape[2];
    const int64_t d = r.directions, gates = gates_of(r.cell), rows = checked_product(gates, r.hidden);
    const auto expect = [&](const Tensor* tensor, const char* name, const Shape& shape) -> const void* {
      if (!tensor) return nullptr;
      require(tensor->shape == shape && tensor->type == r.type, name, " has shape ", tensor->shape.str(), " of ",
              device::name(tensor->type), "; ", shape.str(), " of ", device::name(r.type), " is wanted");
      return tensor->data;
    };
    r.x = x.data;
    r.w = expect(&w, "W", {d, rows, r.input});
    r.r = expect(&weights, "R", {d, rows, r.hidden});
    r.b = expect(context.find_input(at_.b), "B", {d, 2 * rows});
    const Shape state = r.batch_first ? Shape{r.batch, d, r.hidden} : Shape{d, r.batch, r.hidden};
    r.initial_h = expect(context.find_input(at_.h), "initial_h", state);
    if (r.cell == Cell::lstm) {
      r.initial_c = expect(context.find_input(at_.c), "initial_c", state);
      r.p = expect(context.find_input(at_.p), "P", {d, 3 * r.hidden});
    }
    const Tensor* const lengths = context.find_input(at_.lengths);
    const bool are_on_host = lengths && lengths->where == Where::host;
    if (lengths)
      require(lengths->shape == Shape{r.batch}, "sequence_lens has shape ", lengths->shape.str(), "; [", r.batch,
              "] is wanted");
    r.longest = are_on_host ? longest_of(*lengths, r) : r.steps;

    const auto output = [&](int i) { return context.wants_output(i) ? context.output(i, state).data : nullptr; };
    r.y_h = output(at_.y_h);
    if (r.cell == Cell::lstm) r.y_c = output(at_.y_c);
    if (lengths && !are_on_host)
      r.lengths = checked_lengths(context, r, lengths->as<const int32_t>());
    else if (lengths && !all_are(*lengths, r.steps))
      r.lengths = on_device(context, {lengths->as<const int32_t>(), size_t(r.batch)});
    return r;
  }

  void run(Context& context, const Recurrence& r) const {
    if (library_does(context.stream().device(), r)) return run_library(context, r);
    run_recurrence(context, {&r, 1});
  }

 protected:
  // `values`: of X.
  void run(Context& context, const void* values, const Tensor& w, const Tensor& weights) const {
    Recurrence r = bind(context, context.input(0), w, weights);
    r.x = values;
    if (context.wants_output(0)) r.y = context.output(0, r.y_shape()).data;
    run(context, r);
  }

  Recurrence of_{};  // without sizes and addresses

 private:
  // Of a few sequences it may have one kernel for all steps; else few are done sooner by one kernel of our own, or by
  // one a step, than by its several.
  bool library_does(int device, const Recurrence& r) const {
    constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
    for (const void* address : {r.x, r.initial_h, r.initial_c, static_cast<const void*>(r.y),
                                static_cast<const void*>(r.y_h), static_cast<const void*>(r.y_c)})
      if (reinterpret_cast<uintptr_t>(address) % 16 != 0) return false;
    if (!layer_ || packed_parts_ != wanted_parts_ || r.hidden != hidden_ || r.steps <= 0 || r.batch_first ||
        r.steps > kMost || checked_product(r.batch, r.hidden) > kMost)
      return false;
    return layer_->is_resident(r.batch) || !(is_few(r.batch) || may_persist(device, {&r, 1}));
  }

  void run_library(Context& context, const Recurrence& r) const {
    const size_t bytes = device::size_bytes(r.type);
    const int64_t values = checked_product(r.steps, r.states());
    const bool turns = r.directions == 2 && r.y;  // the library has the directions side by side
    const std::vector<int32_t> lengths(size_t(r.batch), int32_t(r.steps));
    device::DnnRecurrent::Run run{};
    run.steps = r.steps, run.batch = r.batch;
    run.lengths = on_device(context, lengths);
    run.weights = weights_;
    run.x = r.x, run.h = r.initial_h, run.c = r.initial_c;
    run.y = turns || !r.y ? context.scratch(size_t(values) * bytes) : r.y;
    run.y_h = r.y_h, run.y_c = r.y_c;
    run.workspace_bytes = layer_->workspace_bytes(r.steps, r.batch);
    run.workspace = context.scratch(run.workspace_bytes);
    layer_->run(context.stream(), run);
    if (!turns) return;
    StridedCopy turn;
    turn.add(r.steps, r.states(), r.states());
    turn.add(r.directions, r.hidden, r.batch * r.hidden);
    turn.add(r.batch, r.directions * r.hidden, r.hidden);
    turn.add(r.hidden, 1, 1);
    turn.run(context.stream(), run.y, r.y, bytes);
  }

  // ONNX hands arguments out in the order of the activations, to those that have any.
  void read_activations(const NodeInfo& node) {
    const size_t each = of_.cell == Cell::lstm ? 3 : of_.cell == Cell::gru ? 2 : 1, all = each * size_t(of_.directions);
    // RNN's schema says "Tanh" twice, also for one direction.
    std::vector<std::string> names(of_.cell == Cell::rnn ? 2 : all, "Tanh");
    if (each > 1)
      for (size_t i = 0; i < all; i += each) names[i] = "Sigmoid";
    names = node.get_strings("activations", names);
    require(names.size() == all || (of_.cell == Cell::rnn && names.size() > all), "there are ", names.size(),
            " activations; ", all, " are wanted");
    const std::vector<float> alphas = node.find_floats("activation_alpha").value_or(std::vector<float>{}),
                             betas = node.find_floats("activation_beta").value_or(std::vector<float>{});
    size_t alpha = 0, beta = 0;
    for (size_t i = 0; i < all; ++i) {
      const KnownActivation& known = activation_of(names[i]);
      Squash& squash = of_.squash[i / each][i % each];
      squash.kind = known.kind;
      squash.alpha = known.arguments > 0 && alpha < alphas.size() ? alphas[alpha++] : known.alpha;
      squash.beta = known.arguments > 1 && beta < betas.size() ? betas[beta++] : known.beta;
    }
  }

  static int64_t longest_of(const Tensor& lengths, const Recurrence& r) {
    int64_t longest = 0;
    for (int64_t i = 0; i < r.batch; ++i) {
      const int64_t length = lengths.as<const int32_t>()[i];
      require(length >= 0 && length <= r.steps, "a sequence has length ", length, "; X has ", r.steps, " steps");
      longest = std::max(longest, length);
    }
    return longest;
  }
  static bool all_are(const Tensor& lengths, int64_t steps) {
    const auto* const first = lengths.as<const int32_t>();
    return std::all_of(first, first + lengths.count(), [&](int32_t length) { return length == steps; });
  }

  const LayerPlaces at_;
  bool suits_library_ = false;
  std::unique_ptr<device::DnnRecurrent> layer_;
  void* weights_ = nullptr;                  // the layer's
  int64_t hidden_ = 0;                       // the layer's
  int packed_parts_ = 0, wanted_parts_ = 0;  // of W, R and B
};

// Layers on top of one another, in one direction, each with the attributes of all: the inputs of the first and its
// output Y are LSTM's, the others of a layer above it come behind.
class StackedRecurrence : public Op {
 public:
  explicit StackedRecurrence(const NodeInfo& node) {
    const int64_t layers = node.get_int(kLayers, 1);
    require(layers >= 1 && layers <= kMostStacked, "there are ", layers, " layers");
    for (int64_t l = 0; l < layers; ++l) layers_.push_back(std::make_unique<Recurrent>(node, places(int(l))));
    one_.hidden = node.get_int("hidden_size", 0);
  }
  bool prepack(int input, const Tensor& constant, Prepack& prepack) override {
    if (input < 1) return false;
    const int layer = input < kFirstLayerInputs ? 0 : 1 + (input - kFirstLayerInputs) / kMoreLayerInputs;
    const int own = layer == 0 ? input : 1 + (input - kFirstLayerInputs) % kMoreLayerInputs;
    return layers_[size_t(layer)]->prepack(own, constant, prepack);
  }
  size_t cleared_bytes() const override { return size_t(most_persistent_bytes(one_, int(layers_.size()))); }

  void run(Context& context) const override {
    const int device = context.stream().device();
    std::vector<Recurrence> bound;
    Tensor x = context.input(0);
    for (size_t l = 0; l < layers_.size(); ++l) {
      const LayerPlaces at = places(int(l));
      bound.push_back(layers_[l]->bind(context, x, context.input(at.w), context.input(at.r)));
      const Recurrence& r = bound.back();
      require(r.directions == 1, "there are two directions");
      x = {x.type, Where::device, r.batch_first ? Shape{r.batch, r.steps, r.hidden} : Shape{r.steps, r.batch, r.hidden},
           nullptr};
    }
    if (context.wants_output(0)) bound.back().y = context.output(0, bound.back().y_shape()).data;
    for (size_t first = 0; first < bound.size();) {
      size_t count = bound.size() - first;
      while (count > 1 && !may_persist(device, std::span(bound).subspan(first, count))) --count;
      const size_t next = first + count;
      if (next < bound.size()) bound[next].x = bound[next - 1].y = context.scratch(x.bytes());
      if (count == 1)
        layers_[first]->run(context, bound[first]);
      else
        run_recurrence(context, std::span(bound).subspan(first, count));
      first = next;
    }
  }

 private:
  static LayerPlaces places(int layer) {
    if (layer == 0) return {};
    const int first = kFirstLayerInputs + (layer - 1) * kMoreLayerInputs;
    return {first, first + 1, first + 2, 4, first + 3, first + 4, first + 5, 2 * layer + 1, 2 * layer + 2};
  }

  std::vector<std::unique_ptr<Recurrent>> layers_;
  Recurrence one_{};
};

// Weights of 8 bits, and a product with what is quantized as it comes: X as a whole, the states of a direction in each
// step. Scaled back first, on both sides, these are products of floats that tensor cores mustn't round.
class DynamicQuantizeLstm : public Recurrent {
 public:
  explicit DynamicQuantizeLstm(const NodeInfo& node) : Recurrent(node) {
    of_.tf32 = false;
    of_.in_bytes = true;
  }
  bool prepack(int, const Tensor&, Prepack&) override { return false; }
  void run(Context& context) const override {
    const Tensor& x = context.input(0);
    auto* const rounded = static_cast<float*>(context.scratch(x.bytes()));
    const Tensor w = widened(context, 1, 8, "W"), r = widened(context, 2, 10, "R");
    if (x.count() != 0) round_to_bytes(context.stream(), x.as<const float>(), 1, x.count(), rounded);
    Recurrent::run(context, rounded, w, r);
  }

 private:
  // [directions, depth, gates] of bytes as [directions, gates, depth] of floats. The scale is the input `scale`, the
  // zero point the one after it.
  Tensor widened(Context& context, int input, int scale_input, const char* what) const {
    const Tensor &from = context.input(input), &scale = context.input(scale_input),
                 &zero = context.input(scale_input + 1);
    require(from.shape.rank() == 3 && from.shape[0] == of_.directions, what, " has shape ", from.shape.str(), "; [",
            of_.directions, ", depth, gates] is wanted");
    const int64_t depth = from.shape[1], gates = from.shape[2], each = depth * gates;
    const Shape whole{of_.directions}, split{of_.directions, gates};
    for (const Tensor* of : {&scale, &zero})
      require(of->shape == whole || of->shape == split, what, "'s scale or zero point has shape ", of->shape.str(),
              "; ", whole.str(), " or ", split.str(), " is wanted");
    require(scale.shape == zero.shape && zero.type == from.type, what, "'s zero point has shape ", zero.shape.str(),
            " of ", device::name(zero.type), "; ", scale.shape.str(), " of ", device::name(from.type), " is wanted");
    const int64_t scales = scale.shape == whole ? 1 : gates;
    const auto bytes = size_t(checked_product(from.count(), sizeof(float)));
    const Tensor made{Type::f32, Where::device, Shape{of_.directions, gates, depth}, context.scratch(bytes)};
    if (from.count() == 0) return made;
    auto* const wide = static_cast<float*>(context.scratch(bytes));
    for (int64_t d = 0; d < of_.directions; ++d) {
      const Shape matrix{depth, gates};
      const Scales given{AnyInput(scale.as<const float>() + d * scales, Type::f32),
                         AnyInput(zero.as<const uint8_t>() + d * scales, zero.type),
                         ScaleGrid(matrix, scales == 1 ? Shape{} : Shape{gates}, 1, 0)};
      dequantize(context.stream(), {from.type, Where::device, matrix, from.as<uint8_t>() + d * each}, given,
                 {Type::f32, Where::device, matrix, wide + d * each});
    }
    StridedCopy turn;
    turn.add(of_.directions, each, each);
    turn.add(gates, 1, depth);
    turn.add(depth, gates, 1);
    turn.run(context.stream(), wide, made.data, sizeof(float));
    return made;
  }
};

}  // namespace

std::unique_ptr<Op> make_stacked_recurrence(const NodeInfo& node) { return std::make_unique<StackedRecurrence>(node); }

std::vector<OpRow> recurrent_rows() {
  const auto row = [](const char* name, std::vector<TypeRule> more) {
    OpRow row{.name = name, .since = 1, .make = make<Recurrent>, .host_inputs = {4}};
    row.types = {in(0, kFloats), in(1, kFloats),          in(2, kFloats),
                 in(3, kFloats), in(4, Types{Type::i32}), in(5, kFloats)};
    row.types.insert(row.types.end(), more.begin(), more.end());
    return row;
  };
  const Types floats{Type::f32}, bytes{Type::i8, Type::u8};
  return {row("LSTM", {in(6, kFloats), in(7, kFloats)}),
          row("GRU", {}),
          row("RNN", {}),
          {.domain = kMicrosoft,
           .name = "DynamicQuantizeLSTM",
           .since = 1,
           .until = 1,
           .types = {in(0, floats), in(1, bytes), in(2, bytes), in(8, floats), in(10, floats)},
           .make = make<DynamicQuantizeLstm>,
           .host_inputs = {4}}};
}

}  // namespace encore::ops
