// The index space of an elementwise program: how its inputs lie under its outputs.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "ops/elementwise/expression.h"
#include "ops/shape.h"

namespace encore::ops {

// The part of an input that is read.
struct Source {
  Shape shape;
  std::vector<int64_t> strides;  // of its dimensions
  int64_t first = 0;             // where it begins, in elements

  Source() = default;
  Source(const Shape& whole, int input, const std::vector<Expression::Part>& parts) : strides(size_t(whole.rank())) {
    std::vector<int64_t> dims(whole.dims().begin(), whole.dims().end());
    for (int64_t axis = whole.rank() - 1, step = 1; axis >= 0; step *= whole[int(axis--)]) strides[size_t(axis)] = step;
    for (const Expression::Part& part : parts) {
      if (part.input != input) continue;
      const int axis = whole.rank() + part.axis;
      require(axis >= 0 && part.end <= whole[axis], "input ", input, " ", whole.str(), " has no part from ", part.begin,
              " to ", part.end, " along axis ", part.axis);
      dims[size_t(axis)] = part.end - part.begin;
      first += part.begin * strides[size_t(axis)];
    }
    shape = Shape(dims);
  }
};

// Dimensions that all inputs walk alike are one; innermost first.
struct IndexSpace {
  int64_t count;
  std::vector<int64_t> sizes;
  std::vector<std::vector<int64_t>> strides, shifts;  // by dimension, then by input

  IndexSpace(const Shape& output, const std::vector<Source>& inputs, const std::vector<Expression::Roll>& rolls)
      : count(output.count()) {
    for (int axis = output.rank() - 1; axis >= 0; --axis) {
      const int64_t size = output[axis];
      if (size == 1) continue;
      std::vector<int64_t> own(inputs.size()), shift(inputs.size());
      for (const Expression::Roll& roll : rolls)
        if (output.rank() + roll.axis == axis) shift[size_t(roll.input)] = roll.shift;
      for (size_t k = 0; k < inputs.size(); ++k) {
        const int at = axis - (output.rank() - inputs[k].shape.rank());
        if (at >= 0 && inputs[k].shape[at] != 1) own[k] = inputs[k].strides[size_t(at)];
      }
      const auto rolls_none = [](const std::vector<int64_t>& by) {
        return std::ranges::count(by, 0) == std::ssize(by);
      };
      bool joins = !sizes.empty() && rolls_none(shift) && rolls_none(shifts.back());
      for (size_t k = 0; joins && k < own.size(); ++k) joins = own[k] == strides.back()[k] * sizes.back();
      if (joins) {
        sizes.back() *= size;
      } else {
        sizes.push_back(size);
        strides.push_back(std::move(own));
        shifts.push_back(std::move(shift));
      }
    }
    if (sizes.empty()) {
      sizes.push_back(1);
      strides.emplace_back(inputs.size());
      shifts.emplace_back(inputs.size());
    }
  }
  bool is_rolled(size_t input) const {
    return std::ranges::any_of(shifts, [&](const auto& by) { return by[input] != 0; });
  }
  bool is_flat(size_t input) const {
    int64_t before = 1;
    for (size_t d = 0; d < sizes.size(); before *= sizes[d++])
      if (strides[d][input] != before) return false;
    return !is_rolled(input);
  }
  bool is_single(size_t input) const {
    return std::ranges::all_of(strides, [&](const auto& by) { return by[input] == 0; });
  }
  // Whether packs of outputs have operands that are neighbours, or one value.
  bool packs(int pack) const {
    return sizes[0] % pack == 0 && std::ranges::all_of(shifts[0], [&](int64_t by) { return by % pack == 0; }) &&
           std::ranges::all_of(strides[0], [](int64_t stride) { return stride == 0 || stride == 1; });
  }
  bool are_rows_aligned(size_t input, int pack) const {
    return std::all_of(strides.begin() + 1, strides.end(), [&](const auto& by) { return by[input] % pack == 0; });
  }
};

}  // namespace encore::ops
