// Allocation, places and copies.
#include "device/memory.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "device/device.h"
#include "on_device.h"

namespace encore::device {
namespace {

TEST(Memory, PlacesAreTold) {
  char* device = static_cast<char*>(allocate(0, 1000));
  char* pinned = static_cast<char*>(allocate_pinned(1000));
  std::vector<char> heap(1000);
  int local = 0;
  EXPECT_EQ(place_of(device), Place::device);
  EXPECT_EQ(place_of(device + 999), Place::device);
  EXPECT_EQ(place_of(pinned), Place::pinned);
  EXPECT_EQ(place_of(pinned + 999), Place::pinned);
  EXPECT_EQ(place_of(heap.data()), Place::host);
  EXPECT_EQ(place_of(&local), Place::host);
  EXPECT_EQ(place_of(nullptr), Place::host);
  free(0, device);
  free_pinned(pinned);
  EXPECT_EQ(place_of(device), Place::host);
  EXPECT_EQ(place_of(pinned), Place::host);
}

TEST(Memory, AllocationsAreApartAndAligned) {
  std::vector<char*> all;
  for (size_t bytes : {size_t(1), size_t(3), size_t(255), size_t(256), size_t(257), size_t(1) << 20}) {
    all.push_back(static_cast<char*>(allocate(0, bytes)));
    EXPECT_EQ(uintptr_t(all.back()) % 256, 0u) << bytes;
    EXPECT_EQ(place_of(all.back() + bytes - 1), Place::device);
  }
  std::vector<char*> sorted = all;
  std::sort(sorted.begin(), sorted.end());
  EXPECT_EQ(std::unique(sorted.begin(), sorted.end()), sorted.end());
  for (char* each : all) free(0, each);
}

TEST(Memory, NothingCanBeAllocatedAndFreed) {
  void* a = allocate(0, 0);
  void* b = allocate_pinned(0);
  free(0, a);
  free_pinned(b);
  free(0, nullptr);
  free_pinned(nullptr);
  Stream stream(0);
  free_async(stream, allocate_async(stream, 0));
  free_async(stream, nullptr);
  stream.ref().synchronize();
}

TEST(Memory, InfoCountsWhatIsAllocated) {
  const MemoryInfo before = memory_info(0);
  EXPECT_GT(before.total_bytes, 0u);
  EXPECT_LE(before.free_bytes, before.total_bytes);
  constexpr size_t kBytes = size_t(64) << 20;
  void* address = allocate(0, kBytes);
  const MemoryInfo after = memory_info(0);
  EXPECT_EQ(after.total_bytes, before.total_bytes);
  EXPECT_LE(after.free_bytes + kBytes / 2, before.free_bytes);
  free(0, address);
}

TEST(Memory, ExhaustionIsAnErrorAndPasses) {
  constexpr size_t kPetabyte = size_t(1) << 50;
  EXPECT_ERROR(allocate(0, kPetabyte), Code::out_of_memory);
  try {
    allocate(0, kPetabyte);
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(std::to_string(kPetabyte)), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("free"), std::string::npos) << error.what();
  }
  Stream stream(0);
  EXPECT_ERROR(allocate_async(stream, kPetabyte), Code::out_of_memory);
  DeviceArray<int> x(std::vector<int>{1, 2, 3});
  EXPECT_EQ(x.download(stream), (std::vector<int>{1, 2, 3}));
}

TEST(Memory, UnknownDeviceIsRefused) {
  EXPECT_ERROR(allocate(count(), 16), Code::no_device);
  EXPECT_ERROR(allocate(-1, 16), Code::no_device);
  EXPECT_ERROR(memory_info(count()), Code::no_device);
}

TEST(Memory, ForeignAddressesCannotBeFreed) {
  int local = 0;
  EXPECT_THROW(free(0, &local), Error);
  EXPECT_THROW(free_pinned(&local), Error);
  void* device = allocate(0, 64);
  EXPECT_THROW(free_pinned(device), Error);
  free(0, device);
  EXPECT_THROW(free(0, device), Error);
  void* pinned = allocate_pinned(64);
  free_pinned(pinned);
  EXPECT_THROW(free_pinned(pinned), Error);
}

// Copies between every two places, at odd offsets.
TEST(Memory, CopiesBetweenAllPlaces) {
  constexpr size_t kBytes = 100'003, kOffset = 13;
  Stream stream(0);
  struct End {
    const char* name;
    char* data;
  };
  std::vector<char> host_from(kBytes + 64), host_to(kBytes + 64);
  DeviceArray<char> device_from(kBytes + 64), device_to(kBytes + 64);
  PinnedArray<char> pinned_from(kBytes + 64), pinned_to(kBytes + 64);
  const End from[] = {{"host", host_from.data()}, {"pinned", pinned_from.data()}, {"device", device_from.data()}};
  const End to[] = {{"host", host_to.data()}, {"pinned", pinned_to.data()}, {"device", device_to.data()}};
  char seed = 1;
  for (const End& f : from)
    for (const End& t : to) {
      std::vector<char> values(kBytes), seen(kBytes + 2);
      std::iota(values.begin(), values.end(), ++seed);
      copy(stream, f.data + kOffset, values.data(), kBytes);
      copy(stream, t.data, std::vector<char>(kBytes + 64, 'x').data(), kBytes + 64);
      stream.ref().synchronize();
      copy(stream, t.data + 1, f.data + kOffset, kBytes);
      copy(stream, seen.data(), t.data, kBytes + 2);
      stream.ref().synchronize();
      EXPECT_EQ(seen.front(), 'x') << f.name << " to " << t.name;
      EXPECT_EQ(seen.back(), 'x') << f.name << " to " << t.name;
      EXPECT_EQ(std::memcmp(seen.data() + 1, values.data(), kBytes), 0) << f.name << " to " << t.name;
    }
}

TEST(Memory, CopiesNothing) {
  Stream stream(0);
  copy(stream, nullptr, nullptr, 0);
  fill(stream, nullptr, 0, 0);
  stream.ref().synchronize();
}

TEST(Memory, CopyBeyondTheEndIsRefused) {
  Stream stream(0);
  void* device = allocate(0, 4096);
  std::vector<char> host(size_t(64) << 20);
  EXPECT_THROW(copy(stream, device, host.data(), host.size()), Error);
  EXPECT_THROW(copy(stream, host.data(), device, host.size()), Error);
  clear_error(0);
  free(0, device);
}

TEST(Memory, PeerCopyWithinADevice) {
  Stream stream(0);
  DeviceArray<int> from(std::vector<int>{4, 5, 6}), to(3);
  copy_peer(stream, to.data(), 0, from.data(), 0, 12);
  EXPECT_EQ(to.download(stream), (std::vector<int>{4, 5, 6}));
}

TEST(Memory, Fills) {
  Stream stream(0);
  DeviceArray<unsigned char> x(std::vector<unsigned char>(300, 1));
  fill(stream, x.data() + 1, 0xab, 298);
  auto seen = x.download(stream);
  EXPECT_EQ(seen.front(), 1);
  EXPECT_EQ(seen.back(), 1);
  for (size_t i = 1; i < 299; ++i) ASSERT_EQ(seen[i], 0xab) << i;
  PinnedArray<unsigned char> y(8, 1);
  fill(stream, y.data(), 7, 8);
  stream.ref().synchronize();
  EXPECT_EQ(y[7], 7);
}

TEST(Pool, GivesMemoryInStreamOrder) {
  Stream stream(0);
  constexpr size_t kBytes = 1 << 16;
  std::vector<char> seen(kBytes);
  for (int i = 0; i < 50; ++i) {
    void* a = allocate_async(stream, kBytes);
    EXPECT_EQ(place_of(a), Place::device);
    EXPECT_EQ(uintptr_t(a) % 256, 0u);
    fill(stream, a, static_cast<unsigned char>(i), kBytes);
    void* b = allocate_async(stream, kBytes);
    copy(stream, b, a, kBytes);
    free_async(stream, a);
    copy(stream, seen.data(), b, kBytes);
    free_async(stream, b);
    stream.ref().synchronize();
    EXPECT_EQ(seen, std::vector<char>(kBytes, char(i)));
  }
  trim_pool(0, 0);
}

// What is freed in a stream can be allocated again there at once: this would need many times the device's memory.
TEST(Pool, ReusesWhatIsFreedOnTheStream) {
  Stream stream(0);
  const size_t bytes = std::min<size_t>(memory_info(0).free_bytes / 4, size_t(64) << 20);
  const size_t rounds = std::min<size_t>(4 * memory_info(0).total_bytes / bytes, 20);
  for (size_t i = 0; i < rounds; ++i) {
    void* address = allocate_async(stream, bytes);
    fill(stream, address, 1, 16);
    free_async(stream, address);
  }
  stream.ref().synchronize();
  trim_pool(0, 0);
}

constexpr size_t kMuch = size_t(64) << 20;

TEST(MemoryPool, KeepsNothingUnlessAsked) {
  Stream stream(0);
  MemoryPool pool(0, 0);
  EXPECT_EQ(pool.held_bytes(), 0u);
  void* address = pool.allocate(stream, kMuch);
  EXPECT_EQ(place_of(address), Place::device);
  EXPECT_EQ(uintptr_t(address) % 256, 0u);
  EXPECT_GE(pool.held_bytes(), kMuch);
  free_async(stream, address);
  stream.ref().synchronize();
  EXPECT_EQ(pool.held_bytes(), 0u);
}

TEST(MemoryPool, KeepsWhatItIsAskedTo) {
  Stream stream(0);
  MemoryPool pool(0, kMuch);
  for (void* address : {pool.allocate(stream, kMuch), pool.allocate(stream, kMuch)}) free_async(stream, address);
  stream.ref().synchronize();
  EXPECT_LE(pool.held_bytes(), kMuch);
  EXPECT_GE(pool.held_bytes(), kMuch / 2);
  const MemoryInfo before = memory_info(0);
  pool.trim(0);
  EXPECT_EQ(pool.held_bytes(), 0u);
  EXPECT_GE(memory_info(0).free_bytes, before.free_bytes + kMuch / 4) << "the driver has it back";
}

TEST(MemoryPool, GoesBeforeItsMemory) {
  Stream stream(0);
  const MemoryInfo before = memory_info(0);
  char* address;
  {
    MemoryPool pool(0, SIZE_MAX);
    address = static_cast<char*>(pool.allocate(stream, kMuch));
    free_async(stream, pool.allocate(stream, kMuch));
  }
  fill(stream, address, 7, kMuch);
  char seen = 0;
  copy(stream, &seen, address + kMuch - 1, 1);
  stream.ref().synchronize();
  EXPECT_EQ(seen, 7);
  free_async(stream, address);
  stream.ref().synchronize();
  EXPECT_GE(memory_info(0).free_bytes + kMuch / 2, before.free_bytes);
}

TEST(MemoryPool, MovesAndRefuses) {
  EXPECT_THROW(MemoryPool(count(), 0), Error);
  Stream stream(0);
  MemoryPool pool(0, 0), taken = std::move(pool);
  EXPECT_ERROR(taken.allocate(stream, size_t(1) << 50), Code::out_of_memory);
  free_async(stream, taken.allocate(stream, 1));
  stream.ref().synchronize();
}

TEST(Pool, MemoryCrossesStreamsBehindAnEvent) {
  Stream first(0), second(0);
  int* x = static_cast<int*>(allocate_async(first, 4));
  fill(first, x, 3, 4);
  Event ready(0);
  ready.record(first);
  second.ref().wait(ready);
  int seen = 0;
  copy(second, &seen, x, 4);
  free_async(second, x);
  second.ref().synchronize();
  EXPECT_EQ(seen, 0x03030303);
}

}  // namespace
}  // namespace encore::device
