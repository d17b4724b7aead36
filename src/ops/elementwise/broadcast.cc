#include "ops/elementwise/broadcast.h"

namespace encore::ops {

Walk::Walk(const Shape& output, std::span<const Shape> inputs) {
  int64_t sizes[kMaxRank];
  std::array<std::array<int64_t, kMaxRank>, kMostInputs> input_strides;
  for (size_t k = 0; k < inputs.size(); ++k) input_strides[k] = strides_of(inputs[k]);

  for (int axis = output.rank() - 1; axis >= 0; --axis) {
    if (output[axis] == 1) continue;
    int64_t strides[kMostInputs] = {};
    bool joins = rank_ > 0;  // the dimension inside of it
    for (size_t k = 0; k < inputs.size(); ++k) {
      const int own = axis - (output.rank() - inputs[k].rank());
      if (own >= 0 && inputs[k][own] != 1) strides[k] = input_strides[k][own];
      joins = joins && strides[k] == strides_[rank_ - 1][k] * sizes[rank_ - 1];
    }
    if (joins) {
      sizes[rank_ - 1] *= output[axis];
      continue;
    }
    std::copy(strides, strides + kMostInputs, strides_[rank_]);
    sizes[rank_++] = output[axis];
  }
  if (rank_ == 0) sizes[rank_++] = 1;
  for (int d = 0; d < rank_; ++d) sizes_[d] = device::Divider(sizes[d], output.count());
}

Type as_unsigned(Type type) {
  switch (type) {
    case Type::i8:
    case Type::boolean: return Type::u8;
    case Type::i16: return Type::u16;
    case Type::i32: return Type::u32;
    case Type::i64: return Type::u64;
    default: return type;
  }
}

}  // namespace encore::ops
