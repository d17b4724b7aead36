// All steps of a recurrence in one launch.
#pragma once
#include <span>

#include "ops/recurrent/recurrence.h"

namespace encore::ops {

// Whether layers of few sequences, of which each has the states of the one before as its X, can be one launch.
bool may_persist(int device, std::span<const Recurrence> layers);
// Of cleared scratch, for any number of sequences.
int64_t most_persistent_bytes(const Recurrence& layer, int layers);
// x_gates: the first one's products with W.
void run_persistent(Context& context, std::span<const Recurrence> layers, const void* x_gates);

}  // namespace encore::ops
