// Runs with dimensions padded: inputs become longer on the way in, and outputs shorter on the way out.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "fuse/padding.h"
#include "ops/op.h"

namespace encore::fuse {

// A dimension, and the lengths that it is padded to, in their order.
struct Padding {
  std::string dim;
  std::vector<int64_t> lengths;
  PaddedAxes axes;
  // By mask: what it has for as many rows as the longest length, and behind that for as many that are added; or the
  // growth of each length, or each length and what is added to it.
  std::vector<Tensor> tables = {};

  void prepare(ops::Prepack& loader);
};

// Runs `body`, for which each dimension has the next of its lengths. What is added are copies of the last row, so that
// no operator meets values there that it does not meet anyway. A dimension stays as it is if it is empty, longer than
// the longest, or not the same in all inputs, which is the body's to tell. The body has the paddings' masks as further
// inputs, and is told whether a dimension is longer.
void run_padded(const std::vector<Padding>& paddings, ops::Context& outer,
                const std::function<void(ops::Context&, bool is_longer)>& body);

}  // namespace encore::fuse
