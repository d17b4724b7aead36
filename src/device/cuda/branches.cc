#include "device/branches.h"

#include "device/cuda/capture.h"

namespace encore::device {

bool may_branch(StreamRef stream) {
  return cuda::captures_under_way != 0 && !cuda::bodies_open && stream.capture_status() == CaptureStatus::active;
}

CaptureEnd capture_end(StreamRef stream) {
  cuda::note_capture(stream);  // which looks back from here
  CaptureEnd end;
  for (const cudaGraphNode_t node : cuda::end_of(stream).last)
    end.nodes.push_back(reinterpret_cast<std::intptr_t>(node));
  return end;
}

void go_on_after(StreamRef stream, const CaptureEnd& end) {
  std::vector<cudaGraphNode_t> nodes;
  for (const std::intptr_t node : end.nodes) nodes.push_back(reinterpret_cast<cudaGraphNode_t>(node));
  cuda::go_on_after(stream, nodes);
}

}  // namespace encore::device
