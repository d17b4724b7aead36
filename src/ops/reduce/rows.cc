#include "ops/reduce/reduce_ops.h"
#include "ops/rooms.h"

namespace encore::ops {

std::vector<OpRow> reduce_rows() {
  std::vector<OpRow> all;
  for (auto* file : {sum_rows, extreme_rows, product_rows, arg_rows})
    for (OpRow& row : file()) all.push_back(std::move(row));
  return all;
}

}  // namespace encore::ops
