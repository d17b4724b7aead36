// Rows of halves that are clipped before a norm reads them, by bounds which the device chooses, as T5 has it where sums
// may be infinite.
#include "ops/norm/clipped_norm.h"

#include <algorithm>
#include <cmath>

#include "device/half.h"
#include "fuse/passes.h"
#include "ops/matmul/product_norm.h"
#include "ops/reduce/any.h"
#include "ops/registry.h"

namespace encore::fuse {
namespace {

constexpr int kMostSteps = 6;  // one behind the other

// A number that is one of two, by a bool; -1: it is the same.
struct Chosen {
  int by = -1;
  double if_so, otherwise;
};

double rounded(Type type, double number) {
  switch (type) {
    case Type::f16: return float(device::Half(float(number)));
    case Type::bf16: return float(device::BFloat16(float(number)));
    default: return float(number);
  }
}

bool is_single(const Match& match, int v, size_t most) {
  const auto& dims = match.value(v).dims;
  return dims && dims->size() <= most && std::ranges::count(*dims, 1) == std::ssize(*dims);
}

// What the input is, which has no more dimensions than `most`.
std::optional<Chosen> chosen(const Match& match, const Step& step, size_t input, size_t most, int steps_left) {
  if (const auto number = match.number(step, input, most)) return Chosen{-1, *number, *number};
  const int v = step.inputs[input], s = match.maker(v);
  if (s < 0 || steps_left == 0 || !is_single(match, v, most)) return std::nullopt;
  const Type type = match.value(v).type;
  if (type != Type::f32 && !ops::kHalves.has(type)) return std::nullopt;
  const Step& made = match.step(s);
  const auto of = [&](size_t i) { return chosen(match, made, i, most, steps_left - 1); };
  if (match.is(s, "Where")) {
    const int by = made.inputs[0];
    const auto a = of(1), b = of(2);
    if (!a || !b || (a->by >= 0 && a->by != by) || (b->by >= 0 && b->by != by) || !is_single(match, by, most))
      return std::nullopt;
    return Chosen{by, a->if_so, b->otherwise};
  }
  auto one = match.is(s, "Neg") || match.is(s, "Cast") ? of(0) : std::nullopt;
  if (!one) return one;
  const bool negates = match.is(s, "Neg");
  for (double* const number : {&one->if_so, &one->otherwise}) *number = negates ? -*number : rounded(type, *number);
  return one;
}

// x, no less than one number, or no more than another; null: there is none.
struct Clip {
  int x;
  std::vector<int> steps;
  std::optional<Chosen> low, high;
};

// The input of a step of two that is such a number.
std::optional<Clip> clip_of_two(const Match& match, int s) {
  const bool is_low = match.is(s, "Max");
  if ((!is_low && !match.is(s, "Min")) || match.step(s).inputs.size() != 2) return std::nullopt;
  const size_t rank = match.rank(match.step(s).outputs[0]).value_or(0);
  for (size_t i = 0; i < 2; ++i)
    if (const auto bound = chosen(match, match.step(s), i, rank, kMostSteps)) {
      Clip clip{match.step(s).inputs[1 - i], {s}, {}, {}};
      (is_low ? clip.low : clip.high) = bound;
      return clip;
    }
  return std::nullopt;
}

std::optional<Clip> clip_by(const Match& match, int s) {
  if (match.is(s, "Clip") && match.node(s).since_version() >= 11) {
    const Step& step = match.step(s);
    Clip clip{step.inputs[0], {s}, {}, {}};
    const size_t rank = match.rank(clip.x).value_or(0);
    if (step.inputs.size() < 3 || step.inputs[1] < 0 || step.inputs[2] < 0) return std::nullopt;
    clip.low = chosen(match, step, 1, rank, kMostSteps);
    clip.high = chosen(match, step, 2, rank, kMostSteps);
    return clip;
  }
  auto outer = clip_of_two(match, s);
  const int between = outer ? outer->x : -1;
  const auto inner =
      between >= 0 && match.only_reader(between) >= 0 ? clip_of_two(match, match.maker(between)) : std::nullopt;
  if (!inner) return std::nullopt;
  outer->x = inner->x;
  outer->steps.push_back(inner->steps[0]);
  if (!outer->low) outer->low = inner->low;
  if (!outer->high) outer->high = inner->high;
  return outer;
}

// By what the two bounds are chosen, if that is one bool and none is above the other: then it makes no difference which
// comes first.
int chosen_by(const Clip& clip) {
  if (!clip.low || !clip.high) return -1;
  const Chosen &low = *clip.low, &high = *clip.high;
  if (low.by >= 0 && high.by >= 0 && low.by != high.by) return -1;
  return low.if_so <= high.if_so && low.otherwise <= high.otherwise ? std::max(low.by, high.by) : -1;
}

// Whether the step asks whether any value of x is infinite.
bool asks_for_infinity(const Match& match, int s, int x) {
  const NodeInfo& info = match.node(s);
  return info.domain() == kFusions && info.op_type() == "Any" && match.step(s).inputs[0] == x &&
         info.get_int(ops::kOfNan, 0) == 0 && info.get_int("detect_positive", 1) != 0 &&
         info.get_int("detect_negative", 1) != 0;
}

}  // namespace

// No path leaves them and comes back: besides x and the bool, which the clipped rows are made of, only constants are
// read.
void join_clipped_norm(Match& match, int norm) {
  if (!is_norm_of_rows(match, norm)) return;
  const Step& step = match.step(norm);
  const int rows = step.inputs[0], last = match.maker(rows);
  if (match.value(rows).type != Type::f16 || last < 0 || step.inputs.size() > 3) return;
  const auto clip = clip_by(match, last);
  const int by = clip ? chosen_by(*clip) : -1;
  if (by < 0 || match.value(by).type != Type::boolean) return;
  if (match.value(clip->x).dims != match.value(rows).dims || std::ranges::count(*match.value(rows).dims, -1) > 0)
    return match.note(norm, "what is clipped may have another shape");
  const bool is_read = match.value(rows).is_output || match.readers(rows).size() > 1;
  const NodeInfo& info = match.node(norm);
  ops::Attributes attributes{
      {ops::kCentred, int64_t(match.is(norm, "LayerNormalization"))},
      {"epsilon", info.get_float("epsilon", 1e-5f)},
      {ops::kBounds, std::vector<float>{float(clip->low->if_so), float(clip->high->if_so), float(clip->low->otherwise),
                                        float(clip->high->otherwise)}}};
  std::vector<int> inputs{clip->x, step.inputs[1], step.inputs.size() > 2 ? step.inputs[2] : -1, by};
  std::vector<int> outputs{step.outputs[0], is_read ? rows : -1};
  std::vector<int> steps = clip->steps, before;
  for (const int s : steps)
    for (const int v : match.step(s).inputs)
      if (const int made = match.producer(v); v != clip->x && made >= 0) before.push_back(made);
  steps.push_back(norm);
  Step made = match.plan().step({kFusions, "ClippedNorm", 1, std::move(attributes)},
                                match.node(last).name() + " and " + info.name(), std::move(inputs), std::move(outputs));
  made.make = ops::make_clipped_norm;
  match.replace(std::move(steps), std::move(made));
  for (const int s : before) drop_unread(match, s);
  // It may ask by itself, if nobody else wants to know.
  const int asks = match.producer(by);
  if (asks < 0 || match.value(by).is_output || match.readers(by).size() != 1 ||
      !asks_for_infinity(match, asks, clip->x))
    return;
  const int reader = match.readers(by)[0];
  Step alone = match.step(reader);
  alone.inputs.pop_back();
  Step both = match.plan().step(operator_of(*alone.node), match.node(asks).name() + " and " + alone.node->name(),
                                alone.inputs, alone.outputs);
  both.make = alone.make;
  match.replace({asks, reader}, std::move(both));
}

}  // namespace encore::fuse
