#include "ops/elementwise/unary.h"

#include "ops/rooms.h"

namespace encore::ops {

std::vector<OpRow> unary_rows() {
  std::vector<OpRow> rows = math_rows();
  for (OpRow& row : activation_rows()) rows.push_back(std::move(row));
  rows.push_back(clip_row());
  return rows;
}

}  // namespace encore::ops
