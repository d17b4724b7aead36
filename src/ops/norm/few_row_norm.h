// Normalisation of few rows, as in a decode step: what counts is how long one row takes.
#pragma once
#include "ops/norm/row_norm.h"

namespace encore::ops {

// False, and nothing is done, if the rows are too many or too wide for it, or not aligned.
bool normalize_few_rows(device::StreamRef stream, const RowNorm& norm, Type x, Type gamma);

}  // namespace encore::ops
