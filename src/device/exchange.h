// Kernels of a graph that others do better, once these have been compiled.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "device/compiler.h"
#include "device/graph.h"

namespace encore::device {

struct Exchange {
  KernelNode node;
  std::shared_ptr<const CompiledKernel> kernel;
  int64_t count;
  std::vector<char> arguments;

  Exchange(KernelNode node, const CompiledLaunch& launch)
      : node(node), kernel(launch.kernel), count(launch.count), arguments(launch.arguments) {}
};
void apply(const GraphExec& exec, const Exchange& exchange);  // the back end's

// Those of an executable. They are made all at once, for each costs the next launch some microseconds.
class Exchanges {
 public:
  // Of nodes of the graph, which is kept until they are made.
  void await(std::vector<Exchange> exchanges, std::shared_ptr<const void> graph) {
    exchanges_ = std::move(exchanges);
    graph_ = std::move(graph);
    awaited_.store(!exchanges_.empty(), std::memory_order_release);
  }
  bool are_awaited() const { return awaited_.load(std::memory_order_acquire); }
  // Makes them if all kernels are settled. No other thread launches the executable meanwhile.
  void launch(const GraphExec& exec, const std::function<void()>& launch);

 private:
  std::atomic<bool> awaited_{false};
  std::mutex mutex_;  // guards the rest
  std::vector<Exchange> exchanges_;
  std::shared_ptr<const void> graph_;
};

}  // namespace encore::device
