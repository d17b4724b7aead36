#include "device/blas.h"

#include <cmath>

#include "device/error.h"

namespace encore::device {

void check(const Gemm& g) {
  const auto problem = [&] { return describe(g); };
  const bool integers = (g.type == Type::i8 || g.type == Type::u8) && g.output == Type::i32;
  const bool halves = g.type == Type::f16 || g.type == Type::bf16;
  const bool floats = (g.type == g.output && (g.type == Type::f32 || g.type == Type::f64 || halves)) ||
                      (halves && g.output == Type::f32);
  if (!integers && !floats) fail(Code::not_supported, problem(), ": no such combination of types");
  require(g.m >= 0 && g.n >= 0 && g.k >= 0 && g.batch >= 0, problem(), ": a negative size");
  require(g.lda >= (g.transpose_a ? g.m : g.k) && g.ldb >= (g.transpose_b ? g.k : g.n) && g.ldc >= g.n, problem(),
          ": rows overlap, lda, ldb, ldc are ", g.lda, ", ", g.ldb, ", ", g.ldc);
  require(g.stride_a >= 0 && g.stride_b >= 0 && g.stride_c >= 0, problem(), ": a negative stride between batches");
  // One matrix after the other, or rows of all of them in turn.
  const bool apart = g.stride_c >= (g.m - 1) * g.ldc + g.n;
  const bool in_turn = g.stride_c >= g.n && g.ldc >= (g.batch - 1) * g.stride_c + g.n;
  require(g.batch <= 1 || g.m == 0 || g.n == 0 || apart || in_turn, problem(),
          ": the batches of the result overlap, their stride is ", g.stride_c);
  if (!integers) return;
  if (g.has_bias || g.epilogue != Epilogue::none)
    fail(Code::not_supported, problem(), ": integer products take no bias and no epilogue");
  if (g.alpha != std::nearbyint(g.alpha) || g.beta != std::nearbyint(g.beta) || std::abs(g.alpha) > 1e9f ||
      std::abs(g.beta) > 1e9f)
    fail(Code::not_supported, problem(), ": integer products take whole alpha and beta, not ", g.alpha, " and ",
         g.beta);
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
