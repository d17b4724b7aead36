#pragma once

#include <cstdint>
#include <string>

#include "ort_abi.h"

namespace encore::plugin {

// The onnxruntime this library was loaded into.
struct Ort {
  const OrtApi* api;
  const OrtEpApi* ep;
  uint32_t version;  // min(own, host): stamped into every struct that is handed to onnxruntime
  int minor;         // the host's own: 31 in 1.31.1
  std::string text;  // as the host writes it, "1.31.1"
};

// The first onnxruntime whose plugins can own kernels.
inline constexpr uint32_t kOldestApi = 24;

// The API that brought each callback or function that the oldest host lacks; ask host_has() before relying on one.
inline constexpr uint32_t kSyncApi = ort_abi::since::OrtEp::Sync;
inline constexpr uint32_t kAllocatorShrinkApi = ort_abi::since::OrtAllocator::Shrink;
inline constexpr uint32_t kGraphCaptureApi = ort_abi::since::OrtEp::IsGraphCaptureEnabled;
inline constexpr uint32_t kSessionInitializationEndApi = ort_abi::since::OrtEp::OnSessionInitializationEnd;
inline constexpr uint32_t kDefaultMemoryDeviceApi = ort_abi::since::OrtEp::GetDefaultMemoryDevice;
inline constexpr uint32_t kReleaseCapturedGraphApi = ort_abi::since::OrtEp::ReleaseCapturedGraph;
inline constexpr uint32_t kKernelSyncStreamApi = ort_abi::since::OrtApi::KernelContext_GetSyncStream;
inline constexpr uint32_t kProfilerApi = ort_abi::since::OrtEp::CreateProfiler;
inline constexpr uint32_t kExecutionModeApi = ort_abi::since::OrtApi::GetSessionExecutionMode;

// Not a slot but a habit: the first host that calls OrtEp::Sync after a replay. Under an older one the replay itself
// has to wait.
inline constexpr uint32_t kSyncAfterReplayHost = 28;
// Likewise: the first host known to give a fused node what graphs inside of its nodes read from outside (1.26 does
// not).
inline constexpr int kReadInsideHost = 28;

// What `base` offers. Throws std::runtime_error, saying what is wanted and what was found, if Encore can't run in it.
Ort offered_by(const OrtApiBase* base);

// Settles ort() for the process. May be called again, from any thread, by the same onnxruntime; another onnxruntime
// in the same process is refused. A failure settles nothing.
void negotiate(const OrtApiBase* base);

// Throws std::logic_error before the first successful negotiate().
const Ort& ort();

inline bool host_has(uint32_t api) { return ort().version >= api; }

}  // namespace encore::plugin
