// Which GPUs the code of a build runs on.
#pragma once
#include <string>
#include <string_view>

namespace encore::device {

struct Capability {
  int major = 0, minor = 0;
  auto operator<=>(const Capability&) const = default;
};

// `architectures` as CMake has them, with commas: "90-real" is machine code for compute capability 9.0, "90-virtual"
// PTX that a driver compiles for its GPU, "90" both; "90a" runs on 9.0 alone. Why none of it runs on a GPU of this
// capability, or nothing; `which` is the GPU, as "this one".
std::string why_no_code(std::string_view architectures, Capability has, std::string_view which);

}  // namespace encore::device
