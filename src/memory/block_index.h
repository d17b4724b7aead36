// The free blocks of some chunks of memory: best fit, split when taken, joined with free neighbours when put back. It
// only counts addresses and never touches the memory.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>

namespace encore::memory {

inline constexpr size_t kAlignment = 256;
// Whole units of kAlignment. SIZE_MAX, which nobody has, if there are none.
inline size_t whole_units(size_t bytes) {
  return bytes > SIZE_MAX - kAlignment ? SIZE_MAX : (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

struct Block {
  char* address = nullptr;
  size_t bytes = 0;
  bool used = false;
  Block *before = nullptr, *after = nullptr;   // neighbours in the chunk
  Block *previous = nullptr, *next = nullptr;  // in the bin, while free
};

// Not thread-safe.
class BlockIndex {
 public:
  BlockIndex() = default;
  BlockIndex(const BlockIndex&) = delete;

  // A new chunk, all free. Here and below, bytes are multiples of kAlignment and not zero.
  void add(char* chunk, size_t bytes);
  // The smallest free block that is large enough, cut to size; null if there is none. Valid until it is put back. Not
  // cut if that would leave at most `dead_bytes`, and less than is taken.
  Block* take(size_t bytes, size_t dead_bytes = 0);
  void put(Block* block);
  // Offers every chunk without a used block to `take`; those for which it answers true leave the index. Returns their
  // bytes.
  size_t remove_empty(const std::function<bool(char* chunk, size_t bytes)>& take);

  bool has_empty_chunk() const;
  size_t free_bytes() const { return free_bytes_; }
  size_t largest_free_bytes() const;

 private:
  // Eight bins to a power of two, counted in units of kAlignment; below sixteen units every size has its own.
  static constexpr int kBins = 448;
  static int bin_of(size_t bytes);
  int next_filled(int bin) const;  // kBins if there is none
  static bool is_empty_chunk(const Block& block) { return !block.used && !block.before && !block.after; }

  void list(Block* block);
  void unlist(Block* block);
  Block* make_block();
  void drop(Block* block);

  std::array<Block*, kBins> bins_{};
  std::array<uint64_t, kBins / 64> filled_{};  // a bit for each bin
  size_t free_bytes_ = 0;
  std::deque<Block> blocks_;
  Block* spare_ = nullptr;  // of blocks_, linked by next
};

}  // namespace encore::memory
