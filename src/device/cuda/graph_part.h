// Nodes that a library makes of its own for a graph, rather than launch what a stream captures.
#pragma once
#include <cuda_runtime.h>

#include "device/stream.h"

namespace encore::device::cuda {

// Whether it is such a stream that captures, into whose context libraries can't go.
bool captures_on_green(StreamRef stream);

class Part {
 public:
  Part();
  ~Part();
  Part(const Part&) = delete;
  cudaGraph_t graph() const { return graph_; }
  // As what the stream captures next.
  void add_to(StreamRef stream) const;

 private:
  cudaGraph_t graph_ = nullptr;
};

}  // namespace encore::device::cuda
