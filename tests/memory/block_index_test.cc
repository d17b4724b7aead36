#include "memory/block_index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

namespace encore::memory {
namespace {

char* at(size_t address) { return reinterpret_cast<char*>(address); }

TEST(BlockIndex, takes_the_smallest_block_that_fits) {
  BlockIndex index;
  index.add(at(0x10000), 4096);
  index.add(at(0x20000), 1024);
  index.add(at(0x30000), 2048);
  EXPECT_EQ(index.take(768)->address, at(0x20000));
  EXPECT_EQ(index.take(2048)->address, at(0x30000));
  EXPECT_EQ(index.take(256)->address, at(0x20000 + 768));
  EXPECT_EQ(index.take(256)->address, at(0x10000));
  EXPECT_EQ(index.take(4096), nullptr);
  EXPECT_EQ(index.free_bytes(), 4096u - 256u);
  EXPECT_EQ(index.largest_free_bytes(), 4096u - 256u);
}

TEST(BlockIndex, finds_blocks_of_nearly_the_same_size) {  // which share a bin
  BlockIndex index;
  index.add(at(0x1000000), 256 * 1000);
  index.add(at(0x2000000), 256 * 1003);
  index.add(at(0x3000000), 256 * 1001);
  EXPECT_EQ(index.take(256 * 1002)->address, at(0x2000000));
  EXPECT_EQ(index.take(256 * 1001)->address, at(0x3000000));
  EXPECT_EQ(index.take(256 * 1001), nullptr);
  EXPECT_EQ(index.take(256 * 999)->address, at(0x1000000));
}

TEST(BlockIndex, joins_with_both_neighbours) {
  BlockIndex index;
  index.add(at(0x10000), 1024);
  Block *a = index.take(256), *b = index.take(256), *c = index.take(256), *d = index.take(256);
  index.put(a);
  index.put(c);
  EXPECT_EQ(index.largest_free_bytes(), 256u);
  EXPECT_FALSE(index.has_empty_chunk());
  index.put(b);
  EXPECT_EQ(index.largest_free_bytes(), 768u);
  index.put(d);
  EXPECT_TRUE(index.has_empty_chunk());
  EXPECT_EQ(index.take(1024)->address, at(0x10000));
}

TEST(BlockIndex, never_joins_two_chunks) {
  BlockIndex index;
  index.add(at(0x10000), 1024);
  index.add(at(0x10400), 1024);  // adjacent by chance
  EXPECT_EQ(index.take(2048), nullptr);
  Block* block = index.take(1024);
  index.put(block);
  EXPECT_EQ(index.take(2048), nullptr);
}

TEST(BlockIndex, removes_only_empty_chunks) {
  BlockIndex index;
  index.add(at(0x10000), 1024);
  index.add(at(0x20000), 2048);
  index.add(at(0x30000), 4096);
  Block* used = index.take(2048);
  std::vector<char*> released;
  EXPECT_EQ(index.remove_empty([&](char* chunk, size_t) { return released.push_back(chunk), true; }), 5120u);
  std::ranges::sort(released);
  EXPECT_EQ(released, (std::vector{at(0x10000), at(0x30000)}));
  EXPECT_EQ(index.free_bytes(), 0u);
  index.put(used);
  EXPECT_EQ(index.remove_empty([](char*, size_t) { return true; }), 2048u);
  EXPECT_EQ(index.take(256), nullptr);
}

TEST(BlockIndex, leaves_chunks_that_nobody_wants) {
  BlockIndex index;
  index.add(at(0x10000), 1024);
  index.add(at(0x20000), 2048);
  EXPECT_EQ(index.remove_empty([](char*, size_t bytes) { return bytes > 1024; }), 2048u);
  EXPECT_EQ(index.free_bytes(), 1024u);
}

TEST(BlockIndex, wastes_no_more_than_it_may) {
  BlockIndex index;
  index.add(at(0x10000), 2048);
  Block* whole = index.take(1536, 512);
  EXPECT_EQ(whole->bytes, 2048u);
  index.put(whole);
  EXPECT_EQ(index.free_bytes(), 2048u);
  Block* cut = index.take(1536, 256);
  EXPECT_EQ(cut->bytes, 1536u) << "512 left are more than may be dead";
  index.put(cut);
  EXPECT_EQ(index.take(1024, 4096)->bytes, 1024u) << "as much left as taken is never dead";
}

TEST(BlockIndex, takes_sizes_of_any_magnitude) {
  BlockIndex index;
  const size_t most = size_t(1) << 60;
  index.add(at(256), most);
  for (size_t bytes = 256; bytes <= most / 4; bytes *= 2) {
    for (size_t wanted : {bytes, bytes + 256, bytes + bytes / 2 / 256 * 256}) {
      Block* block = index.take(wanted);
      ASSERT_TRUE(block);
      EXPECT_EQ(block->bytes, wanted);
      index.put(block);
    }
  }
  EXPECT_EQ(index.take(most + 256), nullptr);
  EXPECT_EQ(index.take(SIZE_MAX / 256 * 256), nullptr);
  EXPECT_EQ(index.free_bytes(), most);
}

// The obvious way to do it: free ranges by address.
class Naive {
 public:
  void add(char* address, size_t bytes) {
    free_[address] = bytes;
    chunks_.push_back({address, address + bytes});
  }
  size_t best_fit(size_t bytes) const {  // its size; zero if nothing fits
    size_t best = 0;
    for (auto& [address, size] : free_)
      if (size >= bytes && (best == 0 || size < best)) best = size;
    return best;
  }
  // The free range which begins here is cut.
  void take(char* address, size_t bytes) {
    const size_t size = free_.at(address);
    free_.erase(address);
    if (size > bytes) free_[address + bytes] = size - bytes;
  }
  void put(char* address, size_t bytes) {
    const bool starts_chunk = std::ranges::any_of(chunks_, [&](auto& c) { return c.first == address; });
    const bool ends_chunk = std::ranges::any_of(chunks_, [&](auto& c) { return c.second == address + bytes; });
    if (auto after = free_.find(address + bytes); !ends_chunk && after != free_.end()) {
      bytes += after->second;
      free_.erase(after);
    }
    if (auto before = free_.lower_bound(address); !starts_chunk && before != free_.begin()) {
      --before;
      if (before->first + before->second == address) {
        before->second += bytes;
        return;
      }
    }
    free_[address] = bytes;
  }
  size_t size_at(char* address) const {
    const auto found = free_.find(address);
    return found == free_.end() ? 0 : found->second;
  }
  size_t total() const {
    size_t total = 0;
    for (auto& [address, size] : free_) total += size;
    return total;
  }
  size_t largest() const {
    size_t largest = 0;
    for (auto& [address, size] : free_) largest = std::max(largest, size);
    return largest;
  }

