#include "ops/rooms.h"
#include "ops/shape/shape_ops.h"

namespace encore::ops {

std::vector<OpRow> shape_rows() {
  std::vector<OpRow> all;
  for (auto* file : {view_rows, move_rows, join_rows, fill_rows, pad_rows})
    for (OpRow& row : file()) all.push_back(std::move(row));
  return all;
}

}  // namespace encore::ops
