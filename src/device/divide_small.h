// Division by a number known at launch of values that are under 2^31 for sure: no other way is compiled along.
#pragma once
#include <cstdint>

#include "device/annotate.h"

namespace encore::device {

class SmallDivider {
 public:
  SmallDivider() = default;
  explicit SmallDivider(int divisor) : divisor_(divisor) {
    if (divisor <= 0) return;
    while ((int64_t(1) << shift_) < divisor) ++shift_;
    const uint64_t more = (uint64_t(1) << shift_) - uint64_t(divisor);
    multiplier_ = uint32_t((uint64_t(1) << 32) * more / uint64_t(divisor) + 1);
  }
  DEVICE_FN int operator()(int value, int& rest) const {
    const uint32_t v = uint32_t(value), high = uint32_t(uint64_t(v) * multiplier_ >> 32);
    const int quotient = int((high + v) >> shift_);
    rest = value - quotient * divisor_;
    return quotient;
  }
  BOTH_FN int divisor() const { return divisor_; }

 private:
  int divisor_ = 1;
  uint32_t multiplier_ = 1;
  int shift_ = 0;
};

}  // namespace encore::device
