#include "plugin/session/host_copies.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "../memory/gate.h"
#include "device/graph.h"
#include "device/memory.h"
#ifdef ENCORE_VIRTUAL
#include "device/trace.h"
#include "device/virtual/control.h"
#endif

namespace encore::plugin {
namespace {

using namespace encore::test;

constexpr int64_t kCount = 1000;
constexpr size_t kBytes = size_t(kCount) * sizeof(float);

class HostCopiesTest : public ::testing::TestWithParam<bool> {
#ifdef ENCORE_VIRTUAL
 protected:
  void SetUp() override { device::virtual_gpu::set_delay_us(200); }
  void TearDown() override { device::virtual_gpu::set_delay_us(0); }
#endif
};

struct Pinned {
  float* data = static_cast<float*>(device::allocate_pinned(kBytes));
  ~Pinned() { device::free_pinned(data); }
};

TEST_P(HostCopiesTest, come_after_earlier_work_and_before_later) {
  EnlistedStream stream;
  memory::Arena arena(0, {}, "test");
  HostCopies copies(0, GetParam());
  Pinned sent, received;
  for (int round = 0; round < 20; ++round) {
    auto* a = static_cast<float*>(arena.allocate(kBytes, stream));
    auto* b = static_cast<float*>(arena.allocate(kBytes, stream));
    const float value = float(round);
    std::vector<float> pageable(kCount, value);
    device::for_each_index(stream, kCount, Fill{a, -1});  // the target is still in use
    copies.upload(stream, a, pageable.data(), kBytes);
    std::memset(pageable.data(), 0, kBytes);  // it has been read
    device::for_each_index(stream, kCount, Add{a, b, 1});
    copies.download(stream, pageable.data(), b, kBytes);
    EXPECT_EQ(pageable, std::vector<float>(kCount, value + 1));
    arena.free(a);  // and is reused at once

    auto* c = static_cast<float*>(arena.allocate(kBytes, stream));
    std::fill_n(sent.data, kCount, value);
    device::for_each_index(stream, kCount, Fill{c, -2});
    copies.upload(stream, c, sent.data, kBytes);
    arena.free(b);
    copies.download(stream, received.data, c, kBytes);
    arena.free(c);
    auto* d = static_cast<float*>(arena.allocate(kBytes, stream));
    device::for_each_index(stream, kCount, Fill{d, -3});
    arena.free(d);
    stream->synchronize();
    EXPECT_EQ(std::vector<float>(received.data, received.data + kCount), std::vector<float>(kCount, value));
  }
}

TEST_P(HostCopiesTest, several_downloads_have_what_was_there_when_each_was_asked_for) {
  EnlistedStream stream;
  memory::Arena arena(0, {}, "test");
  HostCopies copies(0, GetParam());
  auto* a = static_cast<float*>(arena.allocate(kBytes, stream));
  std::vector<std::vector<float>> received(60, std::vector<float>(kCount));  // more than one buffer holds
  memory::Staging::Downloads together;
  for (size_t i = 0; i < received.size(); ++i) {
    device::for_each_index(stream, kCount, Fill{a, float(i)});
    copies.download(stream, received[i].data(), a, kBytes, together);
  }
  device::for_each_index(stream, kCount, Fill{a, -1});
  together.finish();
  for (size_t i = 0; i < received.size(); ++i) EXPECT_EQ(received[i], std::vector<float>(kCount, float(i)));
  arena.free(a);
}

TEST_P(HostCopiesTest, failing_leaves_the_stream_usable) {
  EnlistedStream stream;
  HostCopies copies(0, GetParam());
  float host = 1;
  device::begin_capture(stream, device::CaptureMode::relaxed);
  EXPECT_THROW(copies.upload(stream, &host, &host, sizeof host), Error);
  device::abandon_capture(stream);
  memory::Arena arena(0, {}, "test");
  auto* a = static_cast<float*>(arena.allocate(sizeof host, stream));
  copies.upload(stream, a, &host, sizeof host);
  host = 0;
  copies.download(stream, &host, a, sizeof host);
  EXPECT_EQ(host, 1);
  arena.free(a);
}

INSTANTIATE_TEST_SUITE_P(Arrangements, HostCopiesTest, ::testing::Values(false, true),
                         [](const auto& info) { return info.param ? "apart" : "on_the_stream"; });

}  // namespace
}  // namespace encore::plugin
