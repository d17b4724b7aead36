// Which tokens go to which expert, and in what order their rows are multiplied; all of it is found out on the device.
#pragma once
#include "ops/op.h"

namespace encore::ops {

// Row `token * chosen + i` is a token's copy for the i-th expert that it has chosen.
struct Routing {
  int64_t tokens, experts, chosen;
  bool normalize, sparse_mixer;
  Tensor logits;                  // [tokens, experts]
  const Tensor* gates = nullptr;  // of the same shape: weights of the experts that the logits have chosen
};

// Rows in the order of their experts, cut into tiles which have one expert each.
struct Arrangement {
  int64_t rows, most_tiles;
  int tile_rows;
  float* weights;    // of each row
  int* experts;      // of each row
  int* sorted;       // which row is at each place
  int* offsets;      // of each expert's first place, and the number of rows
  int* tile_expert;  // of each tile
  int* tile_place;   // of each tile's first row
  int* tiles;        // how many there are
};
Arrangement arrange(Context& context, const Routing& routing, int tile_rows);

// y[token] = the sum of z[row] times the row's weight, over the token's rows; [tokens, width] of a float type. What has
// no weight does not count, whatever it is.
void combine(Context& context, const Arrangement& arrangement, int64_t chosen, const Tensor& y, const void* z);

}  // namespace encore::ops
