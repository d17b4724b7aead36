// Copies on the device against the same on the host.
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "../device/on_device.h"
#include "ops/shape/strided.h"

namespace encore::ops {
namespace {

using device::DeviceArray;
using device::Stream;

struct Dim {
  int64_t size, in_stride, out_stride;
};

StridedCopy copy_of(const std::vector<Dim>& dims) {
  StridedCopy copy;
  for (const Dim& dim : dims) copy.add(dim.size, dim.in_stride, dim.out_stride);
  return copy;
}

// What a copy makes of numbers that are counted, from an element on, in memory that begins with another.
template <class T>
void check(const std::vector<Dim>& dims, size_t begin = 0, size_t to = 0) {
  size_t in_size = begin + 1, out_size = to + 1;
  for (const Dim& dim : dims) {
    in_size += size_t((dim.size - 1) * std::max<int64_t>(dim.in_stride, 0));
    out_size += size_t((dim.size - 1) * dim.out_stride);
  }
  std::vector<T> values(in_size), wanted(out_size, T(7));
  std::iota(values.begin(), values.end(), T(1));
  Stream stream(0);
  const DeviceArray<T> in(values), out(wanted);
  copy_of(dims).run(stream, in.data() + begin, out.data() + to, sizeof(T));
  copy_of(dims).run({}, values.data() + begin, wanted.data() + to, sizeof(T), Where::host);
  EXPECT_EQ(out.download(stream), wanted) << dims.size() << " dimensions of " << sizeof(T) << " bytes";
}

template <class T>
class StridedCopies : public testing::Test {};
using Sizes = testing::Types<uint8_t, uint16_t, uint32_t, uint64_t>;
TYPED_TEST_SUITE(StridedCopies, Sizes);

TYPED_TEST(StridedCopies, InterleavePlanes) {
  for (int64_t planes = 2; planes <= 5; ++planes)
    for (int64_t size : {1, 5, 48, 64, 1000}) {
      check<TypeParam>({{size, 1, planes}, {planes, size, 1}});
      check<TypeParam>({{size, 1, planes}, {planes, size, 1}}, 1);
      check<TypeParam>({{size, 1, planes}, {planes, size, 1}}, 0, 1);
      check<TypeParam>({{3, planes * size + 16, planes * size}, {size, 1, planes}, {planes, size, 1}});
      check<TypeParam>({{3, planes * size + 1, planes * size}, {size, 1, planes}, {planes, size, 1}});
      check<TypeParam>({{size, 1, planes}, {planes, -size, 1}}, size_t((planes - 1) * size));
      check<TypeParam>({{size, 1, planes}, {planes, 0, 1}});
    }
}

TYPED_TEST(StridedCopies, TakeDimensionsInAnyOrder) {
  check<TypeParam>({});
  check<TypeParam>({{3, 1, 5}, {5, 3, 1}});
  check<TypeParam>({{2, 1, 360}, {3, 2, 120}, {4, 6, 30}, {5, 24, 6}, {6, 120, 1}});
  check<TypeParam>({{2, 360, 1}, {3, 120, 2}, {4, 30, 6}, {5, 6, 24}, {6, 1, 120}});
  check<TypeParam>({{3, 7, 24}, {8, -1, 3}, {3, 50, 1}}, 8);
  check<TypeParam>({{4, 0, 16}, {16, 1, 1}});
  check<TypeParam>({{4, 99, 90}, {80, 1, 1}}, 3, 5);
}

// Where an int doesn't tell the places.
TEST(StridedCopy, ReachesFar) {
  constexpr int64_t kFar = (int64_t(1) << 31) + 5;
  Stream stream(0);
  const DeviceArray<uint8_t> far(size_t(kFar) + 3), near(std::vector<uint8_t>{1, 2, 3, 4, 5, 6}),
      back(std::vector<uint8_t>(6));
  copy_of({{2, 3, kFar}, {3, 1, 1}}).run(stream, near.data(), far.data(), 1);
  copy_of({{3, 1, 2}, {2, kFar, 1}}).run(stream, far.data(), back.data(), 1);
  EXPECT_EQ(back.download(stream), (std::vector<uint8_t>{1, 4, 2, 5, 3, 6}));
}

}  // namespace
}  // namespace encore::ops
