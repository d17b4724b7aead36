// For which GPUs a library of kernels has code. A compute capability is a number here: 900 is 9.0.
#pragma once
#include <string>
#include <vector>

namespace encore::device {

struct Architectures {
  std::vector<int> machine;  // machine code, which serves later minor versions too
  std::vector<int> ptx;      // which the driver compiles for all that is later

  bool serve(int capability) const;
  // For a person; `which` is the GPU in the sentence. Empty if they do serve it.
  std::string why_not(int capability, const char* which) const;
};

std::string dotted(int capability);  // "9.0"

}  // namespace encore::device
