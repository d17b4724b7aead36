#include "ops/nn/squeeze_excite.h"

#include <algorithm>

#include "fuse/batch_norms.h"
#include "fuse/joined_products.h"
#include "fuse/passes.h"
#include "fuse/shape_symbols.h"
#include "ops/registry.h"

namespace encore::fuse {
namespace {

constexpr ops::Types kServed = ops::kHalves | ops::Types{Type::f32};
constexpr size_t kMostBytes = size_t(1) << 20;  // of a product's weights: larger ones are worth kernels of their own

bool are_ones(std::span<const int64_t> dims) {
  return std::ranges::all_of(dims, [](int64_t dim) { return dim == 1; });
}

// Whether the step takes the means of channels, which are last.
bool is_mean_of_channels(const Match& match, int s) {
  if (!match.is_there(s)) return false;
  const Step& step = match.step(s);
  const bool is_pool = step.node->op_type() == "GlobalAveragePool";
  if (!is_pool && !match.is(s, "ReduceMean")) return false;
  const auto rank = match.rank(step.inputs[0]);
  if (!rank || *rank < 3) return false;
  if (is_pool) return step.node->domain() == ops::kChannelsLast;
  const auto axes = ShapeSymbols(match).axes(step);
  if (!axes || axes->size() != *rank - 2) return false;
  std::vector<bool> reduced(*rank);
  for (const int64_t axis : *axes)
    if (const auto at = counted_from_first(axis, *rank)) reduced[*at] = true;
  return !reduced.front() && !reduced.back() && std::ranges::count(reduced, true) == std::ssize(reduced) - 2;
}

// Rows of numbers on their way: the steps so far, which nobody else reads, and what the last one makes.
struct Way {
  std::vector<int> steps;
  int value;

  void go(const Match& match, int s) {
    steps.push_back(s);
    value = match.step(s).outputs[0];
  }
  void pass_shapes(const Match& match) {
    for (int s = match.only_reader(value); s >= 0 && match.step(s).inputs[0] == value && only_shapes(match, s);
         s = match.only_reader(value))
      go(match, s);
  }
};

// An activation as FusedConv names it, or none.
struct Activated {
  std::string activation = {};
  std::vector<float> params = {};

