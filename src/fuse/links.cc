#include "fuse/links.h"

#include <algorithm>
#include <array>

#include "device/error.h"
#include "fuse/own_tensor.h"
#include "fuse/rolls.h"
#include "ops/registry.h"
#include "ops/shape/rolled_copy.h"

namespace encore::fuse {

using ops::ViewStep;

namespace {

constexpr size_t kLongest = 16;

// Stands for dimensions of which the model tells no number: no two are the same, and none is a product of others,
// unless it is known as a multiple. The outermost one is `times` as much, for those that are cut apart.
ops::Shape example_of(const Symbols& symbols, const Dims& dims, int64_t times) {
  constexpr std::array kPrimes{211, 223, 227, 229, 233, 239, 241, 251, 257, 263, 269, 271, 277, 281, 283, 293};
  std::vector<int64_t> made;
  for (const int64_t dim : dims) {
    const auto [symbol, count] = symbols.parts(dim);
    made.push_back(
        dim >= 0 ? dim : kPrimes[size_t(-1 - symbol) % kPrimes.size()] * count * (dim == dims.front() ? times : 1));
  }
  return ops::Shape(made);
}

std::optional<Part> slice_of(const Match& match, const Step& step) {
  const ShapeSymbols symbols(match);
  const auto rank = match.rank(step.inputs[0]);
  const auto begin = symbols.constants(step, 1), end = symbols.constants(step, 2), axes = symbols.constants(step, 3);
  const bool has_steps = step.inputs.size() > 4 && step.inputs[4] >= 0;
  const auto by = has_steps ? symbols.constants(step, 4) : Dims{1};
  if (!rank || !begin || !end || !axes || !by || begin->size() != 1 || axes->size() != 1 || by != Dims{1})
    return std::nullopt;
  const auto axis = counted_from_first(axes->front(), *rank);
  const int64_t size = axis ? (*match.value(step.inputs[0]).dims)[*axis] : 0;
  if (size < 1) return std::nullopt;
  const auto place = [&](int64_t at) { return int64_t(clamped(at, size_t(size))); };
  const int64_t first = place(begin->front());
  return Part{step.inputs[0], int(*axis), first, std::max(first, place(end->front())), size};
}

std::optional<Part> split_of(const Match& match, const Step& step, int v) {
  const auto& dims = match.value(step.inputs[0]).dims;
  const auto axis = dims ? counted_from_first(step.node->get_int("axis", 0), dims->size()) : std::nullopt;
  if (!axis) return std::nullopt;
  const ShapeSymbols symbols(match);
  Part part{step.inputs[0], int(*axis), 0, 0, (*dims)[*axis]};
  int64_t end = 0;
  for (size_t i = 0; i < step.outputs.size(); ++i) {
    const int made = step.outputs[i];
    const auto of = made < 0 ? symbols.made_by(step, i) : match.value(made).dims;
    if (!of || (*of)[*axis] < 0 || (*of)[*axis] > part.size - end) return std::nullopt;
    const int64_t begin = end;
    end += (*of)[*axis];
    if (made == v) part.begin = begin, part.end = end;
  }
  if (end != part.size) return std::nullopt;  // only the Split itself tells that its sizes do not add up
  return part;
}

}  // namespace

std::optional<Part> part_of(const Match& match, int v) {
  const int made = match.maker(v);
  if (match.is(made, "Slice") && match.node(made).since_version() >= 10) return slice_of(match, match.step(made));
  if (match.is(made, "Split")) return split_of(match, match.step(made), v);
  return std::nullopt;
}

std::optional<Link> Links::to(int v) const {
  if (const int roll = match_.producer(v); roll >= 0 && is_roll(match_.step(roll))) return roll_to(v);
  const int made = match_.maker(v);
  if (made < 0 || match_.step(made).inputs.empty()) return std::nullopt;
  const Step& from = match_.step(made);
  const NodeInfo& info = *from.node;
  if (const auto by = match_.scaled(made)) return Link{{made}, {}, by->from, {}, by->factor};
  Link link{{made}, {}, from.inputs[0], {}, 1};
  if (is_onnx(info, "Transpose")) {
    auto order = info.find_ints("perm");
    if (!order) return std::nullopt;
    link.view = {ViewStep::transpose, std::move(*order)};
  } else if (is_onnx(info, "Reshape")) {
    if (auto swapped = swap_to(v)) return swapped;
    auto dims = symbols_.constants(from, 1);
    if (dims && info.get_int("allowzero", 0) != 0 && std::ranges::count(*dims, 0)) return std::nullopt;
    if (!dims) dims = kept(symbols_.target(from, link.shapes), symbols_.dims(link.from));
    if (!dims) return std::nullopt;
    link.view = {ViewStep::reshape, std::move(*dims)};
  } else if (is_onnx(info, "Squeeze") || is_onnx(info, "Unsqueeze")) {
    auto axes = symbols_.axes(from);
    if (!axes) return std::nullopt;
    link.view = {is_onnx(info, "Squeeze") ? ViewStep::squeeze : ViewStep::unsqueeze, std::move(*axes)};
  } else if (is_onnx(info, "Gather")) {
    const auto index = symbols_.constants(from, 1);
    if (!index || info.constant_input(1)->shape.rank() != 0) return std::nullopt;
    link.view = {ViewStep::select, {info.get_int("axis", 0), (*index)[0]}};
  } else if (is_onnx(info, "Expand") || (is_onnx(info, "Tile") && info.since_version() >= 6)) {
    link.view = repetition(from, link.shapes);
    if (!link.view) return std::nullopt;
  } else if (const auto part = part_of(match_, v)) {
    link.view = {ViewStep::slice, {part->axis, part->begin, part->end - part->begin, part->size}};
  } else {
    return std::nullopt;
  }
  return link;
}

// Of what is there once along an axis, as keys and values are for several heads of queries. The steps that compute how
// often go to `shapes`.
std::optional<ViewStep> Links::repetition(const Step& step, std::vector<int>& shapes) const {
  const auto &from = symbols_.dims(step.inputs[0]), wanted = symbols_.held(step, 1, shapes);
  if (!from || !wanted || from->size() != wanted->size()) return std::nullopt;
  std::optional<ViewStep> made;
  for (size_t i = 0; i < from->size(); ++i) {
    const int64_t dim = (*wanted)[i], own = (*from)[i];
    if (dim == 1 || (dim == own && dim != -1 && is_onnx(*step.node, "Expand"))) continue;
    if (own != 1 || dim < 1 || made) return std::nullopt;
    made = {ViewStep::repeat, {int64_t(i), dim}};
  }
  return made;
}

std::vector<Link> Links::above(int v, Factors factors) const {
  std::vector<Link> chain;
  while (chain.size() < kLongest) {
    auto link = to(v);
    if (!link || link->from < 0 || (!link->view && factors == Factors::left)) break;
    v = link->from;
    chain.push_back(std::move(*link));
  }
  return chain;
}

std::optional<std::vector<int64_t>> Links::kept(const std::optional<Dims>& wanted, const std::optional<Dims>& before) {
  if (!wanted || !before) return std::nullopt;
  std::vector<int64_t> numbers;
  for (size_t i = 0; i < wanted->size(); ++i) {
    const int64_t dim = (*wanted)[i];
    numbers.push_back(dim > 0 ? dim : i < before->size() && dim == (*before)[i] ? 0 : -1);
  }
  return std::count(numbers.begin(), numbers.end(), -1) > 1 ? std::nullopt : std::optional(std::move(numbers));
}

// torch's exporter turns keys so: a Reshape to three dimensions, a transposition of the last two, and one back to four.
std::optional<Link> Links::swap_to(int v) const {
  const int back = match_.maker(v, "Reshape"),
            turn = back < 0 ? -1 : match_.maker(match_.step(back).inputs[0], "Transpose");
  const int flat = turn < 0 ? -1 : match_.maker(match_.step(turn).inputs[0], "Reshape");
  if (flat < 0 || match_.node(turn).find_ints("perm") != std::vector<int64_t>{0, 2, 1}) return std::nullopt;
  Link link{{flat, turn, back}, {}, match_.step(flat).inputs[0], ViewStep{ViewStep::transpose, {0, 1, 3, 2}}, 1};
  const auto& from = symbols_.dims(link.from);
  const auto to_flat = symbols_.target(match_.step(flat), link.shapes),
             to_back = symbols_.target(match_.step(back), link.shapes);
  if (!from || !to_flat || !to_back || from->size() != 4 || to_flat->size() != 3 || to_back->size() != 4)
    return std::nullopt;
  constexpr int64_t rest = -1;
  const auto &f = *from, &one = *to_flat, &two = *to_back;
  const bool swaps = one[1] == f[2] && one[2] == f[3] && (two[0] == f[0] || two[0] == rest) && two[1] == f[1] &&
                     two[2] == f[3] && two[3] == f[2];
  return swaps ? std::optional(std::move(link)) : std::nullopt;
}

std::optional<Link> Links::roll_to(int v) const {
  const Rolled rolled = rolled_by(match_.step(match_.producer(v)));
  if (rolled.shifts.size() > ops::kMostRolledAxes) return std::nullopt;
  std::vector<int64_t> numbers;
  for (const auto& [axis, shift] : rolled.shifts) numbers.push_back(axis), numbers.push_back(shift);
  return Link{{match_.producer(v)}, {}, rolled.from, ViewStep{ViewStep::roll, std::move(numbers)}, 1};
}

Step slice(Match& match, int64_t begin, int64_t end, int64_t axis, std::string name, int from, int to) {
  std::vector<int> inputs{from};
  for (const int64_t number : {begin, end, axis})
    inputs.push_back(match.add_constant(name + "'s places", own_ints({number})));
  return match.plan().step({ops::kOnnx, "Slice", 13}, std::move(name), std::move(inputs), {to});
}

Step transposition(const Match& match, const std::vector<int64_t>& order, std::string name, int from, int to) {
  return match.plan().step({ops::kOnnx, "Transpose", 13, {{"perm", order}}}, std::move(name), {from}, {to});
}

Step view(const Match& match, const std::vector<ViewStep>& steps, std::string name, int from, int to) {
  Step made = match.plan().step({kFusions, "View", 1, {{"steps", ops::text_of(steps)}}}, std::move(name), {from}, {to});
  made.make = ops::make_viewed;
  return made;
}

std::optional<int> copies(const Symbols& symbols, const Dims& dims, const std::vector<ViewStep>& steps) {
  constexpr int64_t kOfManyParts = 5040;
  for (const int64_t times : {int64_t(1), kOfManyParts}) try {
      return ops::copies(ops::StridedView(example_of(symbols, dims, times)), steps);
    } catch (const Error&) {  // which a run will see, if it is none of the example's
    }
  return std::nullopt;
}

ViewChain::ViewChain(const Match& match, int v, std::optional<ViewStep> last, bool is_kept)
    : v_(v), last_(std::move(last)), chain_(Links(match).above(v)) {
  const Symbols& symbols = *match.plan().symbols;
  int before = 0;
  std::optional<int> most;
  for (size_t links = 0; links <= chain_.size(); ++links) {
    const auto& dims = match.value(links ? chain_[links - 1].from : v).dims;
    if (!dims) break;
    if (links > 0) {
      const auto own = copies(symbols, *dims, {*chain_[links - 1].view});
      is_kept = is_kept || has_others(match, chain_[links - 1]) || (links > 1 && !is_only_read_below(match, links - 1));
      if (!own) break;
      if (!is_kept) before += *own;
    }
    const auto made = copies(symbols, *dims, steps(links));
    if (!made) break;
    const int saved = before - *made;
    if (!most || saved > *most || (saved == *most && !is_kept)) most = saved, links_ = links;
  }
  saved_ = most.value_or(last_ ? -1 : 0);
}

// As a Split does.
bool ViewChain::has_others(const Match& match, const Link& link) {
  return match.step(link.steps.back()).outputs.size() > 1;
}

std::vector<ViewStep> ViewChain::steps() const { return steps(links_); }
std::vector<ViewStep> ViewChain::steps(size_t links) const {
  std::vector<ViewStep> steps;
  for (size_t i = links; i-- > 0;) steps.push_back(*chain_[i].view);
  if (last_) steps.push_back(*last_);
  return steps;
}

// What that many links make.
bool ViewChain::is_only_read_below(const Match& match, size_t links) const {
  const Link& below = chain_[links - 1];
  return !match.value(below.from).is_output && std::ranges::all_of(match.readers(below.from), [&](int s) {
    return std::ranges::find(below.steps, s) != below.steps.end();
  });
}

}  // namespace encore::fuse
