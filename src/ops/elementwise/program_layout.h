// How the inputs of an elementwise program lie for packs of its outputs, whether it is interpreted or compiled.
#pragma once
#include <array>
#include <vector>

#include "ops/elementwise/index_space.h"
#include "ops/elementwise/program_arguments.h"
#include "ops/tensor.h"

namespace encore::ops {

struct ProgramLayout {
  // As the outputs do, one value for all, or otherwise.
  enum class Way : uint8_t { flat, single, walk };
  struct Input {
    int index;  // of the node
    const void* data;
    Type type;
    Way way;
    int walk;
    bool repeats;   // one value for all of a pack
    bool is_whole;  // each pack is aligned, and can be read at once
  };
  struct Walk {
    std::array<int64_t, kMostProgramDims> strides{}, shifts{};  // innermost first, as the sizes
    bool is_rolled = false;
  };
  int pack;
  int64_t packs;
  std::vector<int64_t> sizes;
  std::vector<Input> inputs;  // that are read; those that walk alike come one after the other
  std::vector<Walk> walks;

  // Of the inputs for which there is a tensor, whose part that is read the source says. The space has no more
  // dimensions than programs.
  ProgramLayout(int pack, const IndexSpace& space, const std::vector<const Tensor*>& tensors,
                const std::vector<Source>& sources);
};

}  // namespace encore::ops
