// For which GPUs a library of kernels has code. A compute capability is a number here: 900 is 9.0.
#pragma once
#include <string>
#include <vector>

namespace encore::device {

struct Architectures {
  std::vector<int> machine;  // machine code, which serves later minor versions too, but for Jetson's 8.7
  std::vector<int> ptx;      // which the driver compiles for all that is later

  // What the code was compiled for that such a GPU runs; 0: there is none.
  int used_on(int capability) const;
  bool serve(int capability) const { return used_on(capability) != 0; }
  // For a person; `which` is the GPU in the sentence. Empty if they do serve it.
  std::string why_not(int capability, const char* which) const;
};

std::string dotted(int capability);  // "9.0"

}  // namespace encore::device
