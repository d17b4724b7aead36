// Fills inside of graphs. A graph of nothing but kernels costs the host the same to launch however many they are; fills
// among them, which libraries like to have, make every launch dearer.
#pragma once
#include "device/cuda/graph_state.h"

namespace encore::device::cuda {

// Makes kernels of a captured graph's fills of neighbouring bytes, whose notes say what they were, and leaves out those
// that are needless.
void fill_by_kernels(Graph::State& state);

}  // namespace encore::device::cuda
