#include "device/copy_many.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "device/launch.h"
#include "device/unaligned_pack.h"

namespace encore::device {

namespace {

constexpr int kFew = 4, kMany = 32;  // of a kernel, whose arguments they are: what fewer take is sooner set
constexpr int kThreads = 256;
constexpr int64_t kBlockBytes = kThreads * 4 * int64_t(sizeof(Granule));

template <int kMost>
struct CopyMany {
  struct Part {
    const char* from;
    char* to;
    int64_t bytes, first_block;
  };
  Part parts[kMost];
  int count = 0;

  DEVICE_FN void operator()(Block<NoShared>& b, const NoShared&) const {
    int c = count - 1;
    while (parts[c].first_block > b.index()) --c;
    const char* const from = parts[c].from;
    char* const to = parts[c].to;
    const int64_t begin = (b.index() - parts[c].first_block) * kBlockBytes;
    const int64_t rest = parts[c].bytes - begin;
    const int64_t end = begin + (rest < kBlockBytes ? rest : kBlockBytes);
    const bool is_aligned =
        (reinterpret_cast<uintptr_t>(from) | reinterpret_cast<uintptr_t>(to)) % sizeof(Granule) == 0;
    const int64_t packs_end = is_aligned ? end - (end - begin) % int64_t(sizeof(Granule)) : begin;
    b.threads([&](int t, NoShared&) {
      for (int64_t i = begin + t * int64_t(sizeof(Granule)); i < packs_end; i += b.size() * int64_t(sizeof(Granule)))
        *reinterpret_cast<Granule*>(to + i) = *reinterpret_cast<const Granule*>(from + i);
      for (int64_t i = packs_end + t; i < end; i += b.size()) to[i] = from[i];
    });
  }
};

template <int kMost, class Use>
void gather(std::span<const Copy> copies, const Use& use) {
  CopyMany<kMost> kernel{};
  int64_t blocks = 0;
  for (const Copy& copy : copies) {
    kernel.parts[kernel.count++] = {static_cast<const char*>(copy.from), static_cast<char*>(copy.to),
                                    int64_t(copy.bytes), blocks};
    blocks += (int64_t(copy.bytes) + kBlockBytes - 1) / kBlockBytes;
  }
  use(Blocks{blocks, kThreads}, kernel);
}

// Says use(grid, kernel) for each of the kernels that do the copies.
template <class Use>
void for_each_kernel(std::span<const Copy> copies, const Use& use) {
  if (copies.empty()) return;
  if (copies.size() <= kFew) return gather<kFew>(copies, use);
  const size_t next = std::min(copies.size(), size_t(kMany));
  gather<kMany>(copies.first(next), use);
  for_each_kernel(copies.subspan(next), use);
}

}  // namespace

void copy_many(StreamRef stream, std::span<const Copy> copies) {
  for_each_kernel(copies,
                  [&](const Blocks& grid, const auto& kernel) { block_kernel<NoShared>(stream, grid, kernel); });
}

CapturedCopies::CapturedCopies(StreamRef stream, std::vector<Copy> copies) : copies_(std::move(copies)) {
  for_each_kernel(copies_, [&](const Blocks& grid, const auto& kernel) {
    block_kernel<NoShared>(stream, grid, kernel);
    nodes_.push_back(latest_kernel(stream));
  });
}

void CapturedCopies::set(const GraphExec& exec, std::vector<Copy> copies) {
  if (copies == copies_) return;
  copies_.clear();  // should one of the kernels not be set, all are the next time
  auto node = nodes_.begin();
  for_each_kernel(
      copies, [&](const Blocks& grid, const auto& kernel) { set_block_kernel<NoShared>(exec, *node++, grid, kernel); });
  copies_ = std::move(copies);
}

}  // namespace encore::device
