#include <algorithm>

#include "fuse/passes.h"
#include "ops/elementwise/gate.h"
#include "ops/quantize/matmul_nbits.h"
#include "ops/registry.h"

namespace encore::fuse {
namespace {

// x * sigmoid(x), and that times y, where they are operators.
bool is_unscaled(const Match& match, int step, const char* op) {
  return match.is(step, op) && match.node(step).get_float("alpha", 1.f) == 1.f;
}

bool is_plain_product(const Step& step) { return is_onnx(*step.node, "MatMul") && step.inputs.size() == 2; }

// Of a product by constants how many columns it has, or zero: not known, or no such product.
int64_t columns_of(const Match& match, const Step& step) {
  if (is_quantized_product(*step.node)) return step.node->find_int(ops::kGated) ? 0 : step.node->get_int("N", 0);
  const auto rank = is_plain_product(step) ? match.rank(step.inputs[1]) : std::nullopt;
  return rank == 2u ? std::max<int64_t>(match.value(step.inputs[1]).dims->back(), 0) : 0;
}

// The product that alone reads the value, by another one that is computed, too; or -1. Version 7 is the first that
// broadcasts as today.
int product_with(const Match& match, int v) {
  const int reader = match.only_reader(v, "Mul");
  return reader < 0 || match.node(reader).since_version() < 7 || match.value(match.other(reader, v)).is_constant
             ? -1
             : reader;
}

struct Gate {
  std::vector<int> steps;
  int x = -1, y = -1;
};
// What begins with this step; no steps if nothing does.
Gate gate_from(const Match& match, int first) {
  const std::vector<int>& inputs = match.step(first).inputs;
  if (is_unscaled(match, first, "SwiGLU")) return {{first}, inputs[0], inputs[1]};
  const bool is_sigmoid = match.is(first, "Sigmoid");
  if (!is_sigmoid && !is_unscaled(match, first, "Swish")) return {};
  std::vector<int> steps{first};
  if (is_sigmoid) {
    const int gated = match.step(first).outputs[0], silu = product_with(match, gated);
    if (silu < 0 || match.other(silu, gated) != inputs[0]) return {};
    steps.push_back(silu);
  }
  const int silu_of_x = match.step(steps.back()).outputs[0], last = product_with(match, silu_of_x);
  if (last < 0) return {};
  steps.push_back(last);
  return {steps, inputs[0], match.other(last, silu_of_x)};
}

// Not indices nor a bias, which MatMulNBits has behind zero points.
bool are_alike_constants(const Match& match, const Step& a, const Step& b, size_t i, int64_t columns) {
  if (a.inputs[i] < 0 || b.inputs[i] < 0) return a.inputs[i] == b.inputs[i];
  const Value &one = match.value(a.inputs[i]), &two = match.value(b.inputs[i]);
  if (i > 3 || !one.dims || one.dims->empty() || two.dims != one.dims || two.type != one.type) return false;
  for (const int v : {a.inputs[i], b.inputs[i]})
    if (!match.value(v).is_constant || match.readers(v).size() != 1) return false;
  return is_plain_product(a) || one.dims->front() % columns == 0;
}

// Whether both values, of which the first is read so often, are products that can be one.
bool are_alike(const Match& match, int x, size_t readings_of_x, int y) {
  const int left = match.maker(x), right = match.maker(y);
  if (x == y || left < 0 || right < 0 || match.readers(x).size() != readings_of_x || match.readers(y).size() != 1 ||
      match.value(x).is_output || match.value(y).is_output)
    return false;
  const Step &a = match.step(left), &b = match.step(right);
  const int64_t columns = columns_of(match, a);
  if (columns == 0 || columns % ops::kGateColumns != 0 || columns_of(match, b) != columns ||
      a.node->op_type() != b.node->op_type() || a.inputs[0] != b.inputs[0] || a.inputs.size() != b.inputs.size())
    return false;
  if (is_quantized_product(*a.node))
    for (const char* attribute : {"K", "bits", "block_size"})
      if (a.node->find_int(attribute) != b.node->find_int(attribute)) return false;
  for (size_t i = 1; i < a.inputs.size(); ++i)
    if (!are_alike_constants(match, a, b, i, columns)) return false;
  return true;
}

// Of both constants in turns `bytes` of each; dimension `widened` becomes twice as large.
std::shared_ptr<OwnTensor> alternating(const Tensor& x, const Tensor& y, size_t bytes, size_t widened) {
  auto made = std::make_shared<OwnTensor>();
  std::vector<int64_t> dims(x.shape.dims().begin(), x.shape.dims().end());
  dims[widened] *= 2;
  made->view = {x.type, ops::Where::host, ops::Shape(dims), nullptr};
  made->bytes.resize(made->view.bytes());
  char* to = made->bytes.data();
  for (size_t at = 0; at < x.bytes(); at += bytes)
    for (const Tensor* from : {&x, &y}) to = std::copy_n(static_cast<const char*>(from->data) + at, bytes, to);
  made->view.data = made->bytes.data();
  return made;
}

// The constants of both products as one; its data is there when the model's is.
int join_constants(Match& match, int x, int y, int64_t columns, bool by_columns) {
  Value made = match.value(x);
  made.dims.value()[by_columns ? 1 : 0] *= 2;
  if (const Tensor* of_x = match.value(x).constant, *of_y = match.value(y).constant; of_x && of_y) {
    const size_t of_column = by_columns ? device::size_bytes(of_x->type) : of_x->bytes() / size_t(columns);
    const auto both = alternating(*of_x, *of_y, of_column * size_t(ops::kGateColumns), by_columns ? 1 : 0);
    match.keep(both);
    made.constant = &both->view;
  }
  return match.add(std::move(made));
}

// The product of both steps: of columns that alternate, a value of its own, or gated as a quantized one.
Step join_products(Match& match, int left, int right, std::vector<int> gated) {
  const Step &x = match.step(left), &y = match.step(right);
  const bool by_columns = gated.empty();  // else columns are rows of the constants
  const int64_t columns = columns_of(match, x);
  std::vector<int> inputs{x.inputs[0]};
  for (size_t i = 1; i < x.inputs.size(); ++i)
    inputs.push_back(x.inputs[i] < 0 ? -1 : join_constants(match, x.inputs[i], y.inputs[i], columns, by_columns));
  const NodeInfo& node = *x.node;
  const std::string name = node.name() + " and " + y.node->name();
  ops::Attributes attributes = node.attributes();
  if (by_columns)
    gated = {match.add({.name = name, .type = match.value(x.outputs[0]).type})};
  else
    attributes["N"] = 2 * columns, attributes[ops::kGated] = int64_t(1);
  return match.plan().step({node.domain(), node.op_type(), node.since_version(), std::move(attributes)}, name,
                           std::move(inputs), std::move(gated));
}

}  // namespace

// No path leaves them and comes back, for what is between has no other reader.
void join_gate(Match& match, int first) {
  auto [steps, x, y] = gate_from(match, first);
  if (steps.empty()) return;
  const std::string name = match.node(steps.back()).name();
  const std::vector<int> outputs = match.step(steps.back()).outputs;
  std::vector<Step> made;
  // x is read by the sigmoid and what multiplies by that, unless these are one.
  if (are_alike(match, x, match.is(first, "Sigmoid") ? 2 : 1, y)) {
    const int left = match.maker(x), right = match.maker(y);
    const bool is_quantized = is_quantized_product(match.node(left));
    made.push_back(join_products(match, left, right, is_quantized ? outputs : std::vector<int>()));
    if (!is_quantized) {
      made.push_back(match.plan().step({kFusions, "Gate"}, name, made[0].outputs, outputs));
      made.back().make = ops::make_gate_of_both;
    }
    steps.insert(steps.end(), {left, right});
  } else if (steps.size() > 1) {
    made.push_back(match.plan().step({kFusions, "Gate"}, name, {x, y}, outputs));
    made.back().make = ops::make_gate;
  }
  if (!made.empty()) match.replace(std::move(steps), std::move(made));
}

}  // namespace encore::fuse
