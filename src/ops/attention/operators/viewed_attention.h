// softmax(scale * q kT + mask) v as models spell it out: queries, keys and values are read where the nodes before the
// products would have taken them from, and the result is written where the one behind them would have put it.
#pragma once
#include <memory>
#include <vector>

#include "ops/attention/dense/attend.h"
#include "ops/op.h"
#include "ops/shape/viewed.h"

namespace encore::ops {

// The inputs are q, k, v and, if there is one, a mask that is added to the scores; or there is a window. A step may
// also make what libraries read of the mask, a bias and which rows see nothing, as further outputs: steps by the same
// mask have these as inputs.
struct ViewedAttention {
  // To [batch, head, row, size], of keys as of the others; or without the batch.
  std::vector<ViewStep> q, k, v;
  std::vector<int64_t> y_order;  // in which the result's dimensions are written
  double scale = 1;
  double least = kAnyNumber;  // that the mask adds
  bool sees = false;          // the mask leaves a key in each row; told if it is infinite
  // How many keys before and behind its position a query sees, the last one being at the last key; below zero: all.
  int64_t before = -1, after = -1;
  bool zeros = false;  // are rows of floats of which all is masked, else NaN; those of halves always are
};

Attributes attributes_of(const ViewedAttention& how);
ViewedAttention viewed_attention(const NodeInfo& node);
std::unique_ptr<Op> make_viewed_attention(const NodeInfo& node);

}  // namespace encore::ops
