#include "ops/shape/strided_view.h"

#include <algorithm>
#include <functional>

#include "device/error.h"

namespace encore::ops {
namespace {

int64_t count_of(const StridedView::Axis& axis) {
  int64_t count = 1;
  for (const auto& steps : axis) count *= steps.count;
  return count;
}

// Steps that go on where the ones inside of them end are one.
StridedView::Axis joined(const std::vector<StridedView::Axis>& axes) {
  StridedView::Axis made;
  for (const StridedView::Axis& axis : axes)
    for (const auto& steps : axis)
      if (!made.empty() && made.back().stride == steps.count * steps.stride)
        made.back() = {made.back().count * steps.count, steps.stride};
      else if (steps.count != 1)
        made.push_back(steps);
  return made;
}

std::vector<bool> marked(const std::vector<int64_t>& axes, size_t rank) {
  std::vector<bool> marks(rank);
  for (int64_t given : axes) {
    const auto axis = size_t(checked_axis(given, int(rank)));
    require(!marks[axis], "axis ", given, " is there twice");
    marks[axis] = true;
  }
  return marks;
}

}  // namespace

StridedView::StridedView(const Shape& shape) {
  const std::vector<int64_t> strides = strides_of(shape);
  for (int i = 0; i < shape.rank(); ++i) axes_.push_back({{shape[i], strides[size_t(i)]}});
}

Shape StridedView::shape() const {
  std::vector<int64_t> dims;
  for (const Axis& axis : axes_) dims.push_back(count_of(axis));
  return Shape(dims);
}

std::optional<std::vector<int64_t>> StridedView::strides() const {
  std::vector<int64_t> strides(axes_.size());
  int64_t extent = 1;
  for (size_t i = axes_.size(); i-- > 0;) {
    std::optional<int64_t> next;  // the stride at which an axis goes on
    strides[i] = extent;
    for (auto steps = axes_[i].rbegin(); steps != axes_[i].rend(); ++steps) {
      if (steps->count == 1) continue;
      if (!next)
        strides[i] = steps->stride;
      else if (steps->stride != *next)
        return std::nullopt;
      next = steps->stride * steps->count;
    }
    extent = strides[i] * count_of(axes_[i]);
  }
  return strides;
}

StridedView::Axis StridedView::in_a_row() const { return joined(axes_); }

bool StridedView::is_dense() const {
  if (offset_ != 0) return false;
  int64_t extent = 1;
  for (auto axis = axes_.rbegin(); axis != axes_.rend(); ++axis)
    for (auto steps = axis->rbegin(); steps != axis->rend(); ++steps) {
      if (steps->count == 1) continue;
      if (steps->count > 1 && steps->stride != extent) return false;
      extent *= steps->count;
    }
  return true;
}

void StridedView::transpose(const std::vector<int64_t>& order) {
  if (order.size() != axes_.size())
    fail(Code::invalid_input, shape().str(), " cannot be transposed by ", order.size(), " axes");
  marked(order, axes_.size());
  std::vector<Axis> made;
  for (int64_t axis : order) made.push_back(axes_[size_t(checked_axis(axis, int(order.size())))]);
  axes_ = std::move(made);
}

void StridedView::squeeze(const std::vector<int64_t>& axes) {
  const std::vector<bool> drop = marked(axes, axes_.size());
  std::vector<Axis> made;
  for (size_t i = 0; i < axes_.size(); ++i) {
    if (drop[i] && count_of(axes_[i]) != 1)
      fail(Code::invalid_input, "axis ", i, " of ", shape().str(), " is not 1 and cannot be squeezed");
    if (!drop[i]) made.push_back(axes_[i]);
  }
  axes_ = std::move(made);
}

void StridedView::unsqueeze(const std::vector<int64_t>& axes) {
  const std::vector<bool> added = marked(axes, axes_.size() + axes.size());
  for (size_t i = 0; i < added.size(); ++i)
    if (added[i]) axes_.insert(axes_.begin() + ptrdiff_t(i), Axis());
}

void StridedView::select(int64_t axis, int64_t index) {
  const auto at = size_t(checked_axis(axis, int(axes_.size())));
  const int64_t count = count_of(axes_[at]);
  require(index >= -count && index < count, "index ", index, " is outside [", -count, ", ", count, ")");
  int64_t rest = index < 0 ? index + count : index;
  for (auto steps = axes_[at].rbegin(); steps != axes_[at].rend(); ++steps) {
    offset_ += rest % steps->count * steps->stride;
    rest /= steps->count;
  }
  axes_.erase(axes_.begin() + ptrdiff_t(at));
}

void StridedView::repeat(int64_t axis, int64_t count) {
  const auto at = size_t(checked_axis(axis, int(axes_.size())));
  if (count_of(axes_[at]) != 1)
    fail(Code::invalid_input, "axis ", axis, " of ", shape().str(), " is not 1 and cannot be repeated");
  axes_[at] = {{count, 0}};
}

int64_t StridedView::drop_repeats(int64_t axis) {
  Axis& of = axes_[size_t(checked_axis(axis, int(axes_.size())))];
  int64_t count = 1;
  while (!of.empty() && (of.back().count == 1 || of.back().stride == 0)) {
    count *= of.back().count;
    of.pop_back();
  }
  return count;
}

bool StridedView::slice(int64_t axis, int64_t begin, int64_t count, int64_t size) {
  const auto at = size_t(checked_axis(axis, int(axes_.size())));
  if (count_of(axes_[at]) != size)
    fail(Code::invalid_input, "axis ", axis, " of ", shape().str(), " is not ", size, ", as the model says");
  require(begin >= 0 && count >= 0 && begin <= size - count, count, " from ", begin, " on are more than the ", size,
          " of axis ", axis);
  if (count == size) return true;
  const StridedView::Axis steps = joined({axes_[at]});
  if (steps.size() > 1) return false;
  const int64_t stride = steps.empty() ? 0 : steps.front().stride;
  offset_ += count ? begin * stride : 0;
  axes_[at] = {{count, stride}};
  return true;
}

// All steps in a row are handed out to the new dimensions; some are cut in two.
bool StridedView::reshape(const Shape& to) {
  if (to.count() != shape().count()) fail(Code::invalid_input, shape().str(), " cannot be reshaped to ", to.str());
  if (to.count() == 0) {
    axes_ = StridedView(to).axes_;
    return true;
  }
  Axis left = in_a_row();
  auto next = left.begin();
  std::vector<Axis> made;
  for (int64_t wanted : to.dims()) {
    Axis& axis = made.emplace_back();
    while (wanted > 1) {
      if (wanted % next->count == 0) {
        axis.push_back(*next);
        wanted /= next++->count;
      } else if (next->count % wanted == 0) {
        next->count /= wanted;
        axis.push_back({wanted, next->stride * next->count});
        wanted = 1;
      } else {
        return false;
      }
    }
  }
  axes_ = std::move(made);
  return true;
}

StridedView StridedView::moved(const Runs& runs) const {
  StridedView made = *this;
  made.offset_ = 0;
  std::vector<Steps*> all;
  for (Axis& axis : made.axes_)
    for (Steps& steps : axis) all.push_back(&steps);
  int64_t extent = 1;
  for (auto run = runs.rbegin(); run != runs.rend(); ++run)
    for (auto at = run->rbegin(); at != run->rend(); ++at) {
      all[*at]->stride = extent;
      extent *= all[*at]->count;
    }
  return made;
}

StridedView StridedView::in_order() const {
  Runs runs(1);
  for (const Axis& axis : axes_)
    for (size_t i = 0; i < axis.size(); ++i) runs[0].push_back(runs[0].size());
  return moved(runs);
}

// Steps become one run where reshape() would fail.
StridedView StridedView::as_they_lie(const Shape& to) const {
  if (to.count() == 0) return in_order();
  Axis all;
  for (const Axis& axis : axes_) all.insert(all.end(), axis.begin(), axis.end());
  Runs runs;
  size_t next = 0;
  int64_t left = 1;  // of the last run's elements
  const auto add = [&](bool to_last) {
    if (!to_last) runs.emplace_back();
    runs.back().push_back(next);
    left *= all[next++].count;
  };
  for (int64_t wanted : to.dims())
    while (wanted > 1) {
      if (left == 1)
        add(false);
      else if (wanted % left == 0)
        wanted /= left, left = 1;
      else if (left % wanted == 0)
        left /= wanted, wanted = 1;
      else
        add(true);
    }
  while (next < all.size()) add(false);
  const auto nearest = [&](const std::vector<size_t>& run) { return all[run.back()].stride; };
  std::ranges::stable_sort(runs, std::greater<>(), nearest);
  return moved(runs);
}

Shape reshaped(const Shape& in, std::vector<int64_t> dims, bool allow_zero) {
  int64_t known = 1;
  int unknown = -1;
  for (size_t i = 0; i < dims.size(); ++i) {
    if (dims[i] == 0 && !allow_zero) {
      if (int(i) >= in.rank()) fail(Code::invalid_input, "shape asks to keep dimension ", i, " of ", in.str());
      dims[i] = in[int(i)];
    }
    require(dims[i] >= -1, "shape holds ", dims[i]);
    if (dims[i] == -1) {
      require(unknown < 0, "shape holds more than one -1");
      unknown = int(i);
    } else {
      known = checked_product(known, dims[i]);
    }
  }
  if (unknown >= 0) {
    if (known == 0 || in.count() % known != 0)
      fail(Code::invalid_input, "cannot infer the -1: ", in.str(), " has ", in.count(), " elements");
    dims[size_t(unknown)] = in.count() / known;
  }
  const Shape shape(dims);
  if (shape.count() != in.count()) fail(Code::invalid_input, in.str(), " cannot be reshaped to ", shape.str());
  return shape;
}

}  // namespace encore::ops
