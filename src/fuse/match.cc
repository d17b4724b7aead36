#include "fuse/match.h"

#include <cmath>

#include "device/half.h"

namespace encore::fuse {

bool is_onnx(const NodeInfo& info, const char* op) { return info.op_type() == op && info.domain().empty(); }

int Match::maker(int v) const {
  const int made = v < 0 ? -1 : producers[size_t(v)];
  return made >= 0 && node(made).takable ? made : -1;
}
int Match::maker(int v, const char* op) const {
  const int made = maker(v);
  return made >= 0 && is_onnx(*node(made).info, op) ? made : -1;
}

int Match::only_reader(int v) const {
  const auto& readers = consumers[size_t(v)];
  return !value(v).is_output && readers.size() == 1 && node(readers[0]).takable ? readers[0] : -1;
}
int Match::only_reader(int v, const char* op) const {
  const int reader = only_reader(v);
  return reader >= 0 && is_onnx(*node(reader).info, op) ? reader : -1;
}

std::optional<size_t> Match::rank(int v) const {
  return v >= 0 && value(v).dims ? std::optional(value(v).dims->size()) : std::nullopt;
}

std::optional<double> Match::number(const Node& node, size_t input, size_t most) const {
  if (input >= node.inputs.size() || node.inputs[input] < 0 || !value(node.inputs[input]).is_constant)
    return std::nullopt;
  const Tensor* const constant = node.info->constant_input(int(input));
  if (!constant || constant->count() != 1 || size_t(constant->shape.rank()) > most) return std::nullopt;
  switch (constant->type) {
    case Type::f16: return float(*constant->as<device::Half>());
    case Type::bf16: return float(*constant->as<device::BFloat16>());
    case Type::f32: return *constant->as<float>();
    default: return std::nullopt;
  }
}

// Version 7 is the first that broadcasts as today.
std::optional<Match::Scaled> Match::scaled(const Node& node) const {
  const bool divides = is_onnx(*node.info, "Div");
  if (!node.takable || node.info->since_version() < 7 || (!divides && !is_onnx(*node.info, "Mul"))) return std::nullopt;
  for (size_t i = divides ? 1 : 0; i < 2; ++i) {
    const int from = node.inputs[1 - i];
    const auto of = rank(from);
    if (!of || value(from).is_constant) continue;
    if (const auto factor = number(node, i, *of)) return Scaled{from, divides ? 1 / *factor : *factor};
  }
  return std::nullopt;
}

}  // namespace encore::fuse
