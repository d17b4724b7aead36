#include "ops/elementwise/binary.h"

#include "ops/rooms.h"

namespace encore::ops {

std::vector<OpRow> binary_rows() {
  std::vector<OpRow> rows = arithmetic_rows();
  for (auto* more : {division_rows, comparison_rows, variadic_rows}) {
    for (OpRow& row : more()) rows.push_back(std::move(row));
  }
  rows.push_back(pow_row());
  rows.push_back(where_row());
  return rows;
}

}  // namespace encore::ops
