// Values read at any address, and sequences brought together from pieces.
#include "device/pieces.h"

#include <gtest/gtest.h>

#include <numeric>

#include "kernels.h"

namespace encore::device::tests {

// The first i % kPack + 1 neighbours from the element i / kPack on.
template <class T>
struct LoadEach {
  static constexpr int kPack = pack_size<T>();
  const T* in;
  T* out;
  DEVICE_FN void operator()(int64_t i) const {
    const int count = int(i % kPack) + 1;
    store_pack(out + i * kPack, load_unaligned_pack(in + i / kPack, count), true, count);
  }
};

// Values that lie `step` apart, `length` of them in a piece; of each third piece there is but a value.
template <class T>
struct Fragments {
  const T* in;
  T value;
  int64_t length, step;
  DEVICE_FN Piece<T> operator()(int64_t i) const {
    if (i / length % 3 == 2) return {nullptr, length - i % length};
    return {in + i * step, length - i % length, step};
  }
};

namespace {

template <class T>
std::vector<T> counted(size_t size) {
  std::vector<T> values(size);
  std::iota(values.begin(), values.end(), T(1));
  return values;
}

template <class T>
void check_neighbours() {
  constexpr int kPack = pack_size<T>(), kOffsets = 2 * kPack;
  Stream stream(0);
  const std::vector<T> values = counted<T>(size_t(kOffsets) + kPack - 1);
  const DeviceArray<T> in(values), out(std::vector<T>(size_t(kOffsets) * kPack * kPack));
  for_each_index(stream, kOffsets * kPack, LoadEach<T>{in.data(), out.data()});
  const auto seen = out.download(stream);
  for (size_t offset = 0; offset < kOffsets; ++offset)
    for (size_t count = 1; count <= kPack; ++count)
      for (size_t j = 0; j < kPack; ++j)
        ASSERT_EQ(seen[(offset * kPack + count - 1) * kPack + j], j < count ? values[offset + j] : T(0))
            << count << " from " << offset;
}

TEST(UnalignedPack, AreReadAtAnyAddress) {
  check_neighbours<uint8_t>();
  check_neighbours<uint16_t>();
  check_neighbours<uint32_t>();
  check_neighbours<uint64_t>();
}

template <class T>
void check_fill(int64_t rows, int64_t width, int64_t stride, int64_t length, int64_t step, bool long_pieces) {
  Stream stream(0);
  const int64_t count = rows * width;
  const std::vector<T> values = counted<T>(size_t(count * step));
  for (int64_t offset : {0, 1, 3}) {
    const DeviceArray<T> in(values), out(std::vector<T>(size_t(offset + rows * stride)));
    fill_rows(stream, out.data() + offset, rows, width, stride, long_pieces,
              Fragments<T>{in.data(), T(77), length, step});
    const auto seen = out.download(stream);
    for (int64_t i = 0; i < offset; ++i) ASSERT_EQ(seen[size_t(i)], T(0));
    for (int64_t i = 0; i < rows * stride; ++i) {
      const int64_t at = i / stride * width + i % stride;
      const T expected = i % stride >= width ? T(0) : at / length % 3 == 2 ? T(77) : values[size_t(at * step)];
      ASSERT_EQ(seen[size_t(offset + i)], expected) << i << " of rows " << width << " in " << stride;
    }
  }
}

template <class T>
void check_fills() {
  for (bool long_pieces : {false, true})
    for (int64_t step : {1, 2, 3}) {
      check_fill<T>(1, 1, 1, 1, step, long_pieces);
      check_fill<T>(1, 1000, 1000, 7, step, long_pieces);
      check_fill<T>(5, 33, 33, 100, step, long_pieces);
      check_fill<T>(5, 33, 35, 40, step, long_pieces);
      check_fill<T>(4, 48, 64, 1, step, long_pieces);
    }
}

TEST(Pieces, FillRows) {
  check_fills<uint8_t>();
  check_fills<uint16_t>();
  check_fills<uint32_t>();
  check_fills<uint64_t>();
}

TEST(Pieces, FillTwoPlacesInAThread) {
  const int64_t enough = 4 * 512 * int64_t(multiprocessors(0)) * 8 + 5;
  check_fill<uint16_t>(1, enough, enough, 1501, 1, true);
  check_fill<uint16_t>(3, enough / 3, enough / 3 + 5, 1501, 1, false);
}

}  // namespace
}  // namespace encore::device::tests
