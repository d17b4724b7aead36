#pragma once
#include <vector>

#include "device/cuda/capture.h"
#include "device/exchange.h"
#include "device/graph.h"

namespace encore::device {

struct Graph::State {
  explicit State(cudaGraph_t graph) : graph(graph) {}
  ~State();
  State(const State&) = delete;

  cudaGraph_t graph;
  cuda::Notes notes;
  std::vector<Exchange> exchanges;
};

struct GraphExec::State {
  explicit State(cudaGraphExec_t exec) : exec(exec) {}
  ~State();
  State(const State&) = delete;

  cudaGraphExec_t exec;
  Exchanges exchanges;
};

}  // namespace encore::device
