// Mean and variance of each channel of a batch, and what training keeps of them.
#pragma once
#include "device/transform.h"
#include "ops/dispatch.h"
#include "ops/op.h"

namespace encore::ops {

// The elements of a channel: `width` neighbours in each of `batch` images.
struct ChannelShape {
  int64_t batch, channels, width;
};

// A value for each channel, of any float type. Without data there are none, and put() does nothing.
struct PerChannel {
  void* data = nullptr;
  Type type = Type::undefined;

  template <class T>
  BOTH_FN bool is() const {
    return type == device::kTypeOf<T>;
  }
  template <class C>
  DEVICE_FN C at(int64_t channel) const {
    if (type == Type::f32) return C(static_cast<const float*>(data)[channel]);
    if (type == Type::f16) return C(float(static_cast<const Half*>(data)[channel]));
    if (type == Type::bf16) return C(float(static_cast<const BFloat16*>(data)[channel]));
    return C(static_cast<const double*>(data)[channel]);
  }
  // Those of neighbours, all of which are asked for before the first is here.
  template <class C, int kCount>
  DEVICE_FN void read(int64_t channel, C (&values)[kCount]) const {
    const auto as = [&]<class T>(const T* from) {
      const auto read = device::load_pack<kCount>(from + channel, false);
      UNROLL for (int i = 0; i < kCount; ++i) values[i] = C(device::Compute<T>(read.at[i]));
    };
    if (type == Type::f32) return as(static_cast<const float*>(data));
    if (type == Type::f16) return as(static_cast<const Half*>(data));
    if (type == Type::bf16) return as(static_cast<const BFloat16*>(data));
    as(static_cast<const double*>(data));
  }
  template <class C>
  DEVICE_FN void put(int64_t channel, C value) const {
    if (!data) return;
    if (type == Type::f32)
      static_cast<float*>(data)[channel] = float(value);
    else if (type == Type::f16)
      static_cast<Half*>(data)[channel] = Half(float(value));
    else if (type == Type::bf16)
      static_cast<BFloat16*>(data)[channel] = BFloat16(float(value));
    else
      static_cast<double*>(data)[channel] = double(value);
  }
};

struct BatchStatistics {
  PerChannel mean, variance;
  PerChannel given_mean, given_variance;      // what was kept so far
  PerChannel running_mean, running_variance;  // given * momentum + new * (1 - momentum)
  PerChannel saved_mean, saved_deviation;     // the mean again, and 1 / sqrt(variance + epsilon)
};
// Of nothing, mean and variance are NaN.
void take_statistics(Context& context, const Tensor& x, const ChannelShape& shape, float momentum, float epsilon,
                     const BatchStatistics& statistics);

}  // namespace encore::ops
