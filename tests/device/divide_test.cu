// Division by multiplication, against the machine's own.
#include "device/divide.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "kernels.h"

namespace encore::device::tests {

struct DivideEach {
  Divider divider;
  const int64_t* values;
  int64_t* quotients;
  int64_t* rests;
  DEVICE_FN void operator()(int64_t i) const { quotients[i] = divider(values[i], rests[i]); }
};

namespace {

constexpr int64_t kTwo31 = int64_t(1) << 31;

std::vector<int64_t> values_around(int64_t divisor, int64_t largest) {
  std::vector<int64_t> values = {0, 1, 2, largest, largest - 1, largest / 2, largest / 2 + 1};
  for (int64_t multiple :
       {int64_t(1), int64_t(2), int64_t(3), int64_t(10), int64_t(1000), largest / divisor, largest / divisor - 1})
    for (int64_t off : {-1, 0, 1})
      if (multiple <= largest / divisor && (off < 1 || multiple * divisor < largest))
        values.push_back(multiple * divisor + off);
  uint64_t state = uint64_t(divisor) * 77 + 5;
  for (int i = 0; i < 40; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    values.push_back(int64_t((state >> 1) % (uint64_t(largest) + 1)));
  }
  std::erase_if(values, [&](int64_t value) { return value < 0 || value > largest; });
  return values;
}

void check(StreamRef stream, int64_t divisor, int64_t largest) {
  const std::vector<int64_t> values = values_around(divisor, largest);
  DeviceArray<int64_t> in(values), quotients(values.size()), rests(values.size());
  for_each_index(stream, int64_t(values.size()),
                 DivideEach{{divisor, largest}, in.data(), quotients.data(), rests.data()});
  const auto seen = quotients.download(stream), rest = rests.download(stream);
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(seen[i], values[i] / divisor) << values[i] << " / " << divisor << ", largest " << largest;
    ASSERT_EQ(rest[i], values[i] % divisor) << values[i] << " % " << divisor << ", largest " << largest;
  }
}

TEST(Divider, DividesSmallNumbers) {
  Stream stream(0);
  std::vector<int64_t> divisors;
  for (int64_t d = 1; d <= 260; ++d) divisors.push_back(d);
  for (int shift = 9; shift < 31; ++shift)
    for (int64_t off : {-1, 0, 1}) divisors.push_back((int64_t(1) << shift) + off);
  divisors.insert(divisors.end(),
                  {641, 1000, 65'537, 1'000'003, 6'700'417, kTwo31 - 1, kTwo31 - 2, 1'431'655'765, 715'827'883});
  for (int64_t divisor : divisors) check(stream, divisor, kTwo31 - 1);
}

TEST(Divider, DividesLargeNumbers) {
  Stream stream(0);
  for (int64_t divisor :
       {int64_t(1), int64_t(3), int64_t(7), kTwo31 - 1, kTwo31, kTwo31 + 1, int64_t(1) << 40, INT64_MAX})
    for (int64_t largest : {kTwo31, int64_t(1) << 40, INT64_MAX}) check(stream, divisor, largest);
  check(stream, kTwo31 + 5, 1000);  // a small number by a large one
}

TEST(Divider, KeepsItsDivisor) {
  EXPECT_EQ(Divider(7, 100).divisor(), 7);
  EXPECT_EQ(Divider().divisor(), 1);
}

}  // namespace
}  // namespace encore::device::tests
