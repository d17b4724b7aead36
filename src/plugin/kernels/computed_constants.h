// What constants alone make, once, before a session's first run.
#pragma once
#include "fuse/plan.h"
#include "plugin/session/ep.h"

namespace encore::plugin {

// On the session's device, by the kernels of its runs.
fuse::Compute compute_on(Ep& ep);

}  // namespace encore::plugin
