// Ranges that a profiler of the whole process shows (NVTX, for NVIDIA Nsight Systems), if one listens.
#pragma once
#include <atomic>

namespace encore::device {

// Of the calling thread, one inside of the other.
void begin_range(const char* name);
void end_range();

// False once a range has been begun and nobody listened: nobody will.
inline std::atomic<bool> ranges_may_be_seen{true};

}  // namespace encore::device
