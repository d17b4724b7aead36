// A tensor's elements in another shape or order, and where they are: what Reshape, Transpose and their kin make of it
// without moving anything.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "ops/few.h"
#include "ops/shape.h"

namespace encore::ops {

class StridedView {
 public:
  // So many steps of `stride` elements. An axis has several of these, outermost first, if what became one axis lies
  // apart.
  struct Steps {
    int64_t count, stride;
  };
  using Row = Few<Steps, 12>;  // one inside of the other
  using Numbers = Few<int64_t>;

  explicit StridedView(const Shape& shape);
  Shape shape() const;
  int rank() const { return int(ends_.size()); }
  const Row& steps() const { return steps_; }  // of one axis behind those of the other
  int64_t offset() const { return offset_; }
  // Of each axis, or nothing if one lies apart. Axes of one element have their neighbours' extent.
  std::optional<Numbers> strides() const;
  // Of all axes together; steps that go on where the ones inside of them end are one.
  Row in_a_row() const;
  // Whether all elements are there, from the first on, in their order.
  bool is_dense() const;

  // Axes may count from the end.
  void transpose(const Numbers& order);
  void squeeze(const Numbers& axes);
  void unsqueeze(const Numbers& axes);
  void select(int64_t axis, int64_t index);  // one of an axis, which is gone then
  void repeat(int64_t axis, int64_t count);  // one of an axis, which is there so often then
  // How often each of an axis is there, with its repetitions beside it: once from now on.
  int64_t drop_repeats(int64_t axis);
  // False, and unchanged, if no view is that.
  bool slice(int64_t axis, int64_t begin, int64_t count, int64_t size);
  bool reshape(const Shape& to);

  // Where the same elements are, step by step, when they have been moved: in their order,
  StridedView in_order() const;
  // or as they lie, but that a reshape to this is a view.
  StridedView as_they_lie(const Shape& to) const;

 private:
  // Steps of all axes, counted through, that stay together; each of these runs behind those before it.
  using Runs = std::vector<std::vector<size_t>>;
  StridedView() = default;
  std::span<const Steps> steps_of(size_t axis) const;
  size_t checked(int64_t axis) const { return size_t(checked_axis(axis, rank())); }
  void add(std::span<const Steps> axis);
  void put(size_t at, std::span<const Steps> axis);  // in the place of another one
  void take_axes(const StridedView& other) { steps_ = other.steps_, ends_ = other.ends_; }
  StridedView moved(const Runs& runs) const;

  Row steps_;
  Few<size_t> ends_;  // of axes among the steps
  int64_t offset_ = 0;
};

// What Reshape makes of a shape when it is asked for `dims`: -1 is what is left, 0 what it was, unless that is allowed.
Shape reshaped(const Shape& shape, std::span<const int64_t> dims, bool allow_zero);

}  // namespace encore::ops
