#include "ops/shape/viewed.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <sstream>
#include <string_view>

#include "ops/shape/rolled_copy.h"
#include "ops/shape/strided.h"

namespace encore::ops {
namespace {

// As ViewStep::Kind has them.
constexpr std::string_view kNames[] = {"transpose", "reshape", "squeeze", "unsqueeze",
                                       "select",    "slice",   "repeat",  "roll"};

// To where the same steps have other strides.
void copy_to(device::StreamRef stream, const ViewedTensor& seen, size_t bytes, void* to, const StridedView& place) {
  struct Move {
    int64_t count, from, to;
  };
  std::vector<Move> moves;
  for (size_t i = 0; i < place.steps().size(); ++i) {
    const auto &from = seen.view.steps()[i], &into = place.steps()[i];
    moves.push_back({from.count, from.stride, into.stride});
  }
  std::ranges::stable_sort(moves, std::greater<>(), &Move::to);
  StridedCopy copy;
  for (const Move& move : moves) copy.add(move.count, move.from, move.to);
  copy.run(stream, seen.start(bytes), to, bytes);
}

// Where elements go so that the first of the steps can be taken, and how often they are moved later.
struct Place {
  StridedView view;
  int copies;
};
Place place_for(const StridedView& view, std::span<const ViewStep> steps) {
  Place place{view.in_order(), copies(view.in_order(), steps)};
  if (steps.front().kind != ViewStep::reshape) return place;
  const StridedView as_they_lie = view.as_they_lie(reshaped(view.shape(), steps.front().numbers, false));
  if (const int later = copies(as_they_lie, steps); later <= place.copies) place = {as_they_lie, later};
  return place;
}

Shape shape_after(StridedView view, std::span<const ViewStep> steps) {
  for (const ViewStep& step : steps) take(step, view);
  return view.shape();
}

std::vector<Roll> rolls_of(const ViewStep& step) {
  std::vector<Roll> rolls;
  for (size_t i = 0; i + 1 < step.numbers.size(); i += 2) rolls.push_back({step.numbers[i], step.numbers[i + 1]});
  return rolls;
}

// What is still to be rolled.
struct Rolled {
  ViewedTensor from;
  std::vector<Roll> rolls;
};

class Viewed : public Op {
 public:
  explicit Viewed(const NodeInfo& node) : steps_(view_steps(node.get_string("steps", ""))) {}

  void run(Context& context) const override {
    const Tensor& x = context.input(0);
    const size_t bytes = device::size_bytes(x.type);
    ViewedTensor seen{x.data, StridedView(x.shape)};
    std::optional<Rolled> rolled;  // `seen` is a view of that then
    const auto copy_to_scratch = [&] {
      const Shape shape = rolled->from.view.shape();
      void* const made = context.scratch(size_t(shape.count()) * bytes);
      copy_rolled(context.stream(), rolled->from.start(bytes), rolled->from.view, rolled->rolls, StridedView(shape),
                  made, bytes);
      seen.data = made;
      rolled.reset();
    };
    const std::span<const ViewStep> steps = steps_;
    for (size_t i = 0; i < steps.size(); ++i) {
      if (steps[i].kind == ViewStep::roll) {
        if (rolled) copy_to_scratch();
        if (!suits_rolled_copy(seen.view)) make_dense(context, bytes, seen);
        rolled = {seen, rolls_of(steps[i])};
        seen.view = StridedView(seen.view.shape());
        continue;
      }
      if (take(steps[i], seen.view)) continue;
      if (rolled) copy_to_scratch();
      const Place place = place_for(seen.view, steps.subspan(i));
      const bool is_last = place.copies == 0;
      void* const made = is_last ? context.output(0, shape_after(place.view, steps.subspan(i))).data
                                 : context.scratch(size_t(seen.view.shape().count()) * bytes);
      copy_to(context.stream(), seen, bytes, made, place.view);
      if (is_last) return;
      seen = {made, place.view};
      take(steps[i], seen.view);
    }
    const Shape shape = seen.view.shape();
    if (rolled && suits_rolled_copy(seen.view)) {
      const Tensor y = context.output(0, shape);
      return copy_rolled(context.stream(), rolled->from.start(bytes), rolled->from.view, rolled->rolls, seen.view,
                         y.data, bytes);
    }
    if (rolled) copy_to_scratch();
    if (seen.data == x.data && seen.view.is_dense()) {
      const Tensor y = context.output_in_place(0, shape, 0);
      return copy_bytes(context.stream(), x.data, y.data, int64_t(y.bytes()));
    }
    const Tensor y = context.output(0, shape);
    if (y.count() > 0) copy_to(context.stream(), seen, bytes, y.data, seen.view.in_order());
  }

