// The two kinds of a Loop: what decides about its iterations is on the host, or on the device.
#pragma once
#include <memory>

#include "fuse/body_run.h"

namespace encore::fuse {

// Of an iteration's number or condition, as the body says: a scalar or a vector of one.
Shape shape_of_one(const Plan& body, int value);
std::unique_ptr<ops::Op> make_loop_by_data(Plan& body);

}  // namespace encore::fuse
