#pragma once

namespace encore::device {

// kCount neighbouring values, moved at once; kCount is a power of two.
template <class T, int kCount>
struct alignas(sizeof(T) * kCount) Pack {
  T at[kCount];
};

}  // namespace encore::device
