// What tells of the data of graphs' edges, as programmatic launches have it: CUDA 12 has these calls under other names.
#pragma once
#include <cuda_runtime.h>

namespace encore::device::cuda {

#if CUDART_VERSION >= 13000
inline constexpr auto get_capture_info = cudaStreamGetCaptureInfo;
inline constexpr auto get_dependencies = cudaGraphNodeGetDependencies;
inline constexpr auto get_dependents = cudaGraphNodeGetDependentNodes;
inline constexpr auto add_dependencies = cudaGraphAddDependencies;
inline constexpr auto add_node = cudaGraphAddNode;
inline constexpr auto update_capture_dependencies = cudaStreamUpdateCaptureDependencies;
#else
inline constexpr auto get_capture_info = cudaStreamGetCaptureInfo_v3;
inline constexpr auto get_dependencies = cudaGraphNodeGetDependencies_v2;
inline constexpr auto get_dependents = cudaGraphNodeGetDependentNodes_v2;
inline constexpr auto add_dependencies = cudaGraphAddDependencies_v2;
inline constexpr auto add_node = cudaGraphAddNode_v2;
inline constexpr auto update_capture_dependencies = cudaStreamUpdateCaptureDependencies_v2;
#endif

}  // namespace encore::device::cuda
