// Operands of matrix products for tests, and what may come out: loops in double.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "device/blas.h"
#include "device/device.h"

namespace encore::device {

inline bool on_cuda() { return std::string(backend()) == "cuda"; }

template <class T>
struct Numbers {
  static constexpr bool kInteger = false;
  using Out = T;
};
template <>
struct Numbers<int8_t> {
  static constexpr bool kInteger = true;
  using Out = int32_t;
};
template <>
struct Numbers<uint8_t> {
  static constexpr bool kInteger = true;
  using Out = int32_t;
};

// The relative rounding error of one operation's result.
template <class T>
constexpr double kUnit = 0;
template <>
constexpr double kUnit<float> = 0x1p-24;
template <>
constexpr double kUnit<double> = 0x1p-53;
template <>
constexpr double kUnit<Half> = 0x1p-11;
template <>
constexpr double kUnit<BFloat16> = 0x1p-8;

template <class T>
std::vector<T> random_values(size_t count, uint32_t seed) {
  std::mt19937 engine(seed);
  std::vector<T> values(count);
  for (T& value : values) {
    if constexpr (Numbers<T>::kInteger)
      value = T(engine());
    else
      value = T((float(engine() >> 8) / float(1 << 23)) - 1.0f);
  }
  return values;
}

template <class T>
double number(T value) {
  if constexpr (std::is_arithmetic_v<T>)
    return double(value);
  else
    return double(float(value));
}

inline double after(Epilogue epilogue, double value) {
  if (epilogue == Epilogue::relu) return value < 0 ? 0 : value;
  if (epilogue == Epilogue::gelu_tanh)
    return 0.5 * value * (1 + std::tanh(std::sqrt(2 / M_PI) * (value + 0.044715 * value * value * value)));
  return value;
}

inline size_t extent(int64_t rows, int64_t columns, int64_t distance, int64_t batch, int64_t stride) {
  if (rows == 0 || columns == 0 || batch == 0) return 0;
  return size_t((batch - 1) * stride + (rows - 1) * distance + columns);
}

// Operands of one problem on the host, with NaN (or garbage) wherever a product must not look.
template <class T>
struct Case {
  using Out = typename Numbers<T>::Out;
  Gemm gemm;
  std::vector<T> a, b;
  std::vector<Out> c, bias;

  explicit Case(Gemm g, uint32_t seed = 1) : gemm(g) {
    gemm.type = kTypeOf<T>;
    gemm.output = kTypeOf<Out>;
    if (!gemm.lda) gemm.lda = g.transpose_a ? g.m : g.k;
    if (!gemm.ldb) gemm.ldb = g.transpose_b ? g.k : g.n;
    if (!gemm.ldc) gemm.ldc = g.n;
    const int64_t a_rows = g.transpose_a ? g.k : g.m, a_columns = g.transpose_a ? g.m : g.k;
    const int64_t b_rows = g.transpose_b ? g.n : g.k, b_columns = g.transpose_b ? g.k : g.n;
    a = random_values<T>(extent(a_rows, a_columns, gemm.lda, g.batch, g.stride_a), seed);
    b = random_values<T>(extent(b_rows, b_columns, gemm.ldb, g.batch, g.stride_b), seed + 1);
    c = random_values<Out>(extent(g.m, g.n, gemm.ldc, g.batch, g.stride_c), seed + 2);
    if constexpr (Numbers<T>::kInteger) {
      for (Out& value : c) value &= 0xffff;
    } else {
      if (g.beta == 0)
        for (Out& value : c) value = Out(std::numeric_limits<float>::quiet_NaN());
    }
    if (g.has_bias) bias = random_values<Out>(size_t(g.n), seed + 3);
  }

