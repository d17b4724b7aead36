// Codes of eight bits against what they stand for.
#include "device/byte_codes.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "on_device.h"

namespace encore::device {
namespace {

// Every pair of neighbouring codes, in both places of a word.
template <class T>
struct Decode {
  uint32_t* made;
  DEVICE_FN void operator()(int64_t i) const {
    const uint32_t word = uint32_t(i) * 0x10001u ^ 0x5a3c0000u;
    made[4 * i] = pair_of_integers<T, 0>(word);
    made[4 * i + 1] = pair_of_integers<T, 1>(word);
    made[4 * i + 2] = pair_of_floats<T, 0>(word);
    made[4 * i + 3] = pair_of_floats<T, 1>(word);
  }
};

template <class T>
void check() {
  constexpr int kCount = 1 << 16;
  Stream stream(0);
  DeviceArray<uint32_t> made(size_t{4} * kCount);
  for_each_index(stream, kCount, Decode<T>{made.data()});
  const std::vector<uint32_t> got = made.download(stream);
  int wrong = 0;
  for (int i = 0; i < kCount; ++i) {
    const uint32_t word = uint32_t(i) * 0x10001u ^ 0x5a3c0000u;
    for (int byte = 0; byte < 4; ++byte) {
      const auto code = uint8_t(word >> 8 * byte);
      const auto value = [&](int first) {
        return float(std::bit_cast<T>(uint16_t(got[size_t(4 * i + first + byte / 2)] >> 16 * (byte % 2))));
      };
      const float number = float(std::bit_cast<Float8E4M3>(code));
      wrong += value(0) != float(int8_t(code));
      wrong += !(value(2) == number || (std::isnan(value(2)) && std::isnan(number)));
    }
  }
  EXPECT_EQ(wrong, 0);
}

TEST(ByteCodes, BecomeValuesExactly) {
  check<Half>();
  check<BFloat16>();
}

}  // namespace
}  // namespace encore::device
