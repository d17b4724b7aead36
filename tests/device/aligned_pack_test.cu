// Packs at addresses that are aligned to them, and at others.
#include <gtest/gtest.h>

#include "device/device.h"
#include "device/unaligned_pack.h"
#include "kernels.h"

namespace encore::device::tests {

template <class T>
struct MoveUnaligned {
  static constexpr int kPack = pack_size<T>();
  const T* from;
  T* to;
  DEVICE_FN void operator()(int64_t i) const { store_aligned(to + i * kPack, load_unaligned<kPack>(from + i)); }
};

template <class T>
void check_unaligned() {
  constexpr int kPack = pack_size<T>();
  Stream stream(0);
  std::vector<T> x(2 * size_t(kPack));
  for (size_t i = 0; i < x.size(); ++i) x[i] = T(i + 1);
  const DeviceArray<T> from(x), to(size_t(kPack) * kPack);
  for_each_index(stream, kPack, MoveUnaligned<T>{from.data(), to.data()});
  const auto seen = to.download(stream);
  for (int i = 0; i < kPack * kPack; ++i) ASSERT_EQ(seen[size_t(i)], x[size_t(i / kPack + i % kPack)]) << i;
}

TEST(AlignedPack, OthersAreReadInPieces) {
  check_unaligned<uint8_t>();
  check_unaligned<int16_t>();
  check_unaligned<float>();
  check_unaligned<int64_t>();
}

#ifdef ENCORE_VIRTUAL  // a GPU would be lost to the process

struct LoadAligned {
  const int64_t* at;
  int64_t* out;
  DEVICE_FN void operator()(int64_t) const { *out = load_aligned<2>(at).at[0]; }
};
struct StoreAligned {
  int64_t* at;
  DEVICE_FN void operator()(int64_t) const { store_aligned(at, Pack<int64_t, 2>{{1, 2}}); }
};
struct LoadWithin {
  const int64_t* at;
  int64_t* out;
  DEVICE_FN void operator()(int64_t) const { *out = load_pack_within<2>(at, at, at + 2).at[0]; }
};
struct LoadGranule {
  const int64_t* at;
  int64_t* out;
  DEVICE_FN void operator()(int64_t) const {
    const char* const from = reinterpret_cast<const char*>(at);
    *out = load_granule(from, from, from + 16).at[0];
  }
};

template <class F>
void run(const F& f) {
  Stream stream(0);
  for_each_index(stream, 1, f);
  stream.ref().synchronize();
}

TEST(AlignedPack, ElsewhereAKernelFails) {
  const DeviceArray<int64_t> x(std::vector<int64_t>(4, 7)), out(1);
  const auto check = [](const auto& suits, const auto& does_not) {
    EXPECT_NO_THROW(run(suits));
    EXPECT_ERROR(run(does_not), Code::device_failed);
    clear_error(0);
  };
  check(LoadAligned{x.data(), out.data()}, LoadAligned{x.data() + 1, out.data()});
  check(StoreAligned{x.data()}, StoreAligned{x.data() + 1});
  check(LoadWithin{x.data(), out.data()}, LoadWithin{x.data() + 1, out.data()});
  check(LoadGranule{x.data(), out.data()}, LoadGranule{x.data() + 1, out.data()});
}

#endif

}  // namespace encore::device::tests
