#include "device/sort.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <span>

#include "device/graph.h"
#include "on_device.h"

namespace encore::device::tests {
namespace {

template <class Key>
struct Sorted {
  std::vector<Key> keys;
  std::vector<int32_t> places;
  bool operator==(const Sorted&) const = default;
};

template <class Key>
std::vector<Key> random_keys(size_t count, unsigned seed) {
  std::mt19937_64 random(seed);
  std::vector<Key> keys(count);
  for (Key& key : keys) key = Key(random() % 5 ? random() : 7);  // some of them many times
  return keys;
}

template <class Key>
Sorted<Key> by_host(const std::vector<Key>& keys, int bits) {
  const auto looked_at = [&](int32_t i) {
    return bits >= 64 ? uint64_t(keys[size_t(i)]) : uint64_t(keys[size_t(i)]) & ((uint64_t(1) << bits) - 1);
  };
  std::vector<int32_t> order(keys.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](int32_t a, int32_t b) { return looked_at(a) < looked_at(b); });
  Sorted<Key> sorted{{}, order};
  for (int32_t i : order) sorted.keys.push_back(keys[size_t(i)]);
  for (int32_t& place : sorted.places) place = 1000 - place;
  return sorted;
}

// On the device, captured and replayed with other contents.
template <class Key>
void check(size_t count, int bits) {
  Stream stream(0);
  std::vector<int32_t> places(count);
  for (size_t i = 0; i < count; ++i) places[i] = 1000 - int32_t(i);
  const SortPairs sort{int64_t(count), int(sizeof(Key)), bits};
  DeviceArray<Key> keys(random_keys<Key>(count, 1)), sorted_keys(count);
  DeviceArray<int32_t> from(places), to(count);
  DeviceArray<char> scratch(std::max<size_t>(sort_scratch(sort), 1));
  const auto run = [&] {
    sort_pairs(stream, sort, keys.data(), sorted_keys.data(), from.data(), to.data(), scratch.data());
  };
  const auto sorted = [&] { return Sorted<Key>{sorted_keys.download(stream), to.download(stream)}; };
  run();
  EXPECT_EQ(sorted(), by_host(random_keys<Key>(count, 1), bits));
  begin_capture(stream, CaptureMode::thread_local_);
  run();
  EXPECT_EQ(sort_scratch(sort), sort_scratch(sort)) << "asked while it captures";
  Graph graph = end_capture(stream);
  GraphExec exec = graph.instantiate();
  for (unsigned seed : {2u, 3u}) {
    keys.upload(stream, random_keys<Key>(count, seed));
    exec.launch(stream);
    EXPECT_EQ(sorted(), by_host(random_keys<Key>(count, seed), bits));
  }
}

TEST(Sort, of_each_size_of_keys) {
  for (size_t count : {1, 2, 1000, 100'000}) {
    check<uint32_t>(count, 32);
    check<uint64_t>(count, 64);
  }
}

TEST(Sort, looks_at_the_lowest_bits_alone) {
  check<uint32_t>(5000, 5);
  check<uint32_t>(5000, 8);
  check<uint64_t>(5000, 33);
}

TEST(Sort, of_nothing_is_no_launch) {
  Stream stream(0);
  sort_pairs(stream, {0, 4, 32}, nullptr, nullptr, nullptr, nullptr, nullptr);
  stream.ref().synchronize();
}

// Rows that differ in any of their words, or not at all.
std::vector<uint64_t> random_rows(size_t count, size_t words, unsigned seed) {
  std::mt19937_64 random(seed);
  std::vector<uint64_t> rows(count * words, ~uint64_t(0));
  for (size_t row = 0; row < count && words; ++row) rows[row * words + random() % words] -= random() % 3;
  return rows;
}

void check_rows(size_t count, size_t words) {
  Stream stream(0);
  std::vector<int32_t> places(count);
  for (size_t i = 0; i < count; ++i) places[i] = int32_t(count - 1 - i);
  DeviceArray<uint64_t> rows(random_rows(count, words, 1));
  DeviceArray<int32_t> sorted(places);
  const SortRows sort{rows.data(), int64_t(count), int64_t(words)};
  DeviceArray<char> scratch(std::max<size_t>(sort_scratch(sort), 1));
  const auto by_host = [&](unsigned seed) {
    const std::vector<uint64_t> all = random_rows(count, words, seed);
    const auto row = [&](int32_t place) { return std::span(all).subspan(size_t(place) * words, words); };
    std::vector<int32_t> order = places;
    std::ranges::stable_sort(
        order, [&](int32_t a, int32_t b) { return std::ranges::lexicographical_compare(row(a), row(b)); });
    return order;
  };
  sort_rows(stream, sort, sorted.data(), scratch.data());
  EXPECT_EQ(sorted.download(stream), by_host(1));
  begin_capture(stream, CaptureMode::thread_local_);
  sort_rows(stream, sort, sorted.data(), scratch.data());
  Graph graph = end_capture(stream);
  GraphExec exec = graph.instantiate();
  for (unsigned seed : {2u, 3u}) {
    rows.upload(stream, random_rows(count, words, seed));
    sorted.upload(stream, places);
    exec.launch(stream);
    EXPECT_EQ(sorted.download(stream), by_host(seed));
  }
}

TEST(SortRows, by_all_of_their_words) {
  for (size_t count : {1, 2, 1000, 30'000})
    for (size_t words : {1, 3, 17}) check_rows(count, words);
}

TEST(SortRows, without_words_stay_as_they_are) { check_rows(500, 0); }

TEST(SortRows, of_nothing_is_no_launch) {
  Stream stream(0);
  sort_rows(stream, {nullptr, 0, 3}, nullptr, nullptr);
  stream.ref().synchronize();
}

}  // namespace
}  // namespace encore::device::tests
