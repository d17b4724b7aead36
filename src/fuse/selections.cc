// One of what lies along an axis, as loops that an exporter has unrolled pick each step's, is a part of what lies along
// that axis and the next, which programs read in place.
#include <algorithm>
#include <map>

#include "fuse/links.h"
#include "fuse/own_tensor.h"
#include "fuse/passes.h"
#include "fuse/shape_symbols.h"
#include "ops/registry.h"

namespace encore::fuse {
namespace {

struct Selection {
  size_t axis;
  int64_t index, size, next;  // of the axis and the one behind it
};

// Of a value that a program may read.
std::optional<Selection> selection_of(const Match& match, int gather) {
  if (!match.is(gather, "Gather")) return std::nullopt;
  const Step& step = match.step(gather);
  const auto& dims = match.value(step.inputs[0]).dims;
  const Tensor* const constant = match.plan().constant(step, 1);
  const auto index = ShapeSymbols(match).constants(step, 1);
  if (!dims || !constant || constant->shape.rank() != 0 || !index || match.value(step.inputs[0]).is_constant)
    return std::nullopt;
  const auto axis = counted_from_first(match.node(gather).get_int("axis", 0), dims->size());
  if (!axis || *axis + 1 >= dims->size() || !are_numbers(Dims(dims->begin() + ptrdiff_t(*axis), dims->end())))
    return std::nullopt;
  Selection made{*axis, index->front(), (*dims)[*axis], (*dims)[*axis + 1]};
  if (made.index < 0) made.index += made.size;
  int64_t both = 0;
  return made.index < 0 || made.index >= made.size || __builtin_mul_overflow(made.size, made.next, &both)
             ? std::nullopt
             : std::optional(made);
}

bool is_read_by_programs(const Match& match, int v) {
  return !match.value(v).is_output && !match.readers(v).empty() &&
         std::ranges::all_of(match.readers(v), [&](int s) { return is_for_programs(match, s); });
}

}  // namespace

void cut_selections(Match& match) {
  if (!match.plan().settings.fuses_elementwise) return;
  std::map<std::pair<int, size_t>, int> joint;  // by value and axis: where that and the next are one
  for (int s = 0, end = match.size(); s < end; ++s) {
    const auto selection = match.step(s).node ? selection_of(match, s) : std::nullopt;
    if (!selection || !is_read_by_programs(match, match.step(s).outputs[0])) continue;
    const Step step = match.step(s);
    const auto& [axis, index, size, next] = *selection;
    const auto [place, is_new] = joint.try_emplace({step.inputs[0], axis}, -1);
    const std::string name = step.node->name();
    if (is_new) {
      Dims dims = *match.value(step.inputs[0]).dims, target(axis, 0);  // what is before stays
      dims.erase(dims.begin() + ptrdiff_t(axis));
      dims[axis] = size * next;
      target.insert(target.end(), dims.begin() + ptrdiff_t(axis), dims.end());
      place->second = match.add_like(step.inputs[0], " in one", dims);
      const int shape = match.add_constant(match.value(step.inputs[0]).name + "'s joint shape", own_ints(target));
      match.insert(match.plan().step({ops::kOnnx, "Reshape", 14}, name, {step.inputs[0], shape}, {place->second}));
    }
    match.replace({s},
                  slice(match, index * next, (index + 1) * next, int64_t(axis), name, place->second, step.outputs[0]));
  }
}

}  // namespace encore::fuse
