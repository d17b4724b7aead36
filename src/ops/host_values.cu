#include "ops/host_values.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "device/launch.h"

namespace encore::ops {
namespace {

struct StoreValues {
  static constexpr size_t kMost = 512;
  int32_t* to;
  int32_t value[kMost];
  DEVICE_FN void operator()(int64_t i) const { to[i] = value[i]; }
};

}  // namespace

void store(device::StreamRef stream, std::span<const int32_t> values, int32_t* to) {
  for (size_t first = 0; first < values.size(); first += StoreValues::kMost) {
    const size_t some = std::min(StoreValues::kMost, values.size() - first);
    StoreValues store{to + first, {}};
    std::ranges::copy(values.subspan(first, some), store.value);
    device::for_each_index(stream, int64_t(some), store);
  }
}

void store(device::StreamRef stream, const Tensor& on_host, void* to) {
  std::vector<int32_t> words(whole_words(on_host.bytes()) / sizeof(int32_t));
  if (!words.empty()) std::memcpy(words.data(), on_host.data, on_host.bytes());
  store(stream, words, static_cast<int32_t*>(to));
}

const int32_t* on_device(Context& context, std::span<const int32_t> values) {
  auto* const to = static_cast<int32_t*>(context.scratch(values.size_bytes()));
  store(context.stream(), values, to);
  return to;
}

}  // namespace encore::ops