 private:
  std::map<char*, size_t> free_;
  std::vector<std::pair<char*, char*>> chunks_;
};

TEST(BlockIndex, does_as_the_naive_one_does) {
  for (unsigned seed = 1; seed <= 20; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](size_t n) { return size_t(random() % n); };
    BlockIndex index;
    Naive naive;
    size_t next_chunk = 0x100000, all = 0;
    std::vector<Block*> used;
    for (int step = 0; step < 4000; ++step) {
      const size_t bytes = 256 * (1 + (below(4) ? below(12) : below(300)));
      const bool growing = step % 800 < 400;
      if (used.empty() || below(100) < (growing ? 65u : 35u)) {
        Block* block = index.take(bytes);
        const size_t expected = naive.best_fit(bytes);
        if (!block) {
          ASSERT_EQ(expected, 0u);
          const size_t chunk = std::max(bytes, 256 * (64 + below(64)));
          index.add(at(next_chunk), chunk);
          naive.add(at(next_chunk), chunk);
          next_chunk += chunk + (below(2) ? 0 : 4096);
          all += chunk;
          continue;
        }
        ASSERT_EQ(block->bytes, bytes);
        ASSERT_EQ(naive.size_at(block->address), expected) << "not a best fit";
        naive.take(block->address, bytes);
        used.push_back(block);
      } else {
        const size_t which = below(used.size());
        naive.put(used[which]->address, used[which]->bytes);
        index.put(used[which]);
        used[which] = used.back();
        used.pop_back();
      }
      ASSERT_EQ(index.free_bytes(), naive.total());
      if (step % 50 == 0) {
        ASSERT_EQ(index.largest_free_bytes(), naive.largest());
      }
    }
    for (Block* block : used) index.put(block);
    EXPECT_EQ(index.remove_empty([](char*, size_t) { return true; }), all)
        << "after all is put back, all chunks are whole";
  }
}

}  // namespace
}  // namespace encore::memory
