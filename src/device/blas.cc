#include "device/blas.h"

#include <algorithm>
#include <cmath>

#include "device/error.h"
#include "device/gemv.h"

namespace encore::device {

void check(const Gemm& g) {
  const auto refuse = [&](Code code, const auto&... why) { fail(code, describe(g), ": ", why...); };
  const auto want = [&](bool ok, const auto&... why) {
    if (!ok) refuse(Code::invalid_input, why...);
  };
  const bool integers = (g.type == Type::i8 || g.type == Type::u8) && g.output == Type::i32;
  const bool halves = g.type == Type::f16 || g.type == Type::bf16;
  const bool floats = (g.type == g.output && (g.type == Type::f32 || g.type == Type::f64 || halves)) ||
                      (halves && g.output == Type::f32);
  if (!integers && !floats) refuse(Code::not_supported, "no such combination of types");
  want(g.m >= 0 && g.n >= 0 && g.k >= 0 && g.batch >= 0, "a negative size");
  want(g.lda >= (g.transpose_a ? g.m : g.k) && g.ldb >= (g.transpose_b ? g.k : g.n) && g.ldc >= g.n,
       "rows overlap, lda, ldb, ldc are ", g.lda, ", ", g.ldb, ", ", g.ldc);
  want(g.stride_a >= 0 && g.stride_b >= 0 && g.stride_c >= 0, "a negative stride between batches");
  // One matrix after the other, or rows of all of them in turn.
  const bool apart = g.stride_c >= (g.m - 1) * g.ldc + g.n;
  const bool in_turn = g.stride_c >= g.n && g.ldc >= (g.batch - 1) * g.stride_c + g.n;
  want(g.batch <= 1 || g.m == 0 || g.n == 0 || apart || in_turn, "the batches of the result overlap, their stride is ",
       g.stride_c);
  if (!integers) return;
  if (g.has_bias || g.epilogue != Epilogue::none)
    refuse(Code::not_supported, "integer products take no bias and no epilogue");
  if (g.alpha != std::nearbyint(g.alpha) || g.beta != std::nearbyint(g.beta) || std::abs(g.alpha) > 1e9f ||
      std::abs(g.beta) > 1e9f)
    refuse(Code::not_supported, "integer products take whole alpha and beta, not ", g.alpha, " and ", g.beta);
}

Gemm in_parts(const Gemm& g, int parts) {
  Gemm part = g;
  part.output = Type::f32;
  part.batch = parts;
  part.k = g.k / parts;
  part.stride_a = g.transpose_a ? part.k * g.lda : part.k;
  part.stride_b = g.transpose_b ? part.k : part.k * g.ldb;
  part.stride_c = g.m * g.ldc;
  part.has_bias = false;
  return part;
}

int possible_parts(const Gemm& g, int most) {
  constexpr int64_t kStep = 32;  // of the depth, which kernels take at once
  if (!(g.type == Type::f32 || g.type == Type::f16 || g.type == Type::bf16) || g.batch != 1 || g.beta != 0 ||
      g.epilogue != Epilogue::none || g.m <= kMostGemvRows)
    return 1;
  int parts = std::min(most, kMostProductParts);
  while (parts > 1 && (g.k == 0 || g.k % (parts * kStep) != 0)) --parts;
  return std::max(parts, 1);
}

std::string describe(const Gemm& g) {
  const auto operand = [&](bool transposed) { return text(name(g.type), transposed ? " transposed" : ""); };
  return text("product m=", g.m, " n=", g.n, " k=", g.k, " (", operand(g.transpose_a), " × ", operand(g.transpose_b),
              " → ", name(g.output), g.has_bias ? ", bias" : "",
              g.epilogue == Epilogue::relu        ? ", relu"
              : g.epilogue == Epilogue::gelu_tanh ? ", gelu"
                                                  : "",
              g.batch == 1 ? "" : text(", ", g.batch, " batches"), ")");
}

}  // namespace encore::device
