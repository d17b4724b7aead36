// Copies of many tensors at once, by one kernel or few: between places of the device, and from and to pinned memory.
#pragma once
#include <cstddef>
#include <span>
#include <vector>

#include "device/graph.h"

namespace encore::device {

struct Copy {
  const void* from;
  void* to;
  size_t bytes;
  // Or so many rows of these bytes, each with zeros behind it where it goes, up to the pitch.
  size_t pitch = 0, rows = 1;
  bool operator==(const Copy&) const = default;
};
// None may be empty, or overlap another.
void copy_many(StreamRef stream, std::span<const Copy> copies);

// The same as kernels of a graph, each launch of which may find the tensors elsewhere.
class CapturedCopies {
 public:
  CapturedCopies() = default;
  CapturedCopies(StreamRef stream, std::vector<Copy> copies);  // the stream captures
  // What the graph's launches from now on copy: as many, each of which fills as much.
  void set(const GraphExec& exec, std::vector<Copy> copies);

 private:
  std::vector<Copy> copies_;
  std::vector<KernelNode> nodes_;
};

}  // namespace encore::device
