#include "ops/matmul/contract.h"

#include <algorithm>
#include <type_traits>
#include <vector>

#include "ops/dispatch.h"
#include "ops/elementwise/broadcast.h"
#include "ops/reduce/team.h"

namespace encore::ops {
namespace {

using device::Block;
using device::NoShared;

// Unsigned integers of fewer than 32 bits would be promoted to int, and overflow.
template <class T>
using Term = std::conditional_t<std::is_integral_v<T> && sizeof(T) < 4, uint32_t, Compute<T>>;

// A team for each output.
template <class T, int kLanes>
struct Contract {
  using C = Term<T>;
  using Together = Team<kLanes>;
  static constexpr int kMaxThreads = 256;

  const T *a, *b;
  T* out;
  int64_t outputs, terms;
  Walk kept, summed;

  // One output a thread.
  DEVICE_FN void operator()(int64_t i) const {
    int64_t at[2];
    kept.find(i, at);
    out[i] = T(sum(at, 0, 1));
  }
  DEVICE_FN void operator()(Block<NoShared>& block, const NoShared&) const {
    auto all = Together::reduce(
        block, C(0),
        [&](int t) {
          const int64_t i = Together::index(block, t);
          if (i >= outputs) return C(0);
          int64_t at[2];
          kept.find(i, at);
          return sum(at, Together::lane(t), Together::size(block));
        },
        Plus());
    block.threads([&](int t, NoShared&) {
      const int64_t i = Together::index(block, t);
      if (Together::lane(t) == 0 && i < outputs) out[i] = T(all[t]);
    });
  }

 private:
  DEVICE_FN C sum(const int64_t (&from)[2], int64_t first, int step) const {
    C all = 0;
    for (int64_t k = first; k < terms; k += step) {
      int64_t at[2];
      summed.find(k, at);
      all += C(a[from[0] + at[0]]) * C(b[from[1] + at[1]]);
    }
    return all;
  }
};

// Innermost first, where neighbours that both operands walk alike are one.
std::vector<WalkedDim> merged(std::span<const ContractDim> dims) {
  std::vector<WalkedDim> all;
  for (size_t i = dims.size(); i-- > 0;) {
    const ContractDim& dim = dims[i];
    if (dim.size == 1) continue;
    if (!all.empty()) {
      WalkedDim& inner = all.back();
      if (dim.a_stride == inner.strides[0] * inner.size && dim.b_stride == inner.strides[1] * inner.size) {
        inner.size *= dim.size;
        continue;
      }
    }
    all.push_back({dim.size, {dim.a_stride, dim.b_stride}});
  }
  if (all.empty()) all.push_back({1, {}});
  return all;
}

int64_t count_of(std::span<const WalkedDim> dims) {
  int64_t count = 1;
  for (const WalkedDim& dim : dims) count = checked_product(count, dim.size);
  return count;
}

template <class T>
void launch(StreamRef stream, const T* a, const T* b, T* out, std::span<const WalkedDim> kept,
            std::span<const WalkedDim> summed) {
  const int64_t outputs = count_of(kept), terms = count_of(summed);
  const auto with = [&]<int kLanes>() {
    return Contract<T, kLanes>{a, b, out, outputs, terms, Walk(kept, outputs), Walk(summed, terms)};
  };
  const auto teams = [&](auto kernel, int64_t a_block, int threads) {
    device::block_kernel<NoShared>(stream, {(outputs + a_block - 1) / a_block, threads}, kernel);
  };
  // Threads of a team read neighbours if both operands have these along the sum; if not, neighbouring outputs do.
  const bool along_the_sum = summed[0].strides[0] == 1 && summed[0].strides[1] == 1;
  const int64_t many = along_the_sum ? int64_t(1) << 22 : int64_t(1) << 14;
  if (terms < 32 || outputs >= many)
    device::for_each_index(stream, outputs, with.template operator()<1>());
  else if (terms < 2048 || outputs >= 4096)
    teams(with.template operator()<32>(), 8, 256);
  else
    teams(with.template operator()<0>(), 1, 256);
}

}  // namespace

void contract(StreamRef stream, Type type, const void* a, const void* b, void* out, std::span<const ContractDim> kept,
              std::span<const ContractDim> summed) {
  const std::vector<WalkedDim> outer = merged(kept), inner = merged(summed);
  require(inner.size() <= size_t(kMostSummedDims), "a sum along ", inner.size(), " dimensions; up to ", kMostSummedDims,
          " are supported");
  const auto walked = std::span(outer).first(std::min<size_t>(outer.size(), Walk::kMostDims));
  const auto rest = std::span(outer).subspan(walked.size());
  const int64_t outputs = count_of(walked), launches = count_of(rest);
  if (outputs == 0) return;
  dispatch(TypeList<float, Half, BFloat16, double, uint32_t, uint64_t>{}, as_unsigned(type), [&]<class T> {
    for (int64_t i = 0; i < launches; ++i) {
      int64_t a_at = 0, b_at = 0, index = i;
      for (const WalkedDim& dim : rest) {
        a_at += index % dim.size * dim.strides[0];
        b_at += index % dim.size * dim.strides[1];
        index /= dim.size;
      }
      launch(stream, static_cast<const T*>(a) + a_at, static_cast<const T*>(b) + b_at,
             static_cast<T*>(out) + i * outputs, walked, inner);
    }
  });
}

}  // namespace encore::ops
