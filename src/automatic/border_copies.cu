#include "automatic/border_copies.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "device/launch.h"
#include "device/unaligned_pack.h"

namespace encore::automatic {

namespace {

using device::Granule;

constexpr int kFew = 4, kMany = 32;  // of a kernel, whose arguments they are: what fewer take is sooner set
constexpr int kThreads = 256;
constexpr int64_t kBlockBytes = kThreads * 4 * int64_t(sizeof(Granule));

template <int kMost>
struct CopyMany {
  struct Copy {
    const char* from;
    char* to;
    int64_t bytes, first_block;
  };
  Copy copies[kMost];
  int count = 0;

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

template <int kMost, class Use>
void gather(std::span<const BorderCopy> copies, const Use& use) {
  CopyMany<kMost> kernel{};
  int64_t blocks = 0;
  for (const BorderCopy& copy : copies) {
    kernel.copies[kernel.count++] = {static_cast<const char*>(copy.from), static_cast<char*>(copy.to),
                                     int64_t(copy.bytes), blocks};
    blocks += (int64_t(copy.bytes) + kBlockBytes - 1) / kBlockBytes;
  }
  use(device::Blocks{blocks, kThreads}, kernel);
}

// Says use(grid, kernel) for each of the kernels that do the copies.
template <class Use>
void for_each_kernel(std::span<const BorderCopy> copies, const Use& use) {
  if (copies.empty()) return;
  if (copies.size() <= kFew) return gather<kFew>(copies, use);
  const size_t next = std::min(copies.size(), size_t(kMany));
  gather<kMany>(copies.first(next), use);
  for_each_kernel(copies.subspan(next), use);
}

}  // namespace

BorderCopies::BorderCopies(device::StreamRef stream, std::vector<BorderCopy> copies) : copies_(std::move(copies)) {
  for_each_kernel(copies_, [&](const device::Blocks& grid, const auto& kernel) {
    device::block_kernel<device::NoShared>(stream, grid, kernel);
    nodes_.push_back(device::latest_kernel(stream));
  });
}

void BorderCopies::set(const device::GraphExec& exec, std::vector<BorderCopy> copies) {
  if (copies == copies_) return;
  copies_.clear();  // should one of the kernels not be set, all are the next time
  auto node = nodes_.begin();
  for_each_kernel(copies, [&](const device::Blocks& grid, const auto& kernel) {
    device::set_block_kernel<device::NoShared>(exec, *node++, grid, kernel);
  });
  copies_ = std::move(copies);
}

}  // namespace encore::automatic
