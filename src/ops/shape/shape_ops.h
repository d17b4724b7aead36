// The files of this room and their rows.
#pragma once
#include <vector>

#include "ops/registry.h"

namespace encore::ops {

std::vector<OpRow> view_rows();  // view.cc: Reshape and its kin, Shape, Size
std::vector<OpRow> move_rows();  // move.cc: Transpose, Slice, Expand, Tile
std::vector<OpRow> join_rows();  // join.cu: Concat, Split
std::vector<OpRow> fill_rows();  // fill.cu: ConstantOfShape, Range
std::vector<OpRow> pad_rows();   // pad.cu

}  // namespace encore::ops
