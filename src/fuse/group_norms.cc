// Norms of groups of channels, as exporters spell them out.
#include <algorithm>
#include <cstring>

#include "fuse/passes.h"
#include "fuse/shape_symbols.h"
#include "fuse/text_numbers.h"
#include "ops/registry.h"

namespace encore::fuse {
namespace {

constexpr ops::Types kServed{Type::f16, Type::bf16, Type::f32};

bool is_all(const Match& match, const Step& step, size_t input, float number) {
  const Tensor* const constant = match.plan().constant(step, input);
  bool is = constant && kServed.has(constant->type);
  for (int64_t i = 0; is && i < constant->count(); ++i)
    visit_element(constant->type, static_cast<char*>(constant->data) + size_t(i) * device::size_bytes(constant->type),
                  [&](auto* at) { is = float(*at) == number; });
  return is;
}

int add_row(Match& match, std::string name, Type type, int64_t channels, const void* data) {
  auto made = std::make_shared<OwnTensor>();
  made->view = {type, ops::Where::host, ops::Shape{channels}, nullptr};
  made->bytes.resize(made->view.bytes());
  std::memcpy(made->bytes.data(), data, made->bytes.size());
  made->view.data = made->bytes.data();
  match.keep(made);
  return match.add({std::move(name), type, Dims{channels}, true, &made->view});
}
int add_row(Match& match, std::string name, Type type, int64_t channels, float number) {
  std::vector<char> bytes(size_t(channels) * device::size_bytes(type));
  for (size_t at = 0; at < bytes.size(); at += device::size_bytes(type))
    visit_element(type, bytes.data() + at, [&](auto* to) { *to = std::remove_pointer_t<decltype(to)>(number); });
  return add_row(match, std::move(name), type, channels, bytes.data());
}

// What alone reads the value and multiplies or adds a constant, one for each channel of so many dimensions; or -1.
int by_channels(const Match& match, int v, const char* op, int64_t channels, size_t rank) {
  const int s = match.only_reader(v, op);
  if (s < 0) return -1;
  const Value& row = match.value(match.other(s, v));
  if (!row.is_constant || !row.constant || row.type != match.value(v).type || !row.dims || row.dims->size() > rank ||
      row.dims->size() + 1 < rank)
    return -1;
  Dims wanted(row.dims->size(), 1);
  wanted[wanted.size() - rank + 1] = channels;
  return row.dims == wanted ? s : -1;
}

}  // namespace

// No path leaves them and comes back, for nobody else reads what is between.
void join_group_norm(Match& match, int norm) {
  if (!match.is(norm, "InstanceNormalization") || match.step(norm).inputs.size() != 3) return;
  const Step& step = match.step(norm);
  const int grouped = match.maker(step.inputs[0], "Reshape"), back = match.only_reader(step.outputs[0], "Reshape");
  if (grouped < 0 || back < 0 || match.only_reader(step.inputs[0]) != norm) return;
  const int x = match.step(grouped).inputs[0];
  int y = match.step(back).outputs[0];
  const auto &dims = match.value(x).dims, &of_groups = match.value(step.inputs[0]).dims;
  if (!dims || !of_groups || dims->size() < 3 || of_groups->size() != 3 || match.value(y).dims != dims ||
      std::ranges::count(*dims, -1) || (*of_groups)[0] != (*dims)[0])
    return;
  const int64_t channels = (*dims)[1], groups = (*of_groups)[1];
  const Type type = match.value(x).type;
  if (channels < 1 || groups < 1 || channels % groups != 0 || !kServed.has(type) || !is_all(match, step, 1, 1) ||
      !is_all(match, step, 2, 0))
    return;
  std::vector<int> steps{grouped, norm, back};
  const std::string name = match.node(norm).name();
  int gamma = -1, beta = -1;
  if (const int scaled = by_channels(match, y, "Mul", channels, dims->size()); scaled >= 0) {
    gamma = match.other(scaled, y);
    y = match.step(scaled).outputs[0];
    steps.push_back(scaled);
  }
  if (const int shifted = by_channels(match, y, "Add", channels, dims->size()); shifted >= 0) {
    beta = match.other(shifted, y);
    y = match.step(shifted).outputs[0];
    steps.push_back(shifted);
  }
  const float epsilon = match.node(norm).get_float("epsilon", 1e-5f);
  gamma = gamma < 0 ? add_row(match, name + "'s ones", type, channels, 1.f)
                    : add_row(match, match.value(gamma).name, type, channels, match.value(gamma).constant->data);
  beta = beta < 0 ? add_row(match, name + "'s zeros", type, channels, 0.f)
                  : add_row(match, match.value(beta).name, type, channels, match.value(beta).constant->data);
  match.replace(
      std::move(steps),
      match.plan().step({ops::kOnnx, "GroupNormalization", 21, {{"num_groups", groups}, {"epsilon", epsilon}}}, name,
                        {x, gamma, beta}, {y}));
}

// With channels last it does x * sigmoid(x) as well.
void join_silu(Match& match, int norm) {
  if (!match.is_there(norm) || match.node(norm).op_type() != "GroupNorm" ||
      match.node(norm).domain() != ops::kMicrosoft || match.node(norm).get_int("activation", 0) != 0)
    return;
  const Step& step = match.step(norm);
  const std::vector<int> silu = silu_of(match, step.outputs[0]);
  if (silu.empty()) return;
  auto node = std::make_shared<Variant>(step.node);
  node->set("activation", int64_t(1));
  Step made{std::move(node), step.inputs, match.step(silu.back()).outputs};
  match.replace({norm, silu[0], silu[1]}, std::move(made));
}

}  // namespace encore::fuse
