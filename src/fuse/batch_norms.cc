#include "fuse/batch_norms.h"

#include <algorithm>
#include <cmath>

#include "fuse/passes.h"
#include "ops/elementwise/program.h"
#include "ops/registry.h"

namespace encore::fuse {
namespace {

constexpr ops::Types kServed = ops::kHalves | ops::Types{Type::f32};
// Weights that are rounded lose as much of what a norm would have removed before as of what is left. That may be four
// bits more.
constexpr double kMostRemoved = 16;

int add_constant(Match& match, std::string name, Type type, const std::vector<double>& numbers,
                 const std::vector<int64_t>& dims) {
  return match.add_constant(std::move(name), own_numbers(type, ops::Shape(dims), numbers));
}

int add_floats(Match& match, int like, const char* what) {
  const Value& of = match.value(like);
  return match.add({of.name + what, Type::f32, of.dims});
}

// Whether nobody else reads what the value holds; its shape may be read.
bool is_read_by_alone(const Match& match, int v, int s) {
  const auto reads_no_more = [&](int reader) { return reader == s || match.is(reader, "Shape"); };
  return !match.value(v).is_output && std::ranges::count(match.readers(v), s) == 1 &&
         std::ranges::all_of(match.readers(v), reads_no_more);
}

// The product by a constant that makes the value for this step alone, or what has the same rows; or -1.
int product_behind(const Match& match, int v, int s) {
  int rows = match.maker(v, "Reshape");
  if (rows < 0) rows = match.maker(v, "Flatten");
  if (rows >= 0) {
    const int before = match.step(rows).inputs[0];
    const auto &from = match.value(before).dims, &to = match.value(v).dims;
    if (!from || !to || from->empty() || from->back() != to->back() || !is_read_by_alone(match, v, s)) return -1;
    v = before, s = rows;
  }
  const int product = match.maker(v, "MatMul");
  if (product < 0 || !is_read_by_alone(match, v, s)) return -1;
  const std::vector<int>& inputs = match.step(product).inputs;
  const Value& weights = match.value(inputs[1]);
  return inputs.size() == 2 && weights.constant && match.rank(inputs[1]) == 2u && match.readers(inputs[1]).size() == 1
             ? product
             : -1;
}

// A convolution of the same layout, whose windows lie in their pictures.
bool is_convolution_within(const Match& match, int s, const std::string& domain) {
  const NodeInfo& node = match.node(s);
  const auto pads = node.find_ints("pads");
  const std::string fill = node.get_string("auto_pad", "NOTSET");
  return node.op_type() == "Conv" && node.domain() == domain && (fill == "NOTSET" || fill == "VALID") &&
         (!pads || std::ranges::count(*pads, 0) == std::ssize(*pads));
}

}  // namespace

bool is_norm_of_constants(const Match& match, int s) {
  if (!match.is_there(s) || match.node(s).op_type() != "BatchNormalization" || match.step(s).inputs.size() != 5 ||
      match.node(s).get_int("training_mode", 0) != 0)
    return false;
  const std::string& domain = match.node(s).domain();
  const auto& outputs = match.step(s).outputs;
  return (domain.empty() || domain == ops::kChannelsLast) &&
         std::all_of(outputs.begin() + 1, outputs.end(), [](int v) { return v < 0; });
}

NormRows rows_of_norm(const Match& match, const Step& step, int64_t channels) {
  std::vector<double> of[4];
  for (size_t i = 0; i < 4; ++i) {
    if (const Tensor* const constant = match.plan().constant(step, i + 1)) of[i] = numbers_of(*constant);
    if (std::ssize(of[i]) != channels) return {};
  }
  const auto& [scale, shift, mean, variance] = of;
  const double epsilon = step.node->get_float("epsilon", 1e-5f);
  NormRows rows;
  for (size_t c = 0; c < scale.size(); ++c) {
    rows.factors.push_back(scale[c] / std::sqrt(variance[c] + epsilon));
    rows.summands.push_back(shift[c] - mean[c] * rows.factors.back());
    rows.sizes.push_back(std::abs(scale[c]) + std::abs(shift[c]));
    rows.means.push_back(std::abs(mean[c] * rows.factors.back()));
  }
  return rows;
}

// Of rows, whose columns are its channels. What the weights are then is rounded to their type once more.
void fold_batch_norm(Match& match, int norm) {
  if (!is_norm_of_constants(match, norm) || !match.node(norm).domain().empty()) return;
  const Step& step = match.step(norm);
  const int x = step.inputs[0], y = step.outputs[0];
  if (match.rank(x) != 2u || match.value(y).is_output) return;
  const int product = product_behind(match, x, norm);
  if (product < 0) return;
  const int factor = match.step(product).inputs[1];
  const Value weights = match.value(factor);
  const int64_t columns = weights.dims->back();
  const NormRows rows = rows_of_norm(match, step, columns);
  if (rows.factors.empty() || !kServed.has(weights.type) || match.value(x).type != weights.type) return;
  auto scaled = scaled_columns(*weights.constant, rows.factors);
  auto summands = own_finite_numbers(weights.type, ops::Shape{columns}, rows.summands);
  if (!scaled || !summands) return;
  const std::string name = match.node(product).name() + " and " + match.node(norm).name();
  const int scaled_weights = match.add_constant(weights.name, std::move(scaled)),
            bias = match.add_constant(name + "'s summands", std::move(summands));
  match.substitute(y, x);
  match.remove(norm);
  match.replace({product},
                match.plan().step({ops::kOnnx, "MatMul", match.node(product).since_version()}, name,
                                  {match.step(product).inputs[0], scaled_weights, bias}, match.step(product).outputs));
}

// Zeros around a picture would not be normed.
void fold_batch_norm_ahead(Match& match, int norm) {
  if (!is_norm_of_constants(match, norm)) return;
  const Step& step = match.step(norm);
  const int x = step.inputs[0], y = step.outputs[0], conv = match.only_reader(y);
  if (conv < 0 || !is_convolution_within(match, conv, match.node(norm).domain()) || match.step(conv).inputs[0] != y)
    return;
  std::vector<int> inputs = match.step(conv).inputs;
  inputs.resize(std::max<size_t>(inputs.size(), 3), -1);
  const Value weights = match.value(inputs[1]);
  const Tensor* const given = inputs[2] < 0 ? nullptr : match.value(inputs[2]).constant;
  if (!weights.constant || !weights.dims || weights.dims->size() < 3 || match.readers(inputs[1]).size() != 1 ||
      (inputs[2] >= 0 && !given) || !kServed.has(weights.type) || match.value(x).type != weights.type ||
      match.value(y).type != weights.type)
    return;
  const auto groups = size_t(match.node(conv).get_int("group", 1)), made = size_t((*weights.dims)[0]),
             channels = size_t((*weights.dims)[1]);
  if (groups < 1 || made == 0 || made % groups != 0 || (given && size_t(given->count()) != made)) return;
  const NormRows rows = rows_of_norm(match, step, int64_t(channels * groups));
  if (rows.factors.empty()) return;
  std::vector<double> scaled = numbers_of(*weights.constant);
  std::vector<double> biases = given ? numbers_of(*given) : std::vector<double>(made);
  std::vector<double> normed(made), removed(made);  // how large what a sum adds up is by far, and its means
  const size_t taps = scaled.size() / (made * channels);
  for (size_t i = 0; i < scaled.size(); ++i) {
    const size_t to = i / taps / channels, from = to / (made / groups) * channels + i / taps % channels;
    normed[to] += std::abs(scaled[i]) * rows.sizes[from];
    removed[to] += std::abs(scaled[i]) * rows.means[from];
    biases[to] += scaled[i] * rows.summands[from];
    scaled[i] *= rows.factors[from];
  }
  for (size_t to = 0; to < made; ++to)
    if (removed[to] > kMostRemoved * normed[to]) return;
  auto scaled_weights = own_rows(weights.type, ops::Shape(*weights.dims), scaled);
  auto all_biases = own_finite_numbers(weights.type, ops::Shape{int64_t(made)}, biases);
  if (!scaled_weights || !all_biases) return;
  const std::string name = match.node(norm).name() + " and " + match.node(conv).name();
  inputs[0] = x;
  inputs[1] = match.add_constant(weights.name, std::move(scaled_weights));
  inputs[2] = match.add_constant(name + "'s biases", std::move(all_biases));
  const NodeInfo& node = match.node(conv);
  match.replace({norm, conv}, match.plan().step(operator_of(node), name, std::move(inputs), match.step(conv).outputs));
}

// In floats, as the norm is.
void open_batch_norm(Match& match, int norm) {
  if (!match.plan().settings.fuses_elementwise || !is_norm_of_constants(match, norm)) return;
  const Step& step = match.step(norm);
  const int y = step.outputs[0], reader = match.only_reader(y);
  const Value x = match.value(step.inputs[0]);
  if (reader < 0 || !ops::scalar_call(match.node(reader)) || !x.dims ||
      match.value(match.step(reader).outputs[0]).dims != x.dims || match.value(y).dims != x.dims ||
      x.dims->size() < 2 || std::ssize(*x.dims) > ops::kMostProgramDims || std::ranges::count(*x.dims, -1) ||
      !kServed.has(x.type) || match.value(y).type != x.type)
    return;
  const bool is_last = match.node(norm).domain() == ops::kChannelsLast;
  const int64_t channels = is_last ? x.dims->back() : (*x.dims)[1];
  const NormRows rows = rows_of_norm(match, step, channels);
  if (rows.factors.empty()) return;
  std::vector<int64_t> dims(is_last ? 1 : x.dims->size() - 1, 1);
  dims.front() = channels;
  const std::string name = match.node(norm).name();
  const int factor = add_constant(match, name + "'s factors", Type::f32, rows.factors, dims),
            summand = add_constant(match, name + "'s summands", Type::f32, rows.summands, dims);
  const bool is_half = x.type != Type::f32;
  const int from = match.step(norm).inputs[0];
  const int wide = is_half ? add_floats(match, from, " in floats") : from;
  const int product = add_floats(match, from, " times its factors");
  const int sum = is_half ? add_floats(match, from, " and its summands") : y;
  const auto cast_to = [](Type type) {
    return Operator{ops::kOnnx, "Cast", 13, {{"to", int64_t(type == Type::f32 ? 1 : type == Type::f16 ? 10 : 16)}}};
  };
  if (is_half) {
    match.insert(match.plan().step(cast_to(Type::f32), name, {from}, {wide}));
    match.insert(match.plan().step({ops::kOnnx, "Add", 14}, name, {product, summand}, {sum}));
  }
  match.insert(match.plan().step({ops::kOnnx, "Mul", 14}, name, {wide, factor}, {product}));
  match.replace({norm}, is_half ? match.plan().step(cast_to(x.type), name, {sum}, {y})
                                : match.plan().step({ops::kOnnx, "Add", 14}, name, {product, summand}, {y}));
}

}  // namespace encore::fuse
