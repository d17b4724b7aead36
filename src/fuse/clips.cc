// A Clip among elementwise steps is two of them.
#include <algorithm>
#include <limits>

#include "fuse/own_tensor.h"
#include "fuse/passes.h"
#include "ops/registry.h"

namespace encore::fuse {
namespace {

constexpr ops::Types kServed = ops::kHalves | ops::kIndices | ops::Types{Type::f32};

double largest(Type type) {
  switch (type) {
    case Type::f16: return 0x1.ffcp15;
    case Type::bf16: return 0x1.fep127;
    default: return std::numeric_limits<float>::max();
  }
}

bool has_neighbours(const Match& match, int clip) {
  const auto is_made_so = [&](int v) { return v >= 0 && is_for_programs(match, match.maker(v)); };
  const auto is_one = [&](int s) { return is_for_programs(match, s); };
  return std::ranges::any_of(match.step(clip).inputs, is_made_so) ||
         std::ranges::any_of(match.readers(match.step(clip).outputs[0]), is_one);
}

}  // namespace

// The bound first, so that of equal numbers x remains, as of zeros. Without one, infinity becomes the largest number,
// and an integer stays.
void open_clip(Match& match, int clip) {
  if (!match.plan().settings.fuses_elementwise || !match.is(clip, "Clip") || match.node(clip).since_version() < 11 ||
      !has_neighbours(match, clip))
    return;
  const Step step = match.step(clip);
  const int x = step.inputs[0], y = step.outputs[0];
  const auto given = [&](size_t i) { return i < step.inputs.size() ? step.inputs[i] : -1; };
  const auto& dims = match.value(x).dims;
  if (!kServed.has(match.value(x).type) || !dims || dims->empty() || dims != match.value(y).dims ||
      (given(1) < 0 && given(2) < 0))
    return;
  const auto of_two = [&](const char* op, int limit, int v, int made) {
    return match.plan().step({ops::kOnnx, op, 13}, step.node->name(), {limit, v}, {made});
  };
  if (ops::kIndices.has(match.value(x).type) && (given(1) < 0 || given(2) < 0))
    return match.replace({clip}, given(1) < 0 ? of_two("Min", given(2), x, y) : of_two("Max", given(1), x, y));
  const auto bound = [&](size_t i, const char* name, double number) {
    return given(i) >= 0 ? given(i) : match.add_constant(name, own_numbers(match.value(x).type, {}, {number}));
  };
  const int low = bound(1, "the least", -largest(match.value(x).type));
  const int high = bound(2, "the largest", largest(match.value(x).type));
  const int raised = match.add_like(x, " at least " + match.value(low).name);
  match.insert(of_two("Max", low, x, raised));
  match.replace({clip}, of_two("Min", high, raised, y));
}

}  // namespace encore::fuse
