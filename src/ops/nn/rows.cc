#include "ops/nn/nn.h"
#include "ops/rooms.h"

namespace encore::ops {

std::vector<OpRow> pool_rows() {
  std::vector<OpRow> all;
  for (auto* file : {window_pool_rows, global_pool_rows, batch_norm_rows, resize_rows, dropout_rows})
    for (OpRow& row : file()) all.push_back(std::move(row));
  return all;
}

}  // namespace encore::ops
