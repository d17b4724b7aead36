// A green context that has all of a device. Its streams can do without the primary context's: what waits for the whole
// device does not meddle with their captures.
#pragma once
#include <cuda_runtime.h>

#include "device/cuda/graph_state.h"

namespace encore::device::cuda {

// Null where the driver has none.
cudaStream_t make_green_stream(int device);
bool has_green_streams(int device);
bool is_green(cudaStream_t stream);
// What was captured on such a stream is to run in the primary context, which is current: as fast, but a graph that is
// partly in one and partly in the other is not.
void leave_green_context(Graph::State& state);

}  // namespace encore::device::cuda
