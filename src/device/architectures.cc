#include "device/architectures.h"

#include <algorithm>

#include "device/error.h"

namespace encore::device {

bool Architectures::serve(int capability) const {
  return std::ranges::any_of(
             machine, [&](int built) { return built / 100 == capability / 100 && built % 100 <= capability % 100; }) ||
         std::ranges::any_of(ptx, [&](int built) { return built <= capability; });
}

std::string Architectures::why_not(int capability, const char* which) const {
  if (serve(capability)) return {};
  std::string built;
  for (const int each : machine) built += text(built.empty() ? "" : ", ", dotted(each));
  for (const int each : ptx) built += text(built.empty() ? "" : ", ", dotted(each), " and later");
  const bool newer = std::ranges::all_of(machine, [&](int each) { return each < capability; });
  return text("this build of Encore has code for compute capability ", built, ", and ", which, " has ",
              dotted(capability),
              newer ? "; take a newer release, or build it for this GPU (CMAKE_CUDA_ARCHITECTURES=native)" : "");
}

std::string dotted(int capability) { return text(capability / 100, ".", capability % 100 / 10); }

}  // namespace encore::device
