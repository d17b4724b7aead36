#include "plugin/host/api_version.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <mutex>
#include <stdexcept>
#include <string_view>
#include <utility>

namespace encore::plugin {
namespace {

static_assert(kSyncAfterReplayHost <= ort_abi::kNewestApi, "host_has() can't tell hosts newer than the tables apart");

struct HostVersion {
  int major;
  int minor;
};

// "1.31.1" and "1.26.0-dev" alike: what follows the minor number says nothing about the ABI.
HostVersion parse(std::string_view text) {
  HostVersion version{};
  const char* const end = text.data() + text.size();
  const auto major = std::from_chars(text.data(), end, version.major);
  if (major.ec == std::errc() && major.ptr != end && *major.ptr == '.') {
    const auto minor = std::from_chars(major.ptr + 1, end, version.minor);
    const bool ended = minor.ptr == end || *minor.ptr == '.' || *minor.ptr == '-' || *minor.ptr == '+';
    if (minor.ec == std::errc() && ended && version.major >= 0 && version.minor >= 0) return version;
  }
  throw std::runtime_error("Encore can't read the version of this onnxruntime: '" + std::string(text) + "'");
}

std::string wanted() { return "Encore needs onnxruntime 1." + std::to_string(kOldestApi) + " or newer"; }

// Never freed: onnxruntime may still call in while the process exits.
std::atomic<const Ort*> settled{nullptr};
std::mutex settling;

}  // namespace

Ort offered_by(const OrtApiBase* base) {
  if (base == nullptr) throw std::runtime_error("onnxruntime gave Encore no OrtApiBase");
  const char* const string = base->GetVersionString();
  Ort found{};
  found.text = string == nullptr ? "" : string;
  const HostVersion host = parse(found.text);
  if (host.major > 1) throw std::runtime_error(wanted() + " within 1.x; this is " + found.text);
  if (host.major < 1 || static_cast<uint32_t>(host.minor) < kOldestApi) {
    throw std::runtime_error(wanted() + "; this is " + found.text);
  }
  found.minor = host.minor;
  found.version = std::min(static_cast<uint32_t>(host.minor), ort_abi::kNewestApi);
  // Asking for more than the host has makes it print to stderr, so the version string comes first.
  found.api = base->GetApi(found.version);
  if (found.api != nullptr) found.ep = found.api->GetEpApi();
  if (found.ep == nullptr) {
    throw std::runtime_error("onnxruntime " + found.text + " refuses its own API version " +
                             std::to_string(found.version) + "; is it a complete build?");
  }
  return found;
}

void negotiate(const OrtApiBase* base) {
  const std::lock_guard lock(settling);
  Ort found = offered_by(base);
  const Ort* const before = settled.load(std::memory_order_relaxed);
  if (before == nullptr) {
    settled.store(new Ort(std::move(found)), std::memory_order_release);
  } else if (before->api != found.api) {
    throw std::runtime_error("Encore already serves onnxruntime " + before->text +
                             " in this process; give the second onnxruntime (" + found.text +
                             ") its own copy of the library file");
  }
}

const Ort& ort() {
  const Ort* const found = settled.load(std::memory_order_acquire);
  if (found == nullptr) throw std::logic_error("Encore used onnxruntime's API before negotiating its version");
  return *found;
}

}  // namespace encore::plugin
