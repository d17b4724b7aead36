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

// Rows of any length, with zeros behind each up to a pitch, which stays.
TEST(CopyMany, RowsGrow) {
  constexpr size_t kRows = 3;
  Stream stream(0);
  for (const size_t pitch : {size_t(64), size_t(2048), size_t(40008)}) {
    std::vector<unsigned char> values(kRows * pitch + 1);
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<unsigned char>(1 + i % 251);
    DeviceArray<unsigned char> from(values), to(kRows * pitch), other(values), beside(pitch);
    const auto copies = [&](size_t bytes, size_t shift) {
      return std::vector<Copy>{{from.data() + shift, to.data(), bytes, pitch, kRows},
                               {other.data(), beside.data(), pitch}};
    };
    begin_capture(stream, CaptureMode::thread_local_);
    CapturedCopies captured(stream, copies(8, 0));
    const Graph graph = end_capture(stream);
    const GraphExec exec = graph.instantiate();
    for (const size_t bytes : {size_t(8), size_t(16), size_t(33), pitch / 2 + 8, pitch - 8, pitch}) {
      for (const size_t shift : {0, 1}) {
        to.upload(stream, std::vector<unsigned char>(to.size(), 0xff));
        captured.set(exec, copies(bytes, shift));
        exec.launch(stream);
        std::vector<unsigned char> expected(kRows * pitch, 0);
        for (size_t row = 0; row < kRows; ++row)
          std::copy_n(values.begin() + int64_t(row * bytes + shift), bytes, expected.begin() + int64_t(row * pitch));
        ASSERT_EQ(to.download(stream), expected) << bytes << " of " << pitch << " bytes, moved by " << shift;
        ASSERT_EQ(beside.download(stream), std::vector<unsigned char>(values.begin(), values.begin() + int64_t(pitch)));
      }
    }
  }
}

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
