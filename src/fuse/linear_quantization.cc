#include "fuse/linear_quantization.h"

#include <algorithm>
#include <cmath>

#include "fuse/passes.h"
#include "ops/registry.h"

namespace encore::fuse {
namespace {

using enum ops::ScalarFunction;

constexpr int kMostSteps = 64;  // that a value is followed up through

// The constant that an input is, if it is one; zero if there is no input.
std::optional<float> byte_of(const Match& match, const Step& step, size_t input, Type type) {
  if (input >= step.inputs.size() || step.inputs[input] < 0) return 0;
  const ops::Tensor* const byte = match.plan().constant(step, input);
  if (!byte || byte->count() != 1 || byte->type != type) return std::nullopt;
  return type == Type::i8 ? *byte->as<const int8_t>() : *byte->as<const uint8_t>();
}

// Whether all numbers that are moved about, or become zero, are those that this step has made of bytes.
bool is_made_by(const Match& match, int v, const ops::ScalarCall& from, Type bytes, int steps = kMostSteps) {
  const int s = match.maker(v);
  if (s < 0 || steps == 0) return false;
  if (linear_call(match, s) == from) return match.value(match.step(s).inputs[0]).type == bytes;
  constexpr const char* kMoving[] = {"Reshape",  "Transpose",    "Squeeze", "Unsqueeze", "Flatten",
                                     "Identity", "Slice",        "Split",   "Gather",    "Expand",
                                     "Tile",     "DepthToSpace", "Relu",    "MaxPool",   "SpaceToDepth"};
  if (std::ranges::any_of(kMoving, [&](const char* op) { return match.is(s, op); }))
    return is_made_by(match, match.step(s).inputs[0], from, bytes, steps - 1);
  return match.is(s, "Concat") && std::ranges::all_of(match.step(s).inputs, [&](int piece) {
           return is_made_by(match, piece, from, bytes, steps / 2);
         });
}

// Whether bytes become numbers of which they can be told: halves of such scales have more digits than bytes.
bool is_exact(Type type, float scale) {
  const float least = type == Type::f16 ? 0x1p-14f : 0x1p-100f, most = type == Type::f16 ? 0x1p7f : 0x1p100f;
  return (type == Type::f32 || type == Type::f16) && std::fabs(scale) >= least && std::fabs(scale) <= most;
}

}  // namespace

std::optional<ops::ScalarCall> linear_call(const Match& match, int s) {
  if (!match.is_there(s)) return std::nullopt;
  const NodeInfo& node = match.node(s);
  const bool quantizes = node.op_type() == "QuantizeLinear";
  if (!quantizes && node.op_type() != "DequantizeLinear") return std::nullopt;
  if (!node.domain().empty() && node.domain() != ops::kMicrosoft) return std::nullopt;
  const Type of_floats = quantizes ? node.input_type(0) : node.output_type(0);
  const Type of_bytes = quantizes ? node.output_type(0) : node.input_type(0);
  if (!(of_floats == Type::f32 || ops::kHalves.has(of_floats)) || node.input_type(1) != of_floats) return std::nullopt;
  if (of_bytes != Type::u8 && of_bytes != Type::i8) return std::nullopt;
  // Quotients may be rounded to halves, which version 23 does by itself.
  if (node.get_int("precision", 0) != 0 || (quantizes && node.since_version() >= 23 && of_floats != Type::f32))
    return std::nullopt;
  const auto scale = match.number(match.step(s), 1, 1);
  const auto zero_point = byte_of(match, match.step(s), 2, of_bytes);
  if (!scale || !std::isfinite(*scale) || !zero_point) return std::nullopt;
  return ops::ScalarCall{!quantizes             ? from_linear
                         : of_bytes == Type::u8 ? to_uint8
                                                : to_int8,
                         float(*scale), float(*zero_point)};
}

// What was made of bytes becomes the same bytes again.
void drop_requantization(Match& match, int step) {
  auto from = linear_call(match, step);
  if (!from || from->function != from_linear) return;
  const int bytes = match.step(step).inputs[0], quantize = match.maker(bytes), y = match.step(step).outputs[0];
  const auto to = quantize < 0 ? std::nullopt : linear_call(match, quantize);
  if (!to || to->function == from_linear || to->p != from->p || to->q != from->q || match.value(y).is_output) return;
  const int x = match.step(quantize).inputs[0];
  if (match.value(x).type != match.value(y).type || !is_exact(match.value(x).type, from->p) ||
      !is_made_by(match, x, *from, match.value(bytes).type))
    return;
  if (!match.value(x).dims && match.value(y).dims) match.set_dims(x, *match.value(y).dims);
  match.substitute(y, x);
  drop_unread(match, step);
}

}  // namespace encore::fuse
