#include "fuse/joined_products.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "fuse/passes.h"
#include "ops/elementwise/gate.h"
#include "ops/registry.h"

namespace encore::fuse {
namespace {

constexpr ops::Types kServed = ops::kHalves | ops::Types{Type::f32};
constexpr size_t kBias = 2;     // an input of MatMul as Encore has it
constexpr size_t kIndices = 4;  // an input of MatMulNBits, by which depths belong to blocks

bool is_matmul(const Step& step) { return is_onnx(*step.node, "MatMul"); }

size_t bias_input(const Step& product) { return is_matmul(product) ? kBias : 5; }

int input_of(const Step& step, size_t i) { return i < step.inputs.size() ? step.inputs[i] : -1; }

// What each column has of a constant.
std::optional<std::vector<int64_t>> dims_of_column(const Match& match, int constant, bool by_columns, int64_t columns) {
  auto dims = match.value(constant).dims;
  if (!dims || dims->empty()) return std::nullopt;
  int64_t& joined = by_columns ? dims->back() : dims->front();
  if (joined % columns != 0) return std::nullopt;
  joined /= columns;
  return dims;
}

// Of the constants so many bytes each in turns; dimension `axis` is as long as in all of them.
std::shared_ptr<OwnTensor> in_turns(const std::vector<const Tensor*>& parts, const std::vector<size_t>& bytes,
                                    size_t axis) {
  auto made = std::make_shared<OwnTensor>();
  const auto first = parts.front()->shape.dims();
  std::vector<int64_t> dims(first.begin(), first.end());
  dims[axis] = 0;
  for (const Tensor* part : parts) dims[axis] += part->shape[int(axis)];
  made->view = {parts.front()->type, ops::Where::host, ops::Shape(dims), nullptr};
  made->bytes.reserve(made->view.bytes());  // and not filled first: a model's weights are many
  for (size_t turn = 0; made->bytes.size() < made->view.bytes(); ++turn)
    for (size_t i = 0; i < parts.size(); ++i) {
      const char* const from = parts[i]->as<const char>() + turn * bytes[i];
      made->bytes.insert(made->bytes.end(), from, from + bytes[i]);
    }
  made->view.data = made->bytes.data();
  return made;
}

// Zeros for the products without a bias, in one dimension, where others have one.
void fill_biases(Match& match, const std::vector<int64_t>& columns, std::vector<int>& biases) {
  const auto given = std::ranges::find_if(biases, [](int v) { return v >= 0; });
  if (given == biases.end()) return;
  const Value like = match.value(*given);
  for (size_t i = 0; i < biases.size(); ++i)
    if (biases[i] < 0) biases[i] = match.add_constant("no " + like.name, own(like.type, ops::Shape{columns[i]}));
}

// The constants as one; its data is there when the model's is. Columns lie in rows, or each by itself.
int join_constants(Match& match, const std::vector<int>& parts, const std::vector<int64_t>& columns, int64_t turn,
                   bool in_rows) {
  Value made = match.value(parts.front());
  const size_t axis = in_rows ? made.dims->size() - 1 : 0;
  made.dims.value()[axis] = 0;
  std::vector<const Tensor*> data;
  std::vector<size_t> bytes;
  for (size_t i = 0; i < parts.size(); ++i) {
    const Value& part = match.value(parts[i]);
    made.dims.value()[axis] += (*part.dims)[axis];
    if (!part.constant || part.constant->bytes() == 0) continue;
    data.push_back(part.constant);
    const size_t of_column =
        in_rows ? device::size_bytes(part.constant->type) : part.constant->bytes() / size_t(columns[i]);
    bytes.push_back(of_column * size_t(turn ? turn : columns[i]));
  }
  made.constant = nullptr;
  if (data.size() == parts.size()) {
    const auto all = in_turns(data, bytes, axis);
    match.keep(all);
    made.constant = &all->view;
  }
  return match.add(std::move(made));
}

// Neighbours that stay so.
struct Columns {
  int64_t first, count;
};
std::vector<Columns> neighbours_in(const std::vector<int64_t>& order) {
  std::vector<Columns> found;
  for (const int64_t column : order) {
    if (found.empty() || found.back().first + found.back().count != column) found.push_back({column, 0});
    ++found.back().count;
  }
  return found;
}

// The constant with its `count` columns in this order, likewise.
int in_order(Match& match, int v, const std::vector<Columns>& order, size_t count, bool in_rows) {
  Value made = match.value(v);
  const Tensor* const given = std::exchange(made.constant, nullptr);
  if (given && given->bytes() > 0) {
    const auto all = own(given->type, given->shape);
    const size_t bytes = in_rows ? device::size_bytes(given->type) : given->bytes() / count;
    char* to = all->bytes.data();
    for (const char *row = given->as<const char>(), *end = row + given->bytes(); row < end; row += bytes * count)
      for (const Columns& columns : order)
        to = std::copy_n(row + size_t(columns.first) * bytes, size_t(columns.count) * bytes, to);
    match.keep(all);
    made.constant = &all->view;
  }
  return match.add(std::move(made));
}

}  // namespace

int64_t columns_of(const Match& match, const Step& product) {
  if (is_quantized_product(*product.node))
    return product.node->find_int(ops::kGated) ? 0 : product.node->get_int("N", 0);
  const auto rank = is_matmul(product) ? match.rank(product.inputs[1]) : std::nullopt;
  return rank == 2u ? std::max<int64_t>(match.value(product.inputs[1]).dims->back(), 0) : 0;
}

bool is_constant_row(const Match& match, int v, int64_t columns, size_t rank) {
  const auto& dims = match.value(v).dims;
  return match.value(v).is_constant && dims && !dims->empty() && dims->size() <= rank && dims->back() == columns &&
         std::all_of(dims->begin(), dims->end() - 1, [](int64_t dim) { return dim == 1; });
}

namespace {

// Perhaps one whose weights have a row for each column.
bool is_gemm_of_rows(const Match& match, int s) {
  const std::vector<int>& inputs = match.step(s).inputs;
  const NodeInfo& node = match.node(s);
  if (!match.is(s, "Gemm") || node.since_version() < 7 || match.rank(inputs[1]) != 2u ||
      node.get_float("alpha", 1) != 1 || node.get_int("transA", 0) != 0)
    return false;
  const int64_t columns = match.value(inputs[1]).dims.value()[node.get_int("transB", 0) != 0 ? 0 : 1];
  return inputs.size() <= kBias || inputs[kBias] < 0 ||
         (node.get_float("beta", 1) == 1 && is_constant_row(match, inputs[kBias], columns, 2));
}

}  // namespace

bool is_plain_gemm(const Match& match, int s) {
  return is_gemm_of_rows(match, s) && match.node(s).get_int("transB", 0) == 0;
}

bool is_plain_product(const Match& match, int s) {
  if (!match.is_there(s)) return false;
  const NodeInfo& node = match.node(s);
  const std::vector<int>& inputs = match.step(s).inputs;
  return (is_onnx(node, "MatMul") || is_gemm_of_rows(match, s) ||
          (node.op_type() == "FusedMatMul" && node.domain() == ops::kMicrosoft)) &&
         match.value(inputs[1]).is_constant && inputs.size() <= kBias + 1 && kServed.has(match.value(inputs[0]).type);
}

bool can_join(const Match& match, const Step& product, const Step& other) {
  const int64_t columns = columns_of(match, product), of_other = columns_of(match, other);
  const bool is_plain = is_matmul(product);
  if (columns == 0 || of_other == 0 || is_plain != is_matmul(other) || product.inputs[0] != other.inputs[0])
    return false;
  if (!is_plain)
    for (const char* attribute : {"K", "bits", "block_size"})
      if (product.node->find_int(attribute) != other.node->find_int(attribute)) return false;
  for (size_t i = 1; i < std::max(product.inputs.size(), other.inputs.size()); ++i) {
    const int a = input_of(product, i), b = input_of(other, i);
    if (a < 0 && b < 0) continue;
    if (const int bias = std::max(a, b); i == bias_input(product) && std::min(a, b) < 0) {
      if (!is_constant_row(match, bias, a < 0 ? of_other : columns, 1)) return false;
      continue;
    }
    if (a < 0 || b < 0 || i == kIndices || match.value(a).type != match.value(b).type) return false;
    for (const int v : {a, b})  // of the weights others would need another copy
      if (!match.value(v).is_constant || (i == 1 && match.readers(v).size() != 1)) return false;
    const auto dims = dims_of_column(match, a, is_plain, columns);
    if (!dims || dims != dims_of_column(match, b, is_plain, of_other)) return false;
  }
  return true;
}

Step join_products(Match& match, const std::vector<int>& products, int64_t turn, int output,
                   const ops::Attributes& more) {
  std::vector<int64_t> columns;
  std::string name;
  for (const int s : products) {
    columns.push_back(columns_of(match, match.step(s)));
    name += (name.empty() ? "" : " and ") + match.node(s).name();
  }
  const int first = products.front();
  const bool is_plain = is_matmul(match.step(first));
  std::vector<int> inputs{match.step(first).inputs[0]};
  size_t most = 0;
  for (const int s : products) most = std::max(most, match.step(s).inputs.size());
  for (size_t i = 1; i < most; ++i) {
    std::vector<int> parts;
    for (const int s : products) parts.push_back(input_of(match.step(s), i));
    if (i == bias_input(match.step(first))) fill_biases(match, columns, parts);
    inputs.push_back(parts.front() < 0 ? -1 : join_constants(match, parts, columns, turn, is_plain));
  }
  const NodeInfo& node = match.node(first);
  ops::Attributes attributes = node.attributes();
  attributes.insert(more.begin(), more.end());
  if (!is_plain) attributes["N"] = std::accumulate(columns.begin(), columns.end(), int64_t(0));
  return match.plan().step({node.domain(), node.op_type(), node.since_version(), std::move(attributes)},
                           std::move(name), std::move(inputs), {output});
}

Step with_columns(Match& match, int product, const std::vector<int64_t>& order, int output,
                  const ops::Attributes& more) {
  std::vector<int> inputs = match.step(product).inputs;
  const std::vector<Columns> neighbours = neighbours_in(order);
  for (size_t i = 1; i < inputs.size(); ++i)
    if (inputs[i] >= 0)
      inputs[i] = in_order(match, inputs[i], neighbours, order.size(), is_matmul(match.step(product)));
  const NodeInfo& node = match.node(product);
  Operator made = operator_of(node);
  made.attributes.insert(more.begin(), more.end());
  return match.plan().step(std::move(made), node.name(), std::move(inputs), {output});
}

}  // namespace encore::fuse