  // Also the sum of the magnitudes, which bounds what rounding may do.
  double exact(int64_t i, int64_t row, int64_t column, double& magnitude) const {
    double sum = 0;
    magnitude = 0;
    for (int64_t k = 0; k < gemm.k; ++k) {
      const T left = a[size_t(i * gemm.stride_a + (gemm.transpose_a ? k * gemm.lda + row : row * gemm.lda + k))];
      const T right = b[size_t(i * gemm.stride_b + (gemm.transpose_b ? column * gemm.ldb + k : k * gemm.ldb + column))];
      sum += number(left) * number(right);
      magnitude += std::abs(number(left) * number(right));
    }
    sum *= gemm.alpha;
    magnitude *= std::abs(gemm.alpha);
    const auto add = [&](double more) { sum += more, magnitude += std::abs(more); };
    if (gemm.beta != 0) add(gemm.beta * number(c[place(i, row, column)]));
    if (gemm.has_bias) add(number(bias[size_t(column)]));
    return after(gemm.epilogue, sum);
  }

  // Of each element in turn, computed once: what is changed is changed before.
  struct Exact {
    double value, magnitude;
  };
  const std::vector<Exact>& all_exact() const {
    if (!known_.empty()) return known_;
    for (int64_t i = 0; i < gemm.batch; ++i)
      for (int64_t row = 0; row < gemm.m; ++row)
        for (int64_t column = 0; column < gemm.n; ++column) {
          Exact& made = known_.emplace_back();
          made.value = exact(i, row, column, made.magnitude);
        }
    return known_;
  }

  size_t place(int64_t i, int64_t row, int64_t column) const {
    return size_t(i * gemm.stride_c + row * gemm.ldc + column);
  }
  // Where the result goes if c is the addend beside it.
  std::vector<Out> unwritten() const {
    std::vector<Out> values = c;
    for (int64_t i = 0; i < gemm.batch; ++i)
      for (int64_t row = 0; row < gemm.m; ++row)
        for (int64_t column = 0; column < gemm.n; ++column)
          values[place(i, row, column)] = Out(std::numeric_limits<float>::quiet_NaN());
    return values;
  }

  void expect_equal(const std::vector<Out>& got) const {
    ASSERT_EQ(got.size(), c.size());
    std::vector<bool> written(c.size(), false);
    auto wanted = all_exact().begin();
    int wrong = 0;
    for (int64_t i = 0; i < gemm.batch; ++i)
      for (int64_t row = 0; row < gemm.m; ++row)
        for (int64_t column = 0; column < gemm.n; ++column) {
          const size_t at = place(i, row, column);
          written[at] = true;
          const auto [want, magnitude] = *wanted++;
          double slack = 0;
          if constexpr (!Numbers<T>::kInteger) {
            const double inner = std::is_same_v<T, double> ? 0x1p-53 : gemm.tf32 ? 0x1p-10 : 0x1p-24;
            slack = inner * double(gemm.k + 8) * magnitude + 2 * kUnit<Out> * std::abs(want) +
                    0x1p-24 * (kUnit<Out> > 0x1p-24);
            // cuBLASLt may round the product to the result's type before it adds c.
            if (on_cuda() && gemm.beta != 0) slack += kUnit<Out> * magnitude;
            if (gemm.epilogue == Epilogue::gelu_tanh) slack += (on_cuda() ? 1e-3 : 4 * inner) * (1 + std::abs(want));
          }
          const double have = number(got[at]);
          if (!(std::abs(have - want) <= slack) && ++wrong <= 3)
            ADD_FAILURE() << describe(gemm) << " [" << i << "][" << row << "][" << column << "] is " << have << ", not "
                          << want;
        }
    EXPECT_EQ(wrong, 0);
    for (size_t at = 0; at < c.size(); ++at)
      if (!written[at]) {
        ASSERT_EQ(std::memcmp(&got[at], &c[at], sizeof(Out)), 0)
            << describe(gemm) << " wrote between its rows, at " << at;
      }
  }

 private:
  mutable std::vector<Exact> known_;
};

template <class T>
std::vector<T> shifted(std::vector<T> values, int offset) {
  values.insert(values.begin(), size_t(offset), T{});
  return values;
}

}  // namespace encore::device
