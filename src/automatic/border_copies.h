// Copies of many tensors at once, as kernels of a graph. Each launch of it may find the tensors elsewhere.
#pragma once
#include <cstddef>
#include <span>
#include <vector>

#include "device/graph.h"

namespace encore::automatic {

struct BorderCopy {
  const void* from;
  void* to;
  size_t bytes;
  bool operator==(const BorderCopy&) const = default;
};

class BorderCopies {
 public:
  BorderCopies() = default;
  // Few kernels, whatever the number of copies, on a stream that captures. None may overlap another.
  BorderCopies(device::StreamRef stream, std::vector<BorderCopy> copies);
  // What the graph's launches from now on copy: as many, of the same sizes.
  void set(const device::GraphExec& exec, std::vector<BorderCopy> copies);

 private:
  std::vector<BorderCopy> copies_;
  std::vector<device::KernelNode> nodes_;
};

}  // namespace encore::automatic
