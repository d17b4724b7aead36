// Two devices reach each other's memory.
#include <gtest/gtest.h>

#include "device/device.h"
#include "kernels.h"

namespace encore::device::tests {
namespace {

// Memory of device 1, which a kernel of device 0 reads and changes without a copy.
void reach(int* far, Stream& there) {
  Stream here(0);
  DeviceArray<int> near(3);
  const std::vector<int> values = {4, 5, 6};
  copy(there, far, values.data(), sizeof(int) * 3);
  there.ref().synchronize();
  for_each_index(here, 3, CopyTo{near.data(), far});
  for_each_index(here, 3, MultiplyBy{far, 10});
  EXPECT_EQ(near.download(here), values);
  std::vector<int> changed(3);
  copy(there, changed.data(), far, sizeof(int) * 3);
  there.ref().synchronize();
  EXPECT_EQ(changed, (std::vector<int>{40, 50, 60}));
}

TEST(Peers, ReachWhatWasAllocatedBeforeAndAfterTheyWereConnected) {
  if (count() < 2 || !connect_peers(0, 1)) GTEST_SKIP() << "this takes two devices that reach each other";
  const Current current(0);
  Stream there(1);
  const MemoryPool pool(1, 0);
  for (void* memory : {pool.allocate(there, 12), allocate_async(there, 12)}) {
    reach(static_cast<int*>(memory), there);
    free_async(there, memory);
  }
  DeviceArray<int> outside_of_pools(3, 1);
  reach(outside_of_pools.data(), there);
  there.ref().synchronize();
}

TEST(Peers, ACopyConnectsThem) {
  if (count() < 2) GTEST_SKIP() << "this takes two devices";
  const Current current(0);
  Stream there(1), here(0);
  const MemoryPool before(1, 0);
  const auto far = static_cast<int*>(before.allocate(there, 12));
  there.ref().synchronize();
  DeviceArray<int> near(std::vector<int>{1, 2, 3});
  copy_peer(here, far, 1, near.data(), 0, 12);
  here.ref().synchronize();
  std::vector<int> arrived(3);
  copy(there, arrived.data(), far, 12);
  there.ref().synchronize();
  EXPECT_EQ(arrived, (std::vector<int>{1, 2, 3}));
  if (connect_peers(0, 1)) reach(far, there);
  free_async(there, far);
  there.ref().synchronize();
}

TEST(Peers, DevicesThatAreNotThereAreRefused) {
  EXPECT_TRUE(connect_peers(0, 0));
  EXPECT_ERROR(connect_peers(0, kMaxDevices), Code::no_device);
  EXPECT_ERROR(connect_peers(-1, 0), Code::no_device);
}

}  // namespace
}  // namespace encore::device::tests
