// Block-sparse causal attention: of the keys up to its own a query sees some blocks, as a layout says.
#pragma once
#include "ops/attention/dense/attend.h"

namespace encore::ops {

// Layouts of blocks, on the device: for each block of queries the columns, blocks of keys, that it sees. Head h has
// layout h % layouts.
struct BlockSparseLayout {
  const int32_t* begins = nullptr;   // [layout, row]: where its columns begin; one more than there are rows
  const int32_t* columns = nullptr;  // [layout, ...]
  int64_t layouts = 0, rows = 0, most_columns = 0;
  int64_t size = 0;  // of a block: a power of two, 16 or more
};

// The problem's attention is causal, has no mask, and wants no scores. Malformed layouts are reported, and what they
// name wrongly is not seen.
void attend_block_sparse(Context& context, const Attend& problem, const BlockSparseLayout& blocks);

}  // namespace encore::ops
