// Normalisation of few rows, as in a decode step: what counts is how long one row takes.
#pragma once
#include "ops/norm/clipped_rows.h"
#include "ops/norm/row_norm.h"

namespace encore::ops {

// False, and nothing is done, if the rows are too many or too wide for it, or not aligned.
bool normalize_few_rows(device::StreamRef stream, const RowNorm& norm, const NormTypes& types);

// The same, of Half that is clipped first; what it is then is the sum, if that is wanted. gamma and beta may be float.
bool clip_and_normalize_few_rows(device::StreamRef stream, const RowNorm& norm, const RowClip& clip, Type gamma);

// Of x in parts, from two to device::kMostProductParts, as products make it: as if it had the type of y. gamma, beta
// and bias are constants of the model. Whether that can be, if x begins where packs do:
bool can_normalize_parts(int device, const RowNorm& norm, const NormTypes& types);
void normalize_parts(device::StreamRef stream, const RowNorm& norm, const NormTypes& types);

}  // namespace encore::ops
