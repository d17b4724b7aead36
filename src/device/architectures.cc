#include "device/architectures.h"

#include <algorithm>
#include <charconv>
#include <vector>

#include "device/error.h"

namespace encore::device {
namespace {

struct Architecture {
  Capability capability;
  bool machine_code, ptx;
  char within = 0;  // 'a': this very capability; 'f': its major version

  bool runs_on(Capability gpu) const {
    if (gpu < capability || (within == 'a' && gpu != capability)) return false;
    const bool same_family = gpu.major == capability.major;
    return same_family ? machine_code || ptx : ptx && !within;
  }
};

Architecture parse(std::string_view text) {
  const size_t dash = std::min(text.find('-'), text.size());
  const std::string_view kind = text.substr(dash), name = text.substr(0, dash);
  int number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  require(error == std::errc() && number >= 10, "'", text, "' is no CUDA architecture");
  Architecture parsed{{number / 10, number % 10}, kind != "-virtual", kind != "-real"};
  if (end != name.data() + name.size()) parsed.within = *end;
  return parsed;
}

std::string dotted(Capability capability) { return text(capability.major, ".", capability.minor); }

}  // namespace

std::string why_no_code(std::string_view architectures, Capability has, std::string_view which) {
  std::vector<Architecture> all;
  for (size_t at = 0; at <= architectures.size();) {
    const size_t end = std::min(architectures.find(',', at), architectures.size());
    all.push_back(parse(architectures.substr(at, end - at)));
    at = end + 1;
  }
  if (std::ranges::any_of(all, [&](const Architecture& one) { return one.runs_on(has); })) return {};
  const Capability oldest = std::ranges::min(all, {}, &Architecture::capability).capability;
  if (has < oldest)
    return text("this build of Encore needs a GPU of compute capability ", dotted(oldest), " or newer, and ", which,
                " has ", dotted(has));
  return text("this build of Encore has no code for compute capability ", dotted(has), ", which ", which,
              " has: it was built for ", architectures, "; build it with CMAKE_CUDA_ARCHITECTURES=", has.major,
              has.minor);
}

}  // namespace encore::device
