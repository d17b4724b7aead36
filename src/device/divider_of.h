// The divider for kernels that are compiled for small numbers and for any.
#pragma once
#include <cstdint>
#include <type_traits>

#include "device/divide.h"
#include "device/divide_small.h"

namespace encore::device {

// Of values of a type, int or int64_t.
template <class Int>
using DividerOf = std::conditional_t<std::is_same_v<Int, int>, SmallDivider, Divider>;

// `largest` is as a Divider has it.
template <class Int>
DividerOf<Int> divider_of(int64_t divisor, [[maybe_unused]] int64_t largest) {
  if constexpr (std::is_same_v<Int, int>)
    return SmallDivider(int(divisor));
  else
    return Divider(divisor, largest);
}

}  // namespace encore::device
