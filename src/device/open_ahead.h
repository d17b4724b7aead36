// Libraries that a session's first run will need, opened beside what the session does before.
#pragma once
#include <future>

namespace encore::device {

// Opens the library of matrix products, and has it choose an algorithm, in a thread that the result waits for: either
// takes a while the first time. Once a process and device; what goes wrong the first product will tell.
std::future<void> open_blas_ahead(int device);

}  // namespace encore::device
