// The two kinds of a Loop: what decides about its iterations is on the host, or on the device.
#pragma once
#include <memory>
#include <vector>

#include "fuse/body_run.h"

namespace encore::fuse {

// Of an iteration's number or condition, as the body says: a scalar or a vector of one.
Shape shape_of_one(const Plan& body, int value);
// Whether the body's next condition is the one that it is given, or always holds.
bool hands_on_condition(const Plan& body);
// Which of what it collects begins with the last iteration is said by `is_reversed`: nothing if that is empty. If it
// `has_count`, no condition ends it before as many iterations as the host says.
std::unique_ptr<ops::Op> make_loop_by_data(Plan& body, bool has_count = false, std::vector<bool> is_reversed = {});

}  // namespace encore::fuse
