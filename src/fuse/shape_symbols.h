// What is known of shapes, and of tensors that hold them, before any runs: numbers, and symbols for other dimensions.
#pragma once
#include <optional>
#include <vector>

#include "fuse/match.h"

namespace encore::fuse {

using Dims = std::vector<int64_t>;

bool are_numbers(const Dims& dims);
// The axis from 0 on; none if it is out of range.
std::optional<size_t> counted_from_first(int64_t axis, size_t rank);
// Whether the operator broadcasts its inputs to what it makes.
bool broadcasts(const NodeInfo& info);
// Where a Slice begins or ends.
size_t clamped(int64_t at, size_t size);

// Follows dimensions through the step: all that it reads and makes are numbers or symbols then, where ranks are known.
void infer_dims(Match& match, int step);

class ShapeSymbols {
 public:
  explicit ShapeSymbols(const Match& match) : match_(match) {}

  const std::optional<Dims>& dims(int value) const { return match_.value(value).dims; }
  // What a tensor of integers holds; the steps that compute it go to `steps`.
  std::optional<Dims> contents(int value, std::vector<int>& steps) const { return contents(value, steps, 0); }
  // The dimensions that a Reshape asks for: -1 is what is left. The steps that compute them go to `steps`.
  std::optional<Dims> target(const Step& reshape, std::vector<int>& steps) const;
  std::optional<Dims> target(const Step& reshape) const;
  // What an input holds, constant or computed.
  std::optional<Dims> held(const Step& step, size_t input) const {
    std::vector<int> steps;
    return held(step, input, steps);
  }
  std::optional<Dims> held(const Step& step, size_t input, std::vector<int>& steps) const {
    return held(step, input, steps, 0);
  }
  // The same if all are numbers that the model holds; a scalar is one.
  std::optional<Dims> constants(const Step& step, size_t input) const;
  // What the step is told by an input, or in older versions by an attribute; none where the model has neither.
  std::optional<Dims> axes(const Step& step) const {
    return step.inputs.size() > 1 && step.inputs[1] >= 0 ? constants(step, 1) : step.node->find_ints("axes");
  }
  // The dimensions of what the step makes, told by its inputs'; unknown ones are -1.
  std::optional<Dims> made_by(const Step& step, size_t output) const;

 private:
  std::optional<Dims> broadcast(const Step& step) const;
  std::optional<Dims> expanded(const Step& step) const;
  std::optional<Dims> repeated(const Step& step) const;
  bool is_scalar(const Step& step, size_t input) const;
  std::optional<Dims> product(const Step& step) const;
  std::optional<Dims> product_of_matrices(const Step& step) const;
  std::optional<Dims> reshaped(const Step& step) const;
  std::optional<Dims> gathered(const Step& step) const;
  std::optional<Dims> unsqueezed(const Step& step) const;
  std::optional<Dims> concatenated(const Step& step) const;
  std::optional<Dims> counted(const Step& step) const;
  std::optional<Dims> split(const Step& step, size_t output) const;
  std::optional<Dims> flattened(const Step& step) const;
  std::optional<Dims> reduced(const Step& step) const;
  std::optional<Dims> sliced(const Step& step) const;
  std::optional<Dims> contents(int value, std::vector<int>& steps, int depth) const;
  std::optional<Dims> held(const Step& step, size_t input, std::vector<int>& steps, int depth) const;
  std::optional<Dims> chosen(const Step& where, std::vector<int>& steps, int depth) const;
  std::optional<Dims> computed(const Step& step, std::vector<int>& steps, int depth) const;
  bool is_along_the_first(const Step& step) const;

  const Match& match_;
};

}  // namespace encore::fuse