  // By one that is next on the way.
  void go(const Match& match, Way& way, std::optional<Ending> end) {
    if (!end || end->move >= 0) return;
    for (const int step : end->steps) way.go(match, step);
    *this = {end->activation, end->params};
  }
  void describe(ops::Attributes& attributes, const std::string& attribute) const {
    attributes[attribute] = activation;
    attributes[attribute + "_params"] = params;
  }
};

// A product of rows by a constant matrix.
struct Product {
  int weights, bias = -1;
  int64_t depth, columns;
  bool has_rows;  // of the matrix for columns
  Activated end = {};
};

// A convolution of one position by one tap.
bool is_product_of_channels(const Match& match, const Step& step) {
  const NodeInfo& node = *step.node;
  if ((node.op_type() != "Conv" && node.op_type() != "FusedConv") ||
      (!node.domain().empty() && node.domain() != ops::kChannelsLast) || !has_one_tap(match, step))
    return false;
  const auto& x = match.value(step.inputs[0]).dims;
  if (!x || x->size() != match.value(step.inputs[1]).dims->size()) return false;
  const std::span<const int64_t> positions(*x);
  return are_ones(positions.subspan(node.domain().empty() ? 2 : 1, x->size() - 2)) &&
         (step.inputs.size() < 4 || step.inputs[3] < 0);
}

// What the step makes of rows that are so deep, if it is such a product.
std::optional<Product> product(const Match& match, int s, int rows, int64_t depth) {
  if (!match.is_there(s)) return std::nullopt;
  const Step& step = match.step(s);
  if (step.inputs.size() < 2 || step.inputs[0] != rows || step.inputs[1] < 0) return std::nullopt;
  const NodeInfo& node = *step.node;
  const Value& weights = match.value(step.inputs[1]);
  const auto &dims = weights.dims, &of_rows = match.value(rows).dims;
  if (!weights.is_constant || !weights.constant || !weights.constant->data || weights.type != match.value(rows).type ||
      weights.constant->bytes() > kMostBytes || !dims || dims->size() < 2 || !of_rows)
    return std::nullopt;
  Product made{step.inputs[1]};
  if (is_product_of_channels(match, step)) {
    made.has_rows = true;
    made.end = {node.get_string("activation", ""),
                node.find_floats("activation_params").value_or(std::vector<float>())};
  } else if (dims->size() == 2 && of_rows->back() == depth &&
             (match.is(s, "MatMul") || (match.is(s, "Gemm") && node.get_float("alpha", 1) == 1 &&
                                        node.get_float("beta", 1) == 1 && node.get_int("transA", 0) == 0))) {
    made.has_rows = node.get_int("transB", 0) != 0;
  } else {
    return std::nullopt;
  }
  made.columns = (*dims)[made.has_rows ? 0 : 1];
  made.depth = (*dims)[made.has_rows ? 1 : 0];
  if (made.depth != depth || made.columns < 1) return std::nullopt;
  if (step.inputs.size() > 2 && step.inputs[2] >= 0) {
    made.bias = step.inputs[2];
    if (!is_constant_row(match, made.bias, made.columns, 2) || match.value(made.bias).type != weights.type)
      return std::nullopt;
  }
  return made;
}

// The next product on the way, with its activation.
std::optional<Product> go_through_product(const Match& match, Way& way, int64_t depth) {
  way.pass_shapes(match);
  const int s = match.only_reader(way.value);
  auto made = product(match, s, way.value, depth);
  if (!made) return std::nullopt;
  way.go(match, s);
  if (made->end.activation.empty()) made->end.go(match, way, ending_behind(match, way.value));
  return made;
}

// The matrix with a row for each column, or for each number of its depth.
int weights_of(Match& match, const Product& product, bool in_rows) {
  if (product.has_rows == in_rows) return product.weights;
  const Value weights = match.value(product.weights);
  const size_t size = device::size_bytes(weights.type),
               rows = size_t(product.has_rows ? product.columns : product.depth),
               columns = weights.constant->bytes() / size / rows;
  const auto turned = own(weights.type, ops::Shape{int64_t(columns), int64_t(rows)}, weights.constant->data);
  const auto* const from = static_cast<const char*>(weights.constant->data);
  for (size_t row = 0; row < rows; ++row)
    for (size_t column = 0; column < columns; ++column)
      std::copy_n(from + (row * columns + column) * size, size, turned->bytes.data() + (column * rows + row) * size);
  return match.add_constant(weights.name + " turned", turned);
}

// The next step if it is a batch normalisation by constants.
NormRows go_through_norm(const Match& match, Way& way, int64_t channels) {
  const int s = match.only_reader(way.value);
  if (!is_norm_of_constants(match, s) || match.node(s).domain() != ops::kChannelsLast) return {};
  NormRows rows = rows_of_norm(match, match.step(s), channels);
  if (!rows.factors.empty()) way.go(match, s);
  return rows;
}

}  // namespace

bool only_shapes(const Match& match, int s) {
  for (const char* op : {"Reshape", "Flatten", "Squeeze", "Unsqueeze"})
    if (match.is(s, op)) return true;
  const auto order = match.is(s, "Transpose") ? match.node(s).find_ints("perm") : std::nullopt;
  if (!order) return false;
  const auto& dims = match.value(match.step(s).inputs[0]).dims;
  if (!dims || dims->size() != order->size()) return false;
  std::vector<int64_t> moved;
  std::ranges::copy_if(*order, std::back_inserter(moved), [&](int64_t axis) { return (*dims)[size_t(axis)] != 1; });
  return std::ranges::is_sorted(moved);
}

// No path leaves them and comes back, for nobody else reads what is between.
void join_squeeze_excite(Match& match, int mean) {
  if (!is_mean_of_channels(match, mean)) return;
  const int x = match.step(mean).inputs[0];
  const Dims dims = *match.value(x).dims;
  const int64_t channels = dims.back();
  if (channels < 1 || !kServed.has(match.value(x).type)) return;
  Way way{{}, x};
  way.go(match, mean);
  const auto squeeze = go_through_product(match, way, channels);
  if (!squeeze) return;
  const auto excite = go_through_product(match, way, squeeze->columns);
  if (!excite || excite->columns != channels) return;
  way.pass_shapes(match);
  const auto& gate = match.value(way.value).dims;
  const int scaled = match.only_reader(way.value, "Mul");
  if (scaled < 0 || match.node(scaled).since_version() < 7 || match.other(scaled, way.value) != x || !gate ||
      gate->size() != dims.size() || gate->back() != channels ||
      !are_ones(std::span(*gate).subspan(1, gate->size() - 2)))
    return;
  if (squeeze->columns > ops::kMostSqueezed) return match.note(mean, "channels are squeezed to more than kernels take");
  way.go(match, scaled);
  const NormRows norm = go_through_norm(match, way, channels);
  Activated end;
  end.go(match, way, ending_of(match, way.value));
  ops::Attributes attributes;
  squeeze->end.describe(attributes, "squeeze_activation");
  excite->end.describe(attributes, "gate_activation");
  end.describe(attributes, "activation");
  const std::string name = match.node(mean).name() + " to " + match.node(way.steps.back()).name();
  std::vector<int> inputs{x, weights_of(match, *squeeze, true), squeeze->bias, weights_of(match, *excite, false),
                          excite->bias};
  if (!norm.factors.empty())
    for (const auto& [what, numbers] : {std::pair{"'s factors", &norm.factors}, {"'s summands", &norm.summands}})
      inputs.push_back(match.add_constant(name + what, own_numbers(Type::f32, ops::Shape{channels}, *numbers)));
  Step made =
      match.plan().step({kFusions, "SqueezeExcite", 1, std::move(attributes)}, name, std::move(inputs), {way.value});
  made.make = ops::make_squeeze_excite;
  match.replace(std::move(way.steps), std::move(made));
}

}  // namespace encore::fuse
