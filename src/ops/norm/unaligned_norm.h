// Normalisation of rows of odd widths that share scale and bias.
#pragma once
#include "ops/norm/row_norm.h"

namespace encore::ops {

// False, and nothing is done, if the rows are too narrow or too wide for it, or otherwise made.
bool normalize_unaligned_rows(device::StreamRef stream, const RowNorm& norm, const NormTypes& types);

}  // namespace encore::ops
