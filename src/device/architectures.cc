#include "device/architectures.h"

#include <algorithm>

#include "device/error.h"

namespace encore::device {
namespace {
constexpr int kOldest = 800, kJetson = 870;
}

int Architectures::used_on(int capability) const {
  int used = 0;
  for (const int built : machine)
    if (built / 100 == capability / 100 && built <= capability && (capability != kJetson || built == kJetson))
      used = std::max(used, built);
  if (used != 0) return used;
  for (const int built : ptx)
    if (built <= capability) used = std::max(used, built);
  return used;
}

std::string Architectures::why_not(int capability, const char* which) const {
  if (serve(capability)) return {};
  std::string built;
  for (const int each : machine) built += text(built.empty() ? "" : ", ", dotted(each));
  for (const int each : ptx) built += text(built.empty() ? "" : ", ", dotted(each), " and later");
  const bool newer = std::ranges::all_of(machine, [&](int each) { return each < capability; });
  return text("this build of Encore has code for compute capability ", built, ", and ", which, " has ",
              dotted(capability), "; ",
              capability < kOldest ? text("Encore needs ", dotted(kOldest), " (Ampere) or later")
                                   : text(newer ? "take a newer release, or " : "",
                                          "build it for this GPU (CMAKE_CUDA_ARCHITECTURES=native)"));
}

std::string dotted(int capability) { return text(capability / 100, ".", capability % 100 / 10); }

}  // namespace encore::device
