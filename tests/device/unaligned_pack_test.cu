// Packs of which only a part is wanted.
#include "device/unaligned_pack.h"

#include <gtest/gtest.h>

#include "kernels.h"

namespace encore::device::tests {

// The sum of what lies within x, of each of the aligned packs that have a part of it.
template <class T, int kPack>
struct AddPacks {
  const T *x, *end;
  int64_t* sums;
  DEVICE_FN void operator()(int64_t i) const {
    const auto before = reinterpret_cast<uintptr_t>(x) / sizeof(T) % kPack;
    const T* const at = x + (i * kPack - int64_t(before));
    const Pack<T, kPack> pack = load_pack_within<kPack>(at, x, end);
    sums[i] = 0;
    for (int j = 0; j < kPack; ++j) sums[i] += at + j >= x && at + j < end ? int64_t(pack.at[j]) : 0;
  }
};

template <class T, int kPack>
void check_packs() {
  Stream stream(0);
  std::vector<T> x(100);
  for (size_t i = 0; i < x.size(); ++i) x[i] = T(i + 1);
  DeviceArray<T> in(x);
  for (int first = 0; first <= kPack; ++first) {
    for (int last = first + 1; last <= first + 3 * kPack; ++last) {
      const int64_t packs = (last + kPack - 1) / kPack - first / kPack;
      DeviceArray<int64_t> sums(static_cast<size_t>(packs));
      for_each_index(stream, packs, AddPacks<T, kPack>{in.data() + first, in.data() + last, sums.data()});
      const auto seen = sums.download(stream);
      for (int64_t p = 0; p < packs; ++p) {
        int64_t sum = 0;
        for (int64_t i = (first / kPack + p) * kPack; i < (first / kPack + p + 1) * kPack; ++i)
          sum += i >= first && i < last ? i + 1 : 0;
        ASSERT_EQ(seen[size_t(p)], sum) << "pack " << p << " of [" << first << ", " << last << ")";
      }
    }
  }
}

TEST(UnalignedPack, PacksReachBeyondWhatIsWanted) {
  check_packs<uint8_t, 8>();
  check_packs<int16_t, 8>();
  check_packs<float, 4>();
  check_packs<int64_t, 2>();
}

}  // namespace encore::device::tests
