#include "device/copy_many.h"

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "device/launch.h"
#include "device/unaligned_pack.h"

namespace encore::device {

namespace {

constexpr int kFew = 4, kMany = 32;  // of a kernel, whose arguments they are: what fewer take is sooner set
constexpr int kThreads = 256;
constexpr int64_t kBlockBytes = kThreads * 4 * int64_t(sizeof(Granule));

// Of whole tensors, or of some in rows among them.
template <int kMost, bool kHasRows>
struct CopyMany {
  struct Whole {
    const char* from;
    char* to;
    int64_t bytes, first_block;
  };
  struct Rows : Whole {
    int64_t pitch, blocks_of_row;
  };
  using Part = std::conditional_t<kHasRows, Rows, Whole>;
  Part parts[kMost];
  int count = 0;

  // Returns how many blocks it takes.
  int64_t add(const Copy& copy, int64_t first_block) {
    Part& part = parts[count++];
    part.from = static_cast<const char*>(copy.from), part.to = static_cast<char*>(copy.to);
    part.bytes = int64_t(copy.bytes), part.first_block = first_block;
    const int64_t row = int64_t(copy.pitch ? copy.pitch : copy.bytes), blocks = (row + kBlockBytes - 1) / kBlockBytes;
    if constexpr (kHasRows) part.pitch = row, part.blocks_of_row = blocks;
    return int64_t(copy.rows) * blocks;
  }

  DEVICE_FN void operator()(Block<NoShared>& b, const NoShared&) const {
    int c = count - 1;
    while (parts[c].first_block > b.index()) --c;
    int64_t row = 0, block = b.index() - parts[c].first_block, pitch = parts[c].bytes;
    if constexpr (kHasRows) {
      row = block / parts[c].blocks_of_row;
      block -= row * parts[c].blocks_of_row;
      pitch = parts[c].pitch;
    }
    const char* const from = parts[c].from + row * parts[c].bytes;
    char* const to = parts[c].to + row * pitch;
    const int64_t begin = block * kBlockBytes, end = begin + kBlockBytes, bytes = parts[c].bytes;
    b.threads([&](int t, NoShared&) {
      move(from, to, begin, end < bytes ? end : bytes, t, b.size());
      if constexpr (kHasRows) move(nullptr, to, begin > bytes ? begin : bytes, end < pitch ? end : pitch, t, b.size());
    });
  }

 private:
  // Zeros, from nowhere.
  DEVICE_FN static void move(const char* from, char* to, int64_t begin, int64_t end, int t, int threads) {
    if (begin >= end) return;
    const auto bits =
        reinterpret_cast<uintptr_t>(from ? from + begin : nullptr) | reinterpret_cast<uintptr_t>(to + begin);
    if (bits % sizeof(Granule) == 0)
      move<Granule>(from, to, begin, end, t, threads);
    else if (kHasRows && bits % sizeof(uint64_t) == 0)
      move<uint64_t>(from, to, begin, end, t, threads);
    else
      move<char>(from, to, begin, end, t, threads);
  }
  // In units, and what is left of these in bytes.
  template <class Unit>
  DEVICE_FN static void move(const char* from, char* to, int64_t begin, int64_t end, int t, int threads) {
    constexpr int64_t kUnit = sizeof(Unit);
    const int64_t units_end = end - (end - begin) % kUnit;
    for (int64_t i = begin + t * kUnit; i < units_end; i += threads * kUnit)
      *reinterpret_cast<Unit*>(to + i) = from ? *reinterpret_cast<const Unit*>(from + i) : Unit{};
    for (int64_t i = units_end + t; i < end; i += threads) to[i] = from ? from[i] : char(0);
  }
};

template <int kMost, bool kHasRows, class Use>
void gather(std::span<const Copy> copies, const Use& use) {
  CopyMany<kMost, kHasRows> kernel{};
  int64_t blocks = 0;
  for (const Copy& copy : copies) blocks += kernel.add(copy, blocks);
  use(Blocks{blocks, kThreads}, kernel);
}

// Says use(grid, kernel) for each of the kernels that do the copies.
template <bool kHasRows, class Use>
void for_each_kernel(std::span<const Copy> copies, const Use& use) {
  if (copies.empty()) return;
  if (copies.size() <= kFew) return gather<kFew, kHasRows>(copies, use);
  const size_t next = std::min(copies.size(), size_t(kMany));
  gather<kMany, kHasRows>(copies.first(next), use);
  for_each_kernel<kHasRows>(copies.subspan(next), use);
}
template <class Use>
void for_each_kernel(std::span<const Copy> copies, const Use& use) {
  if (std::ranges::any_of(copies, [](const Copy& copy) { return copy.pitch > 0; }))
    for_each_kernel<true>(copies, use);
  else
    for_each_kernel<false>(copies, use);
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
