#include "device/launch.h"

#include <algorithm>

#include "device/cuda/capture.h"
#include "device/device.h"

namespace encore::device::cuda {

Blocks blocks_for(StreamRef stream, int64_t indices) {
  constexpr int kThreads = 256;
  const int64_t most = 32 * int64_t(multiprocessors(stream.device()));
  return {std::min((indices + kThreads - 1) / kThreads, most), kThreads};
}

void launch(StreamRef stream, const void* entry, Blocks grid, void** arguments, std::string_view kernel) {
  constexpr int64_t kMostBlocks = 0x7fffffff;
  if (grid.blocks > kMostBlocks) [[unlikely]]
    throw Error(Code::invalid_input, text("a launch cannot have ", grid.blocks, " blocks"), std::string(kernel));
  if (grid.threads < 32 || grid.threads > 1024 || grid.threads % 32 != 0) [[unlikely]]
    throw Error(Code::invalid_input,
                text("a block cannot have ", grid.threads, " threads: it takes a multiple of 32, at most 1024"),
                std::string(kernel));
  const cudaError_t result = cudaLaunchKernel(entry, dim3(unsigned(grid.blocks)), dim3(unsigned(grid.threads)),
                                              arguments, 0, static_cast<cudaStream_t>(stream.native()));
  if (result != cudaSuccess) [[unlikely]]
    raise(result, text("cudaLaunchKernel of ", kernel));
  note_capture(stream, kernel);
}

}  // namespace encore::device::cuda
