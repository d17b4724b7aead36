// What a convolution makes of channels that are cut apart then: zeros between the parts let each begin where packs do.
#include <cstring>
#include <numeric>

#include "fuse/passes.h"
#include "fuse/shape_symbols.h"
#include "ops/registry.h"

namespace encore::fuse {
namespace {

constexpr ops::Types kServed = ops::kHalves | ops::Types{Type::f32};

// A convolution with its channels last, by constants, that makes the value for this step alone; or -1.
int convolution_behind(const Match& match, int v, int s) {
  const int conv = match.only_reader(v) == s ? match.maker(v) : -1;
  if (conv < 0 || match.node(conv).domain() != ops::kChannelsLast) return -1;
  const std::string& op = match.node(conv).op_type();
  const std::vector<int>& inputs = match.step(conv).inputs;
  const auto is_constant = [&](int input) { return match.value(input).constant && match.readers(input).size() == 1; };
  const bool is_plain = op == "Conv" || (op == "FusedConv" && (inputs.size() < 4 || inputs[3] < 0));
  const bool is_biased = inputs.size() > 2 && inputs[2] >= 0;
  return is_plain && match.node(conv).get_int("group", 1) == 1 && is_constant(inputs[1]) &&
                 (!is_biased || match.value(inputs[2]).constant)
             ? conv
             : -1;
}

// The constant's rows in parts, with zeros behind each.
int with_zeros(Match& match, int v, const Dims& parts, const Dims& widths) {
  const Value value = match.value(v);
  Dims dims = *value.dims;
  dims[0] = std::accumulate(widths.begin(), widths.end(), int64_t(0));
  auto made = own_numbers(value.type, ops::Shape(dims), {});
  const size_t row = made->bytes.size() / size_t(dims[0]);
  const auto* from = static_cast<const char*>(value.constant->data);
  char* to = made->bytes.data();
  for (size_t i = 0; i < parts.size(); ++i) {
    std::memcpy(to, from, size_t(parts[i]) * row);
    from += size_t(parts[i]) * row;
    to += size_t(widths[i]) * row;
  }
  return match.add_constant(value.name, std::move(made));
}

}  // namespace

void align_parts(Match& match, int split) {
  if (!match.is(split, "Split")) return;
  const int x = match.step(split).inputs[0], conv = convolution_behind(match, x, split);
  const auto rank = match.rank(x);
  if (conv < 0 || !kServed.has(match.value(x).type) ||
      counted_from_first(match.node(split).get_int("axis", 0), *rank) != *rank - 1)
    return;
  Dims parts, widths, sizes;
  std::vector<int> outputs;
  const auto pack = int64_t(16 / device::size_bytes(match.value(x).type));
  for (const int v : match.step(split).outputs) {
    const auto& dims = v < 0 ? std::nullopt : match.value(v).dims;
    if (!dims || dims->back() < 1) return;
    parts.push_back(dims->back());
    widths.push_back((dims->back() + pack - 1) / pack * pack);
    sizes.push_back(parts.back()), outputs.push_back(v);
    if (widths.back() > parts.back()) sizes.push_back(widths.back() - parts.back()), outputs.push_back(-1);
  }
  std::vector<int> inputs = match.step(conv).inputs;
  const int64_t channels = std::accumulate(parts.begin(), parts.end(), int64_t(0));
  if (parts == widths || match.value(x).dims->back() != channels || (*match.value(inputs[1]).dims)[0] != channels ||
      match.value(inputs[1]).type != match.value(x).type)
    return;
  inputs[1] = with_zeros(match, inputs[1], parts, widths);
  if (inputs.size() > 2 && inputs[2] >= 0) inputs[2] = with_zeros(match, inputs[2], parts, widths);
  Dims dims = *match.value(x).dims;
  dims.back() = std::accumulate(widths.begin(), widths.end(), int64_t(0));
  const int made = match.add_like(x, " with zeros between its parts", dims);
  const int of_sizes = match.add_constant(match.node(split).name() + "'s sizes", own_ints(sizes));
  const NodeInfo& node = match.node(conv);
  std::vector<Step> steps;
  steps.push_back(match.plan().step(operator_of(node), node.name(), std::move(inputs), {made}));
  steps.push_back(match.plan().step({ops::kOnnx, "Split", 13, {{"axis", int64_t(*rank) - 1}}}, match.node(split).name(),
                                    {made, of_sizes}, std::move(outputs)));
  match.replace({conv, split}, std::move(steps));
}

}  // namespace encore::fuse
