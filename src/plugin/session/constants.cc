#include "plugin/session/constants.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <string_view>
#include <vector>

namespace encore::plugin {
namespace {

constexpr size_t kBeginning = size_t(4) << 10;
constexpr size_t kAtOnce = size_t(4) << 20;

// The size and a hash of the beginning.
std::pair<size_t, size_t> look_of(const ops::Tensor& constant) {
  const std::string_view beginning(static_cast<const char*>(constant.data), std::min(constant.bytes(), kBeginning));
  return {constant.bytes(), std::hash<std::string_view>()(beginning)};
}

bool holds(const void* block, const ops::Tensor& constant, const Constants::Read& read) {
  std::vector<char> held(std::min(constant.bytes(), kAtOnce));
  for (size_t at = 0; at < constant.bytes(); at += held.size()) {
    const size_t bytes = std::min(constant.bytes() - at, held.size());
    read(held.data(), static_cast<const char*>(block) + at, bytes);
    if (std::memcmp(held.data(), static_cast<const char*>(constant.data) + at, bytes) != 0) return false;
  }
  return true;
}

}  // namespace

Constants::Block Constants::find(const ops::Tensor& constant, const Read& read) {
  if (Block known = by_address_[{constant.data, constant.bytes()}].lock()) return known;
  const auto [first, last] = by_look_.equal_range(look_of(constant));
  for (auto similar = first; similar != last; ++similar) {
    Block block = similar->second.lock();
    if (!block || !holds(block.get(), constant, read)) continue;
    by_address_[{constant.data, constant.bytes()}] = block;
    return block;
  }
  return nullptr;
}

void Constants::add(const ops::Tensor& constant, const Block& block) {
  by_address_[{constant.data, constant.bytes()}] = block;
  by_look_.emplace(look_of(constant), block);
}

}  // namespace encore::plugin
