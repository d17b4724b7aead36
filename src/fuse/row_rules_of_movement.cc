#include "fuse/row_rules.h"

#include <algorithm>
#include <numeric>
#include <ranges>

namespace encore::fuse {
namespace {

// The first input's rows, which are numbered as they were.
Rows moved_to(const PaddedStep& step, int axis) {
  return step.rows(0).count ? Rows::numbered(axis, step.rows(0).first) : Rows(axis);
}

// An axis has the dimension, if what is farther out of the rows is before the axis or part of it, and what is farther
// in is part of it or behind it.
Rows rows_of_reshaped(const PaddedStep& step, const Dims& made) {
  const Dims before = step.dims(0);
  const size_t own = size_t(step.axis(0));
  const auto front = step.volume(before, 0, own), back = step.volume(before, own + 1, before.size());
  const auto outside = front ? product(*front, step.beside().outside) : std::nullopt;
  const auto inside = back ? product(*back, step.beside().inside) : std::nullopt;
  const Volume rows{1, {step.dim()}};
  const auto around = outside && inside ? product(*outside, *inside) : std::nullopt;
  const auto whole = around ? product(*around, rows) : std::nullopt;
  const Volumes volumes = volumes_of(made, whole, step.volumes());
  for (size_t k = 0; k < made.size() && outside; ++k) {
    const auto apart = product(std::span(volumes).first(k));
    const auto merged = apart ? quotient(*outside, *apart) : std::nullopt;
    if (!merged) continue;
    if (*merged == Volume() && (step.is_padded_dim(made[k]) || volumes[k] == rows))
      return step.beside() == Beside() ? moved_to(step, int(k)) : Rows(int(k), Beside());
    const auto behind = product(std::span(volumes).subspan(k + 1));
    const auto left = inside && behind ? quotient(*inside, *behind) : std::nullopt;
    const bool is_other = step.is_fixed(made[k]) || (volumes[k] && !quotient(*volumes[k], rows));
    if (left && !is_other) return {int(k), Beside{*merged, *left}};
  }
  step.refuse("may not leave its rows one after another");
}

Rows reshape(const PaddedStep& step, size_t) {
  if (step.axis(1) >= 0 || step.axis(0) < 0) step.refuse("asks for a shape that is not known");
  const auto made = step.target();
  if (!made) step.refuse("asks for a shape that is not known");
  return rows_of_reshaped(step, *made);
}

Rows flatten(const PaddedStep& step, size_t) {
  const Dims before = step.dims(0);
  const int64_t given = step.node().get_int("axis", 1), at = given < 0 ? given + step.rank(0) : given;
  if (at < 0 || at > step.rank(0)) step.refuse("has an axis that is none");
  const size_t own = size_t(step.axis(0));
  const bool is_first = own < size_t(at);
  const auto outside = step.volume(before, is_first ? 0 : size_t(at), own);
  const auto inside = step.volume(before, own + 1, is_first ? size_t(at) : before.size());
  const auto all_outside = outside ? product(*outside, step.beside().outside) : std::nullopt;
  const auto all_inside = inside ? product(*inside, step.beside().inside) : std::nullopt;
  if (!all_outside || !all_inside) step.refuse("may not leave its rows one after another");
  return {is_first ? 0 : 1, Beside{*all_outside, *all_inside}};
}

Rows transpose(const PaddedStep& step, size_t) {
  const auto order = step.node().find_ints("perm");
  Rows made = step.rank(0) - 1 - step.axis(0);
  if (order) {
    const auto found = std::ranges::find(*order, step.axis(0));
    if (found == order->end()) step.refuse("has no such axis");
    made.axis = int(found - order->begin());
  }
  made.end_in_zeros = step.rows(0).end_in_zeros;
  return made;
}

std::vector<int64_t> counted_from_first(const PaddedStep& step, Dims axes, int rank) {
  for (int64_t& axis : axes) {
    if (axis < 0) axis += rank;
    if (axis < 0 || axis >= rank) step.refuse("has an axis that is none");
  }
  return axes;
}

// Without axes it drops what has a length of one, whichever it is.
Rows squeeze(const PaddedStep& step, size_t) {
  step.others_unpadded({0});
  const auto given = step.axes_of("axes", 1);
  if (!given) step.refuse("may drop it");
  const Dims axes = counted_from_first(step, *given, step.rank(0));
  const std::set<int64_t> dropped(axes.begin(), axes.end());
  if (dropped.contains(step.axis(0))) step.refuse("drops it");
  return step.axis(0) - int(std::distance(dropped.begin(), dropped.lower_bound(step.axis(0))));
}

Rows unsqueeze(const PaddedStep& step, size_t) {
  step.others_unpadded({0});
  const auto given = step.axes_of("axes", 1);
  if (!given) step.refuse("adds axes that are no constants");
  const int rank = step.rank(0) + int(given->size());
  Dims added = counted_from_first(step, *given, rank);
  int left = step.axis(0);
  for (int i = 0; i < rank; ++i)
    if (std::ranges::find(added, i) == added.end() && left-- == 0) return moved_to(step, i);
  step.refuse("adds an axis twice");
}

Rows concat(const PaddedStep& step, size_t) {
  const int along = step.own_axis("axis", 1, step.rank(0));
  step.all_along_one_axis();
  if (along == step.axis(0)) step.refuse("puts something behind its rows");
  Rows made = step.axis(0);
  bool are_ones = along == step.rank(0) - 1;
  for (size_t i = 0; i < step.inputs() && (are_ones &= step.is_one(i, along)); ++i)
    if (step.rows(i).count && step.rows(i).first == 0) made.counting = int(i);
  return made;
}

Rows split(const PaddedStep& step, size_t) {
  step.others_unpadded({0});
  if (step.own_axis("axis", 0, step.rank(0)) == step.axis(0)) step.refuse("splits it");
  return step.axis(0);
}

// As many of the first as the dimension is long.
Rows slice_to_length(const PaddedStep& step, const Dims& axes, const Dims& first, const Dims& last, const Dims& by) {
  int made = kSized;
  for (size_t i = 0; i < axes.size(); ++i) {
    if (step.is_fixed(last[i])) continue;
    if (!step.is_padded_dim(last[i]) || first[i] != 0 || by[i] != 1 || made >= 0) return kSized;
    made = int(axes[i]);
    step.check_is_long_enough(made);
  }
  return made;
}

// All of it, its first row, or along other axes.
Rows slice(const PaddedStep& step, size_t) {
  if (step.axis(0) == kSized) return kSized;
  const bool is_older = step.node().since_version() < 10;
  auto first = is_older ? step.node().find_ints("starts") : step.numbers(1);
  auto last = is_older ? step.node().find_ints("ends") : step.numbers(2);
  auto axes = step.axes_of("axes", 3);
  auto by = step.numbers(4);
  if (first && !axes && !step.has(3)) {
    axes.emplace(first->size());
    std::iota(axes->begin(), axes->end(), 0);
  }
  if (axes && !step.has(4)) by.emplace(axes->size(), 1);
  // As many from the end as there are: from the first.
  if (!first && axes && axes->size() == 1)
    if (const auto back = step.from_end(1);
        back && *back == step.dims(0)[size_t(counted_from_first(step, *axes, step.rank(0))[0])])
      first = Dims{0};
  const auto are_as_many = [&](const auto&... list) { return axes && ((list && list->size() == axes->size()) && ...); };
  const bool is_known = are_as_many(first, last, by);
  if (step.axis(0) == kUnpadded) {
    const bool is_long_alone = step.axis(1) == kUnpadded && step.axis(3) == kUnpadded && step.axis(4) == kUnpadded;
    if (!is_known || !is_long_alone) return kSized;
    return slice_to_length(step, counted_from_first(step, *axes, step.rank(0)), *first, *last, *by);
  }
  if (!axes) step.refuse("slices along axes that are no constants");
  const Dims from_first = counted_from_first(step, *axes, step.rank(0));
  // All that there are, or along axes that have nothing to do with it.
  const auto keeps = [&](size_t i) {
    const int64_t axis = from_first[i];
    if ((*first)[i] == 0 && (*by)[i] == 1 && (*last)[i] >= INT32_MAX) return true;
    if (step.is_padded_dim((*last)[i]))
      return (*first)[i] == 0 && (*by)[i] == 1 && step.is_padded_dim(step.dims(0)[size_t(axis)]);
    return axis != step.axis(0) && step.is_fixed((*first)[i]) && step.is_fixed((*last)[i]) && step.is_fixed((*by)[i]);
  };
  if (is_known && std::ranges::all_of(std::views::iota(size_t(0), from_first.size()), keeps))
    return moved_to(step, step.axis(0));
  step.others_unpadded({0});
  const auto own = std::ranges::find(from_first, step.axis(0));
  if (own == from_first.end()) return step.axis(0);
  const size_t i = size_t(own - from_first.begin());
  if (!is_known || (*first)[i] != 0 || (*by)[i] != 1) step.refuse("may leave out some of its rows");
  if ((*last)[i] == 1 && step.beside().outside == Volume()) return kUnpadded;
  if ((*last)[i] < INT32_MAX) step.refuse("may leave out some of its rows");
  return step.axis(0);
}

// Along the axis that it has; what it adds is said by added_axes().
Rows expand(const PaddedStep& step, size_t) {
  if (step.axis(0) == kSized) return kSized;
  const auto asked = step.lengths(1);
  if (!asked || step.axis(1) >= 0) step.refuse("asks for a shape that is not known");
  const int rank = std::max(int(asked->size()), step.rank(0)), before = rank - step.rank(0);
  const int own = step.axis(0) >= 0 ? step.axis(0) + before : kUnpadded;
  for (int i = 0; i < int(asked->size()); ++i) {
    const int64_t dim = (*asked)[size_t(i)];
    const int made = i + rank - int(asked->size()), from = made - before;
    if (!step.is_padded_dim(dim) && (!step.is_fixed(dim) || (made == own && dim != 1)))
      step.refuse("asks for a shape that is not known");
    if (step.is_padded_dim(dim) && !step.is_one(0, from) && !step.is_padded_dim(step.dims(0)[size_t(from)]))
      step.refuse("has an input 0 that need not be as long");
  }
  if (own < 0) return kUnpadded;
  return moved_to(step, own);
}

Rows made_of_shape(const PaddedStep& step, size_t) {
  const auto asked = step.lengths(0);
  const auto is_known = [&](int64_t dim) { return step.is_fixed(dim) || step.is_padded_dim(dim); };
  return asked && std::ranges::all_of(*asked, is_known) ? kUnpadded : kSized;
}

// From zero, one by one, to its length.
Rows range(const PaddedStep& step, size_t) {
  const auto first = step.numbers(0), last = step.numbers(1), by = step.numbers(2);
  const auto is = [](const std::optional<Dims>& one, int64_t number) { return one && *one == Dims{number}; };
  const bool counts = is(first, 0) && is(by, 1) && last && last->size() == 1 && step.is_padded_dim((*last)[0]);
  return counts ? Rows::numbered(0) : Rows(kSized);
}

Rows shape(const PaddedStep& step, size_t) {
  const int rank = step.rank(0);
  const auto clamped = [&](int64_t at) { return std::clamp<int64_t>(at < 0 ? at + rank : at, 0, rank); };
  const int64_t first = clamped(step.node().get_int("start", 0)), last = clamped(step.node().get_int("end", rank));
  return step.axis(0) >= first && step.axis(0) < last ? kSized : kUnpadded;
}
Rows size(const PaddedStep&, size_t) { return kSized; }

Rows tile(const PaddedStep& step, size_t) {
  step.others_unpadded({0});
  const auto repeats = step.numbers(1);
  if (!repeats || size_t(step.axis(0)) >= repeats->size() || (*repeats)[size_t(step.axis(0))] != 1)
    step.refuse("may repeat its rows");
  return step.axis(0);
}

Rows pad(const PaddedStep& step, size_t) {
  step.others_unpadded({0});
  const auto pads = step.axes_of("pads", 1);
  const auto axes = step.has(3) ? step.numbers(3) : std::nullopt;
  if (!pads || (step.has(3) && !axes)) step.refuse("pads by what is no constant");
  const size_t count = pads->size() / 2;
  for (size_t i = 0; i < count; ++i) {
    const int64_t axis = axes && i < axes->size() ? (*axes)[i] : int64_t(i);
    if ((axis == step.axis(0) || axis + step.rank(0) == step.axis(0)) && ((*pads)[i] != 0 || (*pads)[i + count] != 0))
      step.refuse("pads it, too");
  }
  return step.axis(0);
}

Rows one_hot(const PaddedStep& step, size_t) {
  step.others_unpadded({0});
  return step.own_axis("axis", -1, step.rank(0) + 1) <= step.axis(0) ? step.axis(0) + 1 : step.axis(0);
}

Rows triangle(const PaddedStep& step, size_t) {
  step.others_unpadded({0});
  if (step.beside().outside != Volume()) step.refuse("has it inside of an axis");
  return step.axis(0);
}

constexpr RowRules kRules[] = {
    {"", "Reshape", reshape},
    {"", "Flatten", flatten},
    {"", "Transpose", transpose},
    {"", "Squeeze", squeeze},
    {"", "Unsqueeze", unsqueeze},
    {"", "Concat", concat},
    {"", "Split", split},
    {"", "Slice", slice},
    {"", "Expand", expand},
    {"", "ConstantOfShape", made_of_shape},
    {"", "Range", range},
    {"", "Shape", shape},
    {"", "Size", size},
    {"", "Tile", tile},
    {"", "Pad", pad},
    {"", "OneHot", one_hot},
    {"", "Trilu", triangle},
};

}  // namespace

std::vector<int> added_axes(const PaddedStep& step) {
  const bool is_expand = is_onnx(step.node(), "Expand");
  if (!is_expand && !is_onnx(step.node(), "ConstantOfShape")) return {};
  const auto asked = step.lengths(is_expand ? 1 : 0);
  const int count = asked ? int(asked->size()) : 0, own_rank = is_expand ? step.rank(0) : 0;
  const int rank = std::max(count, own_rank);
  std::vector<int> added;
  for (int axis = rank - count; axis < rank; ++axis)
    if (step.is_padded_dim((*asked)[size_t(axis - (rank - count))]) &&
        (!is_expand || step.is_one(0, axis - (rank - own_rank))))
      added.push_back(axis);
  return added;
}

std::span<const RowRules> rules_of_movement() { return kRules; }

}  // namespace encore::fuse
