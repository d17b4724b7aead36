// Every other row and column of pictures, from each first one on, put together as channels: patches, in one copy.
#include <algorithm>
#include <map>

#include "fuse/links.h"
#include "fuse/passes.h"

namespace encore::fuse {
namespace {

using ops::ViewStep;

// One of `by` neighbours, of all of an axis.
struct Every {
  int64_t first, by;
};
// What Slices make of a value, by axis.
struct Picked {
  int x;
  std::map<size_t, Every> axes;
};

// Whether the Slice is that.
bool pick(const Match& match, const Step& step, std::map<size_t, Every>& axes) {
  const ShapeSymbols symbols(match);
  const auto& dims = match.value(step.inputs[0]).dims;
  const auto begins = symbols.constants(step, 1), ends = symbols.constants(step, 2), along = symbols.constants(step, 3),
             by = symbols.constants(step, 4);
  if (!dims || !begins || !ends || !along || !by) return false;
  for (const auto& list : {begins, ends, by})
    if (list->size() != along->size()) return false;
  for (size_t i = 0; i < along->size(); ++i) {
    const auto axis = counted_from_first((*along)[i], dims->size());
    const int64_t first = (*begins)[i], every = (*by)[i], dim = axis ? (*dims)[*axis] : 0;
    if (dim < 1 || every < 2 || dim % every != 0 || first < 0 || first >= every || (*ends)[i] < dim) return false;
    if (!axes.try_emplace(*axis, Every{first, every}).second) return false;
  }
  return true;
}

Picked picked(const Match& match, int v) {
  Picked made{v, {}};
  for (;;) {
    const int slice = match.maker(made.x, "Slice");
    if (slice < 0 || match.node(slice).since_version() < 10 || !pick(match, match.step(slice), made.axes)) return made;
    made.x = match.step(slice).inputs[0];
  }
}

// The axes from the one on whose firsts change last, if parts have all of these, in turns.
std::optional<std::vector<size_t>> axes_in_turns(const std::vector<Picked>& parts) {
  std::vector<size_t> axes;
  for (const auto& [axis, every] : parts.front().axes) axes.push_back(axis);
  const auto is_in_turns = [&] {
    for (size_t i = 0; i < parts.size(); ++i) {
      size_t left = i;
      for (auto axis = axes.rbegin(); axis != axes.rend(); ++axis) {
        const auto& [first, by] = parts[i].axes.at(*axis);
        if (size_t(first) != left % size_t(by)) return false;
        left /= size_t(by);
      }
      if (left != 0) return false;
    }
    return true;
  };
  do
    if (is_in_turns()) return axes;
  while (std::ranges::next_permutation(axes).found);
  return std::nullopt;
}

bool are_alike(const Picked& a, const Picked& b) {
  return a.x == b.x && std::ranges::equal(a.axes, b.axes, [](const auto& one, const auto& other) {
           return one.first == other.first && one.second.by == other.second.by;
         });
}

// The axes' steps are dimensions of their own, which go to where `axis` begins.
std::optional<std::vector<ViewStep>> steps_for(const Dims& x, const Dims& y, const Picked& part,
                                               const std::vector<size_t>& turns, size_t axis) {
  Dims apart, turned;
  std::vector<int64_t> order;
  std::map<size_t, int64_t> inner;  // where an axis' steps are
  std::vector<int64_t> outer;
  for (size_t i = 0; i < x.size(); ++i) {
    const auto every = part.axes.find(i);
    outer.push_back(std::ssize(apart));
    apart.push_back(every == part.axes.end() ? x[i] : x[i] / every->second.by);
    if (every == part.axes.end()) continue;
    inner[i] = std::ssize(apart);
    apart.push_back(every->second.by);
  }
  for (size_t i = 0; i < x.size(); ++i) {
    for (size_t j = 0; i == axis && j < turns.size(); ++j) order.push_back(inner.at(turns[j]));
    order.push_back(outer[i]);
  }
  for (const int64_t from : order) turned.push_back(apart[size_t(from)]);
  auto to_apart = Links::kept(apart, x), to_y = Links::kept(y, turned);
  if (!to_apart || !to_y) return std::nullopt;
  return std::vector<ViewStep>{{ViewStep::reshape, std::move(*to_apart)},
                               {ViewStep::transpose, std::move(order)},
                               {ViewStep::reshape, std::move(*to_y)}};
}

}  // namespace

// Others may read what is between, which stays then.
void join_patches(Match& match, int concat) {
  if (!match.is(concat, "Concat") || match.step(concat).inputs.size() < 2) return;
  std::vector<Picked> parts;
  for (const int v : match.step(concat).inputs) {
    parts.push_back(picked(match, v));
    if (!are_alike(parts.back(), parts.front())) return;
  }
  const int x = parts.front().x, y = match.step(concat).outputs[0];
  const auto &from = match.value(x).dims, &to = match.value(y).dims;
  const auto turns = axes_in_turns(parts);
  if (parts.front().axes.empty() || !turns || !from || !to || from->size() != to->size() ||
      device::is_packed(match.value(y).type))
    return;
  size_t count = 1;
  for (const auto& [axis, every] : parts.front().axes) count *= size_t(every.by);
  const auto axis = counted_from_first(match.node(concat).get_int("axis", 0), from->size());
  if (count != parts.size() || !axis || parts.front().axes.contains(*axis)) return;
  const auto steps = steps_for(*from, *to, parts.front(), *turns, *axis);
  if (!steps) return;
  const std::vector<int> inputs = match.step(concat).inputs;
  match.replace({concat}, view(match, *steps, match.node(concat).name(), x, y));
  for (const int v : inputs)
    if (const int part = match.producer(v); part >= 0) drop_unread(match, part);
}

}  // namespace encore::fuse
