#include "ops/contrib/contrib_ops.h"
#include "ops/rooms.h"

namespace encore::ops {

std::vector<OpRow> contrib_rows() {
  std::vector<OpRow> all = gelu_rows();
  for (OpRow& row : skip_layer_norm_rows()) all.push_back(std::move(row));
  return all;
}

}  // namespace encore::ops
