#include "ops/norm/norm_ops.h"
#include "ops/rooms.h"

namespace encore::ops {

std::vector<OpRow> norm_rows() {
  std::vector<OpRow> all = softmax_rows();
  for (OpRow& row : layer_norm_rows()) all.push_back(std::move(row));
  return all;
}

}  // namespace encore::ops
