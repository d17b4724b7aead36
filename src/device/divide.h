// Division by a number known at launch: a multiplication and a shift for values under 2^31, plain division above.
#pragma once
#include <cstdint>

#include "device/annotate.h"

namespace encore::device {

class Divider {
 public:
  Divider() = default;
  // `largest` is the largest value that will be divided.
  Divider(int64_t divisor, int64_t largest)
      : divisor_(divisor), small_(largest < (int64_t(1) << 31) && divisor < (int64_t(1) << 31)) {
    if (!small_ || divisor <= 0) return;
    while ((int64_t(1) << shift_) < divisor) ++shift_;
    multiplier_ =
        uint32_t(((uint64_t(1) << 32) * ((uint64_t(1) << shift_) - uint64_t(divisor))) / uint64_t(divisor) + 1);
  }
  // value / divisor; the remainder goes to `rest`.
  DEVICE_FN int64_t operator()(int64_t value, int64_t& rest) const {
    int64_t quotient;
    if (small_) {
      const uint32_t v = uint32_t(value);
      const uint32_t high = uint32_t((uint64_t(v) * multiplier_) >> 32);
      quotient = (high + v) >> shift_;
    } else {
      quotient = value / divisor_;
    }
    rest = value - quotient * divisor_;
    return quotient;
  }
  BOTH_FN int64_t divisor() const { return divisor_; }

 private:
  int64_t divisor_ = 1;
  uint32_t multiplier_ = 1;
  int shift_ = 0;
  bool small_ = true;
};

}  // namespace encore::device
