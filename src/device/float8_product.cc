#include "device/float8_product.h"

#include "device/error.h"

namespace encore::device {

std::string describe(const Float8Product& p) {
  return text("product m=", p.m, " n=", p.n, " k=", p.k, " (", name(p.a), " × ", name(p.b), " transposed → ",
              name(p.output), ")");
}

bool may_take(const Float8Product& p, const Float8Operands& at) {
  const auto is_float8 = [](Type type) { return type == Type::f8e4m3 || type == Type::f8e5m2; };
  const auto aligned = [](const void* address) { return reinterpret_cast<uintptr_t>(address) % 16 == 0; };
  constexpr int64_t kMost = INT32_MAX;
  return is_float8(p.a) && is_float8(p.b) && (p.a == Type::f8e4m3 || p.b == Type::f8e4m3) &&
         (p.output == Type::f32 || p.output == Type::f16 || p.output == Type::bf16) && p.m > 0 && p.n > 0 && p.k > 0 &&
         p.m <= kMost && p.n <= kMost && p.k <= kMost && p.n % 16 == 0 && p.k % 16 == 0 && aligned(at.a) &&
         aligned(at.b) && aligned(at.c) && aligned(at.scale_a) && aligned(at.scale_b);
}

}  // namespace encore::device
