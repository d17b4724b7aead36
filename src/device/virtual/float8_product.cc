// Float8 products by loops, under the conditions that tensor cores have.
#include "device/float8_product.h"

#include <vector>

#include "device/error.h"
#include "device/virtual/address_space.h"
#include "device/virtual/queue.h"

namespace encore::device {
namespace {

std::vector<float> widened(Type type, const void* from, int64_t count) {
  const auto* const codes = static_cast<const uint8_t*>(from);
  std::vector<float> values(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i)
    values[size_t(i)] =
        type == Type::f8e4m3 ? float(std::bit_cast<Float8E4M3>(codes[i])) : float(std::bit_cast<Float8E5M2>(codes[i]));
  return values;
}

template <class Out>
void run(const Float8Product& p, const Float8Operands& at) {
  const std::vector<float> a = widened(p.a, at.a, p.m * p.k), b = widened(p.b, at.b, p.n * p.k);
  const float scale = p.alpha * (at.scale_a ? *at.scale_a : 1.f) * (at.scale_b ? *at.scale_b : 1.f);
  for (int64_t row = 0; row < p.m; ++row)
    for (int64_t column = 0; column < p.n; ++column) {
      float sum = 0;
      for (int64_t i = 0; i < p.k; ++i) sum += a[size_t(row * p.k + i)] * b[size_t(column * p.k + i)];
      static_cast<Out*>(at.c)[row * p.n + column] = Out(scale * sum);
    }
}

}  // namespace

bool takes(int, const Float8Product& product, const Float8Operands& at) { return may_take(product, at); }

void multiply(StreamRef stream, const Float8Product& product, const Float8Operands& at, Workspace&) {
  if (!may_take(product, at)) fail(Code::internal, describe(product), " is asked for where it is not taken");
  const auto follow = [](const auto* address) {
    return static_cast<decltype(address)>(virtual_gpu::followed(address));
  };
  const Float8Operands there{virtual_gpu::followed(at.a), virtual_gpu::followed(at.b), virtual_gpu::followed(at.c),
                             follow(at.scale_a), follow(at.scale_b)};
  virtual_gpu::enqueue(stream, "float8 product", [product, there] {
    switch (product.output) {
      case Type::f16: return run<Half>(product, there);
      case Type::bf16: return run<BFloat16>(product, there);
      default: return run<float>(product, there);
    }
  });
}

}  // namespace encore::device