 private:
  const std::vector<ViewStep> steps_;
};

}  // namespace

std::string text_of(const std::vector<ViewStep>& steps) {
  std::string all;
  for (const ViewStep& step : steps) {
    all += text(all.empty() ? "" : "; ", kNames[step.kind]);
    for (size_t i = 0; i < step.numbers.size(); ++i) all += text(i ? "," : " ", step.numbers[i]);
  }
  return all;
}

std::vector<ViewStep> view_steps(const std::string& text) {
  std::vector<ViewStep> steps;
  std::istringstream all(text);
  for (std::string one; std::getline(all >> std::ws, one, ';');) {
    std::istringstream words(one);
    std::string name, number;
    words >> name >> std::ws;
    const auto known = std::ranges::find(kNames, name);
    require(known != std::end(kNames), "'", one, "' is no step of a view");
    ViewStep& step = steps.emplace_back(ViewStep{ViewStep::Kind(known - std::begin(kNames)), {}});
    while (std::getline(words, number, ',')) step.numbers.push_back(std::stoll(number));
  }
  return steps;
}

bool take(const ViewStep& step, StridedView& view) {
  const auto& numbers = step.numbers;
  switch (step.kind) {
    case ViewStep::transpose: view.transpose(numbers); return true;
    case ViewStep::squeeze: view.squeeze(numbers); return true;
    case ViewStep::unsqueeze: view.unsqueeze(numbers); return true;
    case ViewStep::select: view.select(numbers[0], numbers[1]); return true;
    case ViewStep::repeat: view.repeat(numbers[0], numbers[1]); return true;
    case ViewStep::slice: return view.slice(numbers[0], numbers[1], numbers[2], numbers[3]);
    case ViewStep::reshape: return view.reshape(reshaped(view.shape(), numbers, false));
    case ViewStep::roll: return false;
  }
  return false;
}

int copies(StridedView view, std::span<const ViewStep> steps) {
  int made = 0;
  bool is_rolled = false;
  for (size_t i = 0; i < steps.size(); ++i)
    if (steps[i].kind == ViewStep::roll) {
      made += is_rolled + !suits_rolled_copy(view);
      is_rolled = true;
      view = StridedView(view.shape());
    } else if (!take(steps[i], view)) {
      return made + is_rolled + 1 + place_for(view, steps.subspan(i)).copies;
    }
  return made + (is_rolled ? 1 + !suits_rolled_copy(view) : !view.is_dense());
}

void make_dense(Context& context, size_t bytes, ViewedTensor& seen) {
  const Shape shape = seen.view.shape();
  void* const made = context.scratch(size_t(shape.count()) * bytes);
  copy_to(context.stream(), seen, bytes, made, seen.view.in_order());
  seen = {made, StridedView(shape)};
}

ViewedTensor viewed(Context& context, const Tensor& tensor, const std::vector<ViewStep>& steps) {
  ViewedTensor seen{tensor.data, StridedView(tensor.shape)};
  for (const ViewStep& step : steps)
    if (!take(step, seen.view)) {  // not of what is empty
      make_dense(context, device::size_bytes(tensor.type), seen);
      take(step, seen.view);
    }
  return seen;
}

std::unique_ptr<Op> make_viewed(const NodeInfo& node) { return std::make_unique<Viewed>(node); }

}  // namespace encore::ops
