// Multinomial: classes picked by their logarithms of probability, which need not add up to anything.
#include <cmath>

#include "device/divide.h"
#include "device/launch.h"
#include "ops/dispatch.h"
#include "ops/random/runs.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

using device::Compute;
using device::Divider;

// sums[row, k] = probability of the classes up to k, together, but for a factor. What is not finite has none.
template <class T>
struct SumUp {
  struct Shared {};
  static constexpr int kMaxThreads = 256;
  const T* logarithms;
  double* sums;
  int64_t classes;

  DEVICE_FN void operator()(device::Block<Shared>& block, const Shared&) const {
    const T* const row = logarithms + block.index() * classes;
    double* const to = sums + block.index() * classes;
    const double lowest = -INFINITY;
    const double largest = block.reduce(
        lowest,
        [&](int t) {
          double most = lowest;
          for (int64_t k = t; k < classes; k += block.size()) {
            const double value = double(Compute<T>(row[k]));
            if (std::isfinite(value) && value > most) most = value;
          }
          return most;
        },
        [](double a, double b) { return a < b ? b : a; });
    device::PerThread<double, kMaxThreads> before;
    double sum = 0;
    for (int64_t first = 0; first < classes; first += block.size()) {
      const auto share = [&](int t) {
        const int64_t k = first + t;
        const double value = k < classes ? double(Compute<T>(row[k])) : lowest;
        return std::isfinite(value) ? std::exp(value - largest) : 0.0;
      };
      const double all = block.scan(before, 0.0, share, [](double a, double b) { return a + b; });
      block.threads([&](int t, Shared&) {
        if (first + t < classes) to[first + t] = sum + before[t] + share(t);
      });
      sum += all;
    }
  }
};

template <class I>
struct Pick {
  const double* sums;
  I* y;
  int64_t classes;
  Divider by_samples;
  RandomRun run;
  DEVICE_FN void operator()(int64_t i) const {
    int64_t sample;
    const double* const row = sums + by_samples(i, sample) * classes;
    const device::Random4 random = run.words(i);
    const uint64_t word = uint64_t(random.word[0]) << 32 | random.word[1];
    const double wanted = double(word >> 11) * 0x1p-53 * row[classes - 1];
    int64_t low = 0, high = classes - 1;  // the first class whose sum is above what is wanted
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (row[middle] > wanted)
        high = middle;
      else
        low = middle + 1;
    }
    y[i] = I(low);
  }
};

class Multinomial : public Op {
 public:
  explicit Multinomial(const NodeInfo& node) : runs_(RandomRuns::of(node)), samples_(node.get_int("sample_size", 1)) {
    require(samples_ >= 1, "sample_size is ", samples_, "; it must be at least 1");
  }
  void prepare(Prepack& prepack) override { runs_.prepare(prepack); }
  void run(Context& context) const override {
    const Tensor& x = context.input(0);
    require(x.shape.rank() == 2, "the input has shape ", x.shape.str(), "; [rows, classes] is wanted");
    const int64_t rows = x.shape[0], classes = x.shape[1];
    require(classes >= 1, "there are no classes to choose from");
    const Tensor y = context.output(0, Shape{rows, samples_});
    if (y.count() == 0) return;
    auto* const sums = static_cast<double*>(context.scratch(size_t(x.count()) * sizeof(double)));
    const RandomRun run = runs_.next(context);
    dispatch(FloatList{}, x.type, [&]<class T>() {
      device::block_kernel<typename SumUp<T>::Shared>(context.stream(), {rows, SumUp<T>::kMaxThreads},
                                                      SumUp<T>{x.as<const T>(), sums, classes});
    });
    dispatch(TypeList<int32_t, int64_t>{}, y.type, [&]<class I>() {
      device::for_each_index(context.stream(), y.count(),
                             Pick<I>{sums, y.as<I>(), classes, Divider(samples_, y.count()), run});
    });
  }

 private:
  RandomRuns runs_;
  int64_t samples_;
};

}  // namespace

std::vector<OpRow> multinomial_rows() {
  return {{.name = "Multinomial", .since = 7, .types = {in(0, kFloats), out(0, kIndices)}, .make = make<Multinomial>}};
}

}  // namespace encore::ops
