// Matrix products by Eigen, one task each, on the stream's worker alone.
#define EIGEN_DONT_PARALLELIZE
#include "device/blas.h"

#include <Eigen/Core>
#include <algorithm>
#include <bit>
#include <cmath>
#include <mutex>
#include <type_traits>
#include <vector>

#include "device/device.h"
#include "device/error.h"
#include "device/open_ahead.h"
#include "device/virtual/address_space.h"
#include "device/virtual/queue.h"
#include "device/virtual/tf32.h"

namespace encore::device {
namespace {

struct Tf32 {
  float value;
  explicit operator float() const { return rounded_to_tf32(value); }
};

// Integers wrap, as on the GPU; signed ones may not in C++.
template <class T>
using Number =
    std::conditional_t<std::is_same_v<T, double>, double, std::conditional_t<std::is_integral_v<T>, uint32_t, float>>;
template <class T>
using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <class T>
using View = Eigen::Map<const Matrix<T>, 0, Eigen::OuterStride<>>;

// A stored operand in the type that is computed in: where it lies if that is its own, else a converted copy.
template <class T>
class Operand {
 public:
  using N = Number<T>;
  Operand(int64_t rows, int64_t columns, int64_t distance) : rows_(rows), columns_(columns), distance_(distance) {
    if constexpr (!std::is_same_v<T, N>) copy_.resize(rows * columns);
  }
  View<N> operator()(const T* from) {
    if constexpr (std::is_same_v<T, N>) {
      return View<N>(from, rows_, columns_, Eigen::OuterStride<>(distance_));
    } else {
      if (from != current_)
        for (int64_t row = 0; row < rows_; ++row)
          for (int64_t column = 0; column < columns_; ++column)
            copy_[row * columns_ + column] = static_cast<N>(from[row * distance_ + column]);
      current_ = from;  // a repeated matrix is converted once
      return View<N>(copy_.data(), rows_, columns_, Eigen::OuterStride<>(columns_));
    }
  }

 private:
  int64_t rows_, columns_, distance_;
  std::vector<N> copy_;
  const T* current_ = nullptr;
};

template <class N>
void multiply(const Gemm& g, const View<N>& a, const View<N>& b, Matrix<N>& product) {
  if (g.transpose_a && g.transpose_b)
    product.noalias() = a.transpose() * b.transpose();
  else if (g.transpose_a)
    product.noalias() = a.transpose() * b;
  else if (g.transpose_b)
    product.noalias() = a * b.transpose();
  else
    product.noalias() = a * b;
}

template <class N>
N apply(Epilogue epilogue, N value) {
  if constexpr (std::is_floating_point_v<N>) {
    if (epilogue == Epilogue::relu) return value < 0 ? N(0) : value;
    if (epilogue == Epilogue::gelu_tanh)
      return N(0.5) * value * (1 + std::tanh(N(0.7978845608028654) * (value + N(0.044715) * value * value * value)));
  }
  return value;
}

// Rounds to Out once, after everything else.
template <class N, class Out>
void finish(const Gemm& g, const Matrix<N>& product, const Out* addend, Out* c, const Out* bias) {
  const auto factor = [](float value) {
    if constexpr (std::is_integral_v<N>)
      return static_cast<N>(int64_t(value));
    else
      return N(value);
  };
  const N alpha = factor(g.alpha), beta = factor(g.beta);
  for (int64_t row = 0; row < g.m; ++row) {
    for (int64_t column = 0; column < g.n; ++column) {
      const int64_t at = row * g.ldc + column;
      N value = g.k == 0 ? N(0) : alpha * product(row, column);
      if (beta != 0) value += beta * static_cast<N>(addend[at]);  // it may hold anything, NaN too, when beta is zero
      if (bias) value += static_cast<N>(bias[column]);
      c[at] = Out(apply(g.epilogue, value));
    }
  }
}

template <class In, class Out>
void run(const Gemm& g, const void* a, const void* b, const void* addend, void* c, const void* bias) {
  Operand<In> left(g.transpose_a ? g.k : g.m, g.transpose_a ? g.m : g.k, g.lda);
  Operand<In> right(g.transpose_b ? g.n : g.k, g.transpose_b ? g.k : g.n, g.ldb);
  Matrix<Number<In>> product(g.m, g.n);
  for (int64_t i = 0; i < g.batch; ++i) {
    if (g.k > 0)
      multiply<Number<In>>(g, left(static_cast<const In*>(a) + i * g.stride_a),
                           right(static_cast<const In*>(b) + i * g.stride_b), product);
    finish(g, product, static_cast<const Out*>(addend) + i * g.stride_c, static_cast<Out*>(c) + i * g.stride_c,
           static_cast<const Out*>(bias));
  }
}

}  // namespace

// Eigen has one way to do it, so tuning finds one candidate.
struct Blas::State {
  const bool tune;
  std::mutex mutex;
  std::vector<Gemm> seen;
  std::vector<TunedProduct> tuned;

  void note(const Gemm& g) {
    const std::lock_guard lock(mutex);
    if (std::ranges::find(seen, g) != seen.end()) return;
    seen.push_back(g);
    tuned.push_back({.problem = describe(g), .candidates = 1});
  }
};

void open_blas(int) noexcept {}  // there is nothing to open

Blas::Blas(int, BlasSettings settings) : state_(new State{.tune = settings.tune}) {}
Blas::~Blas() = default;

std::vector<TunedProduct> Blas::tuned() const {
  const std::lock_guard lock(state_->mutex);
  return state_->tuned;
}

// As a library might split it: few tiles, which are deep.
int Blas::parts_of(StreamRef stream, const Gemm& g, const void*, const void*, const void*, Workspace&) {
  constexpr int64_t kTile = 64;
  const int64_t tiles = ((g.m + kTile - 1) / kTile) * ((g.n + kTile - 1) / kTile);
  if (tiles == 0 || g.k < 2 * g.n) return 1;
  return possible_parts(g, int(std::min<int64_t>(multiprocessors(stream.device()) / tiles, kMostProductParts)));
}

void Blas::gemm(StreamRef stream, const Gemm& g, const void* a, const void* b, void* c, const void* bias, Workspace&,
                const void* addend) {
  check(g);
  if (g.m == 0 || g.n == 0 || g.batch == 0) return;
  if (!g.has_bias) bias = nullptr;
  if (state_->tune && stream.capture_status() == CaptureStatus::none) state_->note(g);
  a = virtual_gpu::followed(a), b = virtual_gpu::followed(b), c = virtual_gpu::followed(c);
  bias = virtual_gpu::followed(bias);
  addend = addend ? virtual_gpu::followed(addend) : c;
  virtual_gpu::enqueue(stream, "gemm", [g, a, b, addend, c, bias] {
    switch (g.type) {
      case Type::f64: return run<double, double>(g, a, b, addend, c, bias);
      case Type::f16:
        return g.output == Type::f32 ? run<Half, float>(g, a, b, addend, c, bias)
                                     : run<Half, Half>(g, a, b, addend, c, bias);
      case Type::bf16:
        return g.output == Type::f32 ? run<BFloat16, float>(g, a, b, addend, c, bias)
                                     : run<BFloat16, BFloat16>(g, a, b, addend, c, bias);
      case Type::i8: return run<int8_t, int32_t>(g, a, b, addend, c, bias);
      case Type::u8: return run<uint8_t, int32_t>(g, a, b, addend, c, bias);
      default: return g.tf32 ? run<Tf32, float>(g, a, b, addend, c, bias) : run<float, float>(g, a, b, addend, c, bias);
    }
  });
}

}  // namespace encore::device
