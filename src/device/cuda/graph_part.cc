#include "device/cuda/graph_part.h"

#include "device/cuda/capture.h"
#include "device/cuda/check.h"
#include "device/cuda/green_context.h"
#include "device/error.h"

namespace encore::device::cuda {

bool captures_on_green(StreamRef stream) {
  return captures_under_way != 0 && is_green(static_cast<cudaStream_t>(stream.native())) &&
         stream.capture_status() == CaptureStatus::active;
}

Part::Part() { check(cudaGraphCreate(&graph_, 0), "cudaGraphCreate"); }
Part::~Part() { report(cudaGraphDestroy(graph_), "cudaGraphDestroy"); }

void Part::add_to(StreamRef stream) const {
  note_capture(stream);  // what came before is no part of this
  const End end = end_of(stream);
  require(end.graph, "a part of a graph is to be captured, and the stream captures none");
  cudaGraphNode_t added = nullptr;
  check(cudaGraphAddChildGraphNode(&added, end.graph, end.last.data(), end.last.size(), graph_),
        "cudaGraphAddChildGraphNode");
  go_on_after(stream, {added});
}

}  // namespace encore::device::cuda
