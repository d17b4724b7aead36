#include "device/trace.h"

#include "device/error.h"

namespace encore::device {
namespace {
[[noreturn]] void refuse() {
  fail(Code::not_supported,
       "only the virtual GPU records what it does; on CUDA, run the application under NVIDIA Nsight Systems");
}
}  // namespace

void start_trace() { refuse(); }
std::vector<TraceEntry> stop_trace() { refuse(); }

}  // namespace encore::device
