#include "fuse/flat_index.h"

#include <algorithm>

#include "ops/registry.h"

namespace encore::fuse {
namespace {

constexpr int kDeepest = 16;

class Terms {
 public:
  Terms(const Match& match, const KnownVolumes& known) : match_(match), known_(known) {}

  std::vector<IndexTerm> of(int value, int depth) const {
    const int from = match_.producer(value);
    if (from >= 0 && depth < kDeepest) {
      const Step& step = match_.step(from);
      auto found = is_onnx(*step.node, "Add")   ? sum(step, depth)
                   : is_onnx(*step.node, "Mul") ? multiple(step, depth)
                                                : counted(step, depth);
      if (!found.empty()) return found;
    }
    return {{value}};
  }

 private:
  std::vector<IndexTerm> sum(const Step& step, int depth) const {
    std::vector<IndexTerm> all = of(step.inputs[0], depth + 1);
    for (IndexTerm& term : of(step.inputs[1], depth + 1)) all.push_back(std::move(term));
    return all;
  }

  std::vector<IndexTerm> multiple(const Step& step, int depth) const {
    for (size_t i = 0; i < 2; ++i) {
      const auto number = ShapeSymbols(match_).held(step, i);
      const auto factor = number && number->size() == 1 ? volume_of((*number)[0], known_) : std::nullopt;
      if (!factor) continue;
      std::vector<IndexTerm> all = of(step.inputs[1 - i], depth + 1);
      for (IndexTerm& term : all) {
        const auto both = product(term.factor, *factor);
        if (!both) return {};
        term.factor = *both;
      }
      return all;
    }
    return {};
  }

  // What counts, wherever that has been moved.
  std::vector<IndexTerm> counted(const Step& step, int depth) const {
    const NodeInfo& node = *step.node;
    if (is_onnx(node, "Range")) {
      const ShapeSymbols symbols(match_);
      const auto last = symbols.held(step, 1);
      const bool counts =
          symbols.held(step, 0) == Dims{0} && symbols.held(step, 2) == Dims{1} && last && last->size() == 1;
      return counts ? std::vector<IndexTerm>{{step.outputs[0], (*last)[0], 1}} : std::vector<IndexTerm>();
    }
    constexpr const char* kMoving[] = {"Cast", "Expand", "Identity", "Reshape", "Unsqueeze"};
    if (!ops::kIndices.has(node.output_type(0)) ||
        std::ranges::none_of(kMoving, [&](const char* op) { return is_onnx(node, op); }))
      return {};
    std::vector<IndexTerm> one = of(step.inputs[0], depth + 1);
    if (one.size() != 1 || one[0].count == -1 || one[0].factor != Volume()) return {};
    const auto axis = is_onnx(node, "Unsqueeze") ? axis_of_unsqueezed(step, one[0].axis)
                      : is_onnx(node, "Reshape") ? axis_of_reshaped(step, one[0].count)
                                                 : one[0].axis;
    if (axis == 0) return {};
    one[0].axis = axis;
    return one;
  }
  int axis_of_unsqueezed(const Step& step, int axis) const {
    const auto& made = match_.value(step.outputs[0]).dims;
    const auto axes = ShapeSymbols(match_).axes(step);
    if (!made || !axes) return 0;
    const int rank = int(made->size());
    for (int behind = 1; behind <= rank; ++behind) {
      const bool is_new =
          std::ranges::any_of(*axes, [&](int64_t at) { return at == -behind || at == int64_t(rank - behind); });
      if (!is_new && --axis == 0) return behind;
    }
    return 0;
  }
  // All that it has is along one axis.
  int axis_of_reshaped(const Step& step, int64_t count) const {
    const auto target = ShapeSymbols(match_).target(step);
    const auto is_one = [](int64_t dim) { return dim == 1; };
    if (!target || std::ranges::count_if(*target, is_one) + 1 != std::ssize(*target)) return 0;
    const auto own = std::ranges::find_if_not(*target, is_one);
    return *own == count || *own == -1 ? int(target->end() - own) : 0;
  }

  const Match& match_;
  const KnownVolumes& known_;
};

}  // namespace

std::vector<IndexTerm> index_terms(const Match& match, int value, const KnownVolumes& known) {
  return Terms(match, known).of(value, 0);
}

}  // namespace encore::fuse
