#include "ops/shape/strided_view.h"

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>
#include <ranges>

#include "device/error.h"

namespace encore::ops {
namespace {

using Steps = StridedView::Steps;

int64_t count_of(std::span<const Steps> axis) {
  int64_t count = 1;
  for (const Steps& steps : axis) count *= steps.count;
  return count;
}

// Steps that go on where the ones inside of them end are one.
StridedView::Row joined(std::span<const Steps> all) {
  StridedView::Row made;
  for (const Steps& steps : all)
    if (!made.empty() && made.back().stride == steps.count * steps.stride)
      made.back() = {made.back().count * steps.count, steps.stride};
    else if (steps.count != 1)
      made.push_back(steps);
  return made;
}

Few<char> marked(const StridedView::Numbers& axes, size_t rank) {
  Few<char> marks(rank);
  for (int64_t given : axes) {
    const auto axis = size_t(checked_axis(given, int(rank)));
    require(!marks[axis], "axis ", given, " is there twice");
    marks[axis] = true;
  }
  return marks;
}

}  // namespace

StridedView::StridedView(const Shape& shape) {
  for (int64_t dim : shape.dims()) add(std::array{Steps{dim, 0}});
  if (shape.count() == 0) return;  // other dimensions' product may not fit
  int64_t stride = 1;
  for (Steps& steps : std::views::reverse(steps_)) steps.stride = stride, stride *= steps.count;
}

std::span<const Steps> StridedView::steps_of(size_t axis) const {
  const size_t begin = axis == 0 ? 0 : ends_[axis - 1];
  return std::span(steps_).subspan(begin, ends_[axis] - begin);
}

void StridedView::add(std::span<const Steps> axis) {
  steps_.append(axis);
  ends_.push_back(steps_.size());
}

void StridedView::put(size_t at, std::span<const Steps> axis) {
  StridedView made;
  for (size_t i = 0; i < ends_.size(); ++i) made.add(i == at ? axis : steps_of(i));
  take_axes(made);
}

Shape StridedView::shape() const {
  Numbers dims;
  for (size_t i = 0; i < ends_.size(); ++i) dims.push_back(count_of(steps_of(i)));
  return Shape(dims);
}

std::optional<StridedView::Numbers> StridedView::strides() const {
  Numbers strides(ends_.size());
  int64_t extent = 1;
  for (size_t i = ends_.size(); i-- > 0;) {
    std::optional<int64_t> next;  // the stride at which an axis goes on
    strides[i] = extent;
    for (const Steps& steps : std::views::reverse(steps_of(i))) {
      if (steps.count == 1) continue;
      if (!next)
        strides[i] = steps.stride;
      else if (steps.stride != *next)
        return std::nullopt;
      next = steps.stride * steps.count;
    }
    extent = strides[i] * count_of(steps_of(i));
  }
  return strides;
}

StridedView::Row StridedView::in_a_row() const { return joined(steps_); }

bool StridedView::is_dense() const {
  if (offset_ != 0) return false;
  int64_t extent = 1;
  for (const Steps& steps : std::views::reverse(steps_)) {
    if (steps.count == 1) continue;
    if (steps.count > 1 && steps.stride != extent) return false;
    extent *= steps.count;
  }
  return true;
}

void StridedView::transpose(const Numbers& order) {
  if (order.size() != ends_.size())
    fail(Code::invalid_input, shape().str(), " cannot be transposed by ", order.size(), " axes");
  marked(order, order.size());
  StridedView made;
  for (int64_t axis : order) made.add(steps_of(checked(axis)));
  take_axes(made);
}

void StridedView::squeeze(const Numbers& axes) {
  const Few<char> drop = marked(axes, ends_.size());
  StridedView made;
  for (size_t i = 0; i < ends_.size(); ++i) {
    if (drop[i] && count_of(steps_of(i)) != 1)
      fail(Code::invalid_input, "axis ", i, " of ", shape().str(), " is not 1 and cannot be squeezed");
    if (!drop[i]) made.add(steps_of(i));
  }
  take_axes(made);
}

void StridedView::unsqueeze(const Numbers& axes) {
  StridedView made;
  size_t next = 0;
  for (const bool is_added : marked(axes, ends_.size() + axes.size()))
    made.add(is_added ? std::span<const Steps>() : steps_of(next++));
  take_axes(made);
}

void StridedView::select(int64_t axis, int64_t index) {
  const size_t at = checked(axis);
  const int64_t count = count_of(steps_of(at));
  require(index >= -count && index < count, "index ", index, " is outside [", -count, ", ", count, ")");
  int64_t rest = index < 0 ? index + count : index;
  for (const Steps& steps : std::views::reverse(steps_of(at))) {
    offset_ += rest % steps.count * steps.stride;
    rest /= steps.count;
  }
  put(at, {});
  squeeze({int64_t(at)});
}

void StridedView::repeat(int64_t axis, int64_t count) {
  const size_t at = checked(axis);
  if (count_of(steps_of(at)) != 1)
    fail(Code::invalid_input, "axis ", axis, " of ", shape().str(), " is not 1 and cannot be repeated");
  put(at, std::array{Steps{count, 0}});
}

int64_t StridedView::drop_repeats(int64_t axis) {
  const size_t at = checked(axis);
  std::span<const Steps> left = steps_of(at);
  int64_t count = 1;
  for (; !left.empty() && (left.back().count == 1 || left.back().stride == 0); left = left.first(left.size() - 1))
    count *= left.back().count;
  put(at, left);
  return count;
}

bool StridedView::slice(int64_t axis, int64_t begin, int64_t count, int64_t size) {
  const size_t at = checked(axis);
  if (count_of(steps_of(at)) != size)
    fail(Code::invalid_input, "axis ", axis, " of ", shape().str(), " is not ", size, ", as the model says");
  require(begin >= 0 && count >= 0 && begin <= size - count, count, " from ", begin, " on are more than the ", size,
          " of axis ", axis);
  if (count == size) return true;
  const Row steps = joined(steps_of(at));
  if (steps.size() > 1) return false;
  const int64_t stride = steps.empty() ? 0 : steps.front().stride;
  offset_ += count ? begin * stride : 0;
  put(at, std::array{Steps{count, stride}});
  return true;
}

// All steps in a row are handed out to the new dimensions; some are cut in two.
bool StridedView::reshape(const Shape& to) {
  if (to.count() != count_of(steps_)) fail(Code::invalid_input, shape().str(), " cannot be reshaped to ", to.str());
  if (to.count() == 0) {
    take_axes(StridedView(to));
    return true;
  }
  Row left = in_a_row();
  auto next = left.begin();
  StridedView made;
  for (int64_t wanted : to.dims()) {
    Row axis;
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
    made.add(axis);
  }
  take_axes(made);
  return true;
}

StridedView StridedView::moved(const Runs& runs) const {
  StridedView made = *this;
  made.offset_ = 0;
  int64_t extent = 1;
  for (auto run = runs.rbegin(); run != runs.rend(); ++run)
    for (auto at = run->rbegin(); at != run->rend(); ++at) {
      made.steps_[*at].stride = extent;
      extent *= steps_[*at].count;
    }
  return made;
}

StridedView StridedView::in_order() const {
  Runs runs(1, std::vector<size_t>(steps_.size()));
  std::iota(runs[0].begin(), runs[0].end(), size_t(0));
  return moved(runs);
}

// Steps become one run where reshape() would fail.
StridedView StridedView::as_they_lie(const Shape& to) const {
  if (to.count() == 0) return in_order();
  Runs runs;
  size_t next = 0;
  int64_t left = 1;  // of the last run's elements
  const auto add = [&](bool to_last) {
    if (!to_last) runs.emplace_back();
    runs.back().push_back(next);
    left *= steps_[next++].count;
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
  while (next < steps_.size()) add(false);
  const auto nearest = [&](const std::vector<size_t>& run) { return steps_[run.back()].stride; };
  std::ranges::stable_sort(runs, std::greater<>(), nearest);
  return moved(runs);
}

Shape reshaped(const Shape& in, std::span<const int64_t> wanted, bool allow_zero) {
  Few<int64_t> dims;
  dims.append(wanted);
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
