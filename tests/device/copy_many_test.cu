#include "device/copy_many.h"

#include <gtest/gtest.h>

#include <numeric>

#include "on_device.h"

namespace encore::device::tests {
namespace {

// Some kernels take few tensors, others many, and there may be more than one takes.
class CopyManyTest : public testing::TestWithParam<int> {};

TEST_P(CopyManyTest, EachLaunchHasItsTensors) {
  constexpr size_t kMost = 40000;  // bytes of a tensor, none of which is aligned after the first
  const size_t tensors = size_t(GetParam());
  Stream stream(0);
  std::vector<unsigned char> values(kMost + 4 * tensors);
  std::iota(values.begin(), values.end(), static_cast<unsigned char>(1));
  std::vector<DeviceArray<unsigned char>> from, to;
  for (size_t i = 0; i < tensors; ++i) {
    from.emplace_back(values);
    to.emplace_back(kMost + 4 * tensors);
  }
  // Of the tensor i bytes of its own, to another one's place.
  const auto bytes = [&](size_t i) { return i % 3 ? 1 + 3 * i : kMost - i; };
  const auto copies = [&](size_t shift) {
    std::vector<Copy> copies;
    for (size_t i = 0; i < tensors; ++i)
      copies.push_back(
          {from[(i + shift) % tensors].data() + i + shift, to[(i + shift) % tensors].data() + shift, bytes(i)});
    return copies;
  };
  begin_capture(stream, CaptureMode::thread_local_);
  CapturedCopies captured(stream, copies(0));
  const Graph graph = end_capture(stream);
  const GraphExec exec = graph.instantiate();
  for (const size_t shift : {0, 1, 2, 2, 0}) {
    for (auto& tensor : to) tensor.upload(stream, std::vector<unsigned char>(tensor.size(), 0));
    captured.set(exec, copies(shift));
    exec.launch(stream);
    for (size_t i = 0; i < tensors; ++i) {
      std::vector<unsigned char> expected(kMost + 4 * tensors, 0);
      std::copy_n(values.begin() + int64_t(i + shift), bytes(i), expected.begin() + int64_t(shift));
      ASSERT_EQ(to[(i + shift) % tensors].download(stream), expected) << "of tensor " << i << ", moved by " << shift;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Numbers, CopyManyTest, testing::Values(1, 4, 5, 32, 33, 36, 37, 70));

TEST(CopyMany, OfNothingAreNoKernels) {
  Stream stream(0);
  begin_capture(stream, CaptureMode::thread_local_);
  CapturedCopies none(stream, {});
  const Graph graph = end_capture(stream);
  EXPECT_EQ(graph.size(), 0u);
  none.set(graph.instantiate(), {});
}

}  // namespace
}  // namespace encore::device::tests
