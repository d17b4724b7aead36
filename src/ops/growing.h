// Dimensions that grow from run to run, as those of masks of all keys so far, and of which no output tells.
#pragma once
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace encore::ops {

struct InputAxis {
  int input, axis;
  auto operator<=>(const InputAxis&) const = default;
};

// With zeros behind what there is, it may be as long as there is room, and outputs are the same to the bit.
struct GrowingDim {
  std::string name;
  std::vector<InputAxis> masks;  // have it
  // There is room for so many, and for no more than each of these is long.
  int64_t room = std::numeric_limits<int64_t>::max();
  std::vector<InputAxis> rooms = {};
  // As many are new, and as each of these is long. Where there are no others, it is a prompt, and stays as it is.
  int64_t fresh = 0;
  std::vector<InputAxis> news = {};
};

}  // namespace encore::ops
