// Products of matrices of eight-bit floats, where the device's tensor cores take them as they are.
#pragma once
#include <cstdint>
#include <string>

#include "device/blas.h"

namespace encore::device {

// c [m, n] = alpha * scale_a * scale_b * a [m, k] * (b [n, k])T, all of them row-major without gaps. The scales are one
// number each, on the device.
struct Float8Product {
  Type a = Type::f8e4m3, b = Type::f8e4m3;  // or f8e5m2, but not both
  Type output = Type::f32;                  // or f16, bf16
  int64_t m = 0, n = 0, k = 0;
  float alpha = 1;

  bool operator==(const Float8Product&) const = default;
};
struct Float8Operands {
  const void *a = nullptr, *b = nullptr;
  void* c = nullptr;
  const float *scale_a = nullptr, *scale_b = nullptr;  // or null: 1
};
std::string describe(const Float8Product& product);

// Whether there is a way, which is remembered: n and k must be multiples of 16 and addresses too, those of scales
// as well, and the device and its library must have such products.
bool takes(int device, const Float8Product& product, const Float8Operands& at);
// Of what it takes.
void multiply(StreamRef stream, const Float8Product& product, const Float8Operands& at, Workspace& workspace);

// What holds on any device.
bool may_take(const Float8Product& product, const Float8Operands& at);

}  // namespace encore::device
