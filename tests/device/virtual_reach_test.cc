// What the host and kernels of the virtual GPU reach of each other's memory.
#ifdef ENCORE_VIRTUAL
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "kernels.h"

namespace encore::device::tests {
namespace {

// What a real GPU makes a fault of ends this process too.
class VirtualReach : public testing::Test {
 protected:
  VirtualReach() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};
using VirtualReachDeathTest = VirtualReach;

TEST_F(VirtualReachDeathTest, DeviceMemoryIsNotTheHosts) {
  Stream stream(0);
  int* const driver = static_cast<int*>(allocate(0, 4));
  int* const pooled = static_cast<int*>(allocate_async(stream, 4));
  fill(stream, driver, 1, 4);
  fill(stream, pooled, 1, 4);
  stream.ref().synchronize();
  int seen = 0;
  for (int* address : {driver, pooled}) {
    EXPECT_DEATH(seen = *static_cast<volatile int*>(address), "");
    EXPECT_DEATH(*static_cast<volatile int*>(address) = 2, "");
    EXPECT_DEATH(std::memcpy(&seen, address, 4), "");
    copy(stream, &seen, address, 4);
    EXPECT_EQ(seen, 0x01010101);
  }
  free_async(stream, pooled);
  free(0, driver);
}

TEST_F(VirtualReachDeathTest, DeviceMemoryIsNotTheHostsWhileAKernelRuns) {
  Stream stream(0);
  DeviceArray<int> x(std::vector<int>{1});
  Gate gate;
  EXPECT_DEATH(
      {
        gate.close(stream);
        *static_cast<volatile int*>(x.data()) = 2;
      },
      "");
}

TEST_F(VirtualReachDeathTest, KernelsReachPinnedMemoryAlone) {
  std::vector<int> heap = {1, 2, 3};
  int local = 4;
  Stream stream(0);
  DeviceArray<int> x(3);
  for (int* from : {heap.data(), &local})
    EXPECT_DEATH(
        {
          for_each_index(stream, 1, CopyTo{x.data(), from});
          stream.ref().synchronize();
        },
        "");
  EXPECT_DEATH(
      {
        for_each_index(stream, 1, CopyTo{heap.data(), x.data()});
        stream.ref().synchronize();
      },
      "");
  PinnedArray<int> pinned(3, 5);
  for_each_index(stream, 3, CopyTo{x.data(), pinned.data()});
  EXPECT_EQ(x.download(stream), (std::vector<int>{5, 5, 5}));
}

#if defined(__SANITIZE_ADDRESS__)
TEST_F(VirtualReachDeathTest, KernelsKeepWithinTheirMemory) {
  Stream stream(0);
  const auto set = [&](int* address) {
    for_each_index(stream, 1, Set{address, 1});
    stream.ref().synchronize();
  };
  DeviceArray<int> x(65), y(65);
  set(x.data() + 64);
  for (int past : {65, 66, 64 + 32}) EXPECT_DEATH(set(x.data() + past), "use-after-poison");
  EXPECT_DEATH(set(x.data() - 1), "use-after-poison");
  int* const freed = x.data();
  x = DeviceArray<int>(65);
  EXPECT_DEATH(set(freed), "use-after-poison");
  int* const pooled = static_cast<int*>(allocate_async(stream, 4));
  set(pooled);
  free_async(stream, pooled);
  EXPECT_DEATH(set(pooled), "use-after-poison");
}
#endif

// A functor may hold numbers of any size, and words of which nobody wrote all bytes.
struct Numbers {
  int64_t* y;
  int64_t values[5];
  int32_t half, unwritten;
  void operator()(int64_t i) const { y[i] = i < 5 ? values[i] : int64_t(half); }
};

TEST_F(VirtualReach, NumbersArriveAsTheyAre) {
  Stream stream(0);
  DeviceArray<int64_t> y(6);
  const std::vector<int> heap(1);
  const int64_t sizes = int64_t(uintptr_t(y.data()) >> 32 << 32) | 32570;  // a pair, of which one looks like an address
  for (const void* pointer : {static_cast<const void*>(heap.data()), static_cast<const void*>(y.data())}) {
    const auto lower = int32_t(uintptr_t(pointer)), upper = int32_t(uintptr_t(pointer) >> 32);
    for_each_index(stream, 6, Numbers{y.data(), {0, -1, INT64_MAX, INT64_MIN, sizes}, lower, upper});
    EXPECT_EQ(y.download(stream), (std::vector<int64_t>{0, -1, INT64_MAX, INT64_MIN, sizes, lower}));
  }
}

// Whatever the host has beside the names: the system tends to put it right below them.
TEST_F(VirtualReach, SizesWithTheUpperHalfOfANameStayAsTheyAre) {
  constexpr size_t kHost = size_t(5) << 30, kApart = size_t(64) << 20;
  Stream stream(0);
  DeviceArray<int64_t> y(6);
  void* const host = mmap(nullptr, kHost, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(host, MAP_FAILED);
  const uintptr_t end = (uintptr_t(host) + kHost) / kApart * kApart;
  for (uintptr_t at = end - kApart; at > uintptr_t(host); at -= kApart) *reinterpret_cast<volatile char*>(at) = 1;
  for (uintptr_t lower = 0; lower <= INT32_MAX; lower += kApart) {
    const auto sizes = int64_t(uintptr_t(y.data()) >> 32 << 32 | lower);
    for_each_index(stream, 6, Numbers{y.data(), {sizes, 1, 2, 3, 4}, 5, 0});
    EXPECT_EQ(y.download(stream), (std::vector<int64_t>{sizes, 1, 2, 3, 4, 5}));
  }
  munmap(host, kHost);
}

TEST_F(VirtualReach, AddressesBesideTheMemoryLeadThere) {
  Stream stream(0);
  DeviceArray<int> x(std::vector<int>{1, 2, 3}), y(3);
  struct Shifted {
    int* to;
    const int* before;
    const int* after;
    void operator()(int64_t i) const { to[i] = before[1000 + i] + after[i - 1000]; }
  };
  for_each_index(stream, 3, Shifted{y.data(), x.data() - 1000, x.data() + 1000});
  EXPECT_EQ(y.download(stream), (std::vector<int>{2, 4, 6}));
}

}  // namespace
}  // namespace encore::device::tests
#endif
