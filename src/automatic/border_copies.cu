#include "automatic/border_copies.h"

#include <algorithm>
#include <cstdint>

#include "device/launch.h"
#include "device/unaligned_pack.h"

namespace encore::automatic {

namespace {

using device::Granule;

constexpr int kMostCopies = 32;  // a launch, whose arguments they are
constexpr int kThreads = 256;
constexpr int64_t kBlockBytes = kThreads * 4 * int64_t(sizeof(Granule));

struct CopyMany {
  struct Copy {
    const char* from;
    char* to;
    int64_t bytes, first_block;
  };
  Copy copies[kMostCopies];
  int count;

  DEVICE_FN void operator()(device::Block<device::NoShared>& b, const device::NoShared&) const {
    int c = count - 1;
    while (copies[c].first_block > b.index()) --c;
    const char* const from = copies[c].from;
    char* const to = copies[c].to;
    const int64_t begin = (b.index() - copies[c].first_block) * kBlockBytes;
    const int64_t rest = copies[c].bytes - begin;
    const int64_t end = begin + (rest < kBlockBytes ? rest : kBlockBytes);
    const bool is_aligned =
        (reinterpret_cast<uintptr_t>(from) | reinterpret_cast<uintptr_t>(to)) % sizeof(Granule) == 0;
    const int64_t packs_end = is_aligned ? end - (end - begin) % int64_t(sizeof(Granule)) : begin;
    b.threads([&](int t, device::NoShared&) {
      for (int64_t i = begin + t * int64_t(sizeof(Granule)); i < packs_end; i += b.size() * int64_t(sizeof(Granule)))
        *reinterpret_cast<Granule*>(to + i) = *reinterpret_cast<const Granule*>(from + i);
      for (int64_t i = packs_end + t; i < end; i += b.size()) to[i] = from[i];
    });
  }
};

}  // namespace

void copy_all(device::StreamRef stream, std::span<const BorderCopy> copies) {
  CopyMany many{};
  int64_t blocks = 0;
  const auto launch = [&] {
    device::block_kernel<device::NoShared>(stream, {blocks, kThreads}, many);
    many.count = 0, blocks = 0;
  };
  for (const BorderCopy& copy : copies) {
    if (copy.bytes == 0) continue;
    many.copies[many.count++] = {static_cast<const char*>(copy.from), static_cast<char*>(copy.to), int64_t(copy.bytes),
                                 blocks};
    blocks += (int64_t(copy.bytes) + kBlockBytes - 1) / kBlockBytes;
    if (many.count == kMostCopies) launch();
  }
  if (many.count) launch();
}

}  // namespace encore::automatic
