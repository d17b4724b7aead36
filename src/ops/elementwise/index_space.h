// The index space of an elementwise program: how its inputs lie under its outputs.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "ops/elementwise/expression.h"
#include "ops/shape.h"

namespace encore::ops {

// Dimensions that all inputs walk alike are one; innermost first.
struct IndexSpace {
  int64_t count;
  std::vector<int64_t> sizes;
  std::vector<std::vector<int64_t>> strides, shifts;  // by dimension, then by input

  IndexSpace(const Shape& output, const std::vector<Shape>& inputs, const std::vector<Expression::Roll>& rolls)
      : count(output.count()) {
    std::vector<int64_t> steps(inputs.size(), 1);
    for (int axis = output.rank() - 1; axis >= 0; --axis) {
      const int64_t size = output[axis];
      if (size == 1) continue;
      std::vector<int64_t> own(inputs.size()), shift(inputs.size());
      for (const Expression::Roll& roll : rolls)
        if (output.rank() + roll.axis == axis) shift[size_t(roll.input)] = roll.shift;
      for (size_t k = 0; k < inputs.size(); ++k) {
        const int at = axis - (output.rank() - inputs[k].rank());
        if (at < 0 || inputs[k][at] == 1) continue;
        own[k] = steps[k];
        steps[k] *= size;
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
  // Whether so many neighbours of an output always are neighbours in each input, too, or one value there.
  bool packs(int pack) const {
    if (sizes[0] % pack != 0) return false;
    for (size_t d = 0; d < strides.size(); ++d)
      for (size_t k = 0; k < strides[d].size(); ++k)
        if (strides[0][k] != 0 && (shifts[d][k] * strides[d][k] % pack != 0 || (d > 0 && strides[d][k] % pack != 0)))
          return false;
    return true;
  }
};

}  // namespace encore::ops
