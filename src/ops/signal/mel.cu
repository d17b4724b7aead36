// MelWeightMatrix: triangles over the bins of a spectrum, evenly spaced on the mel scale.
#include <algorithm>
#include <cmath>

#include "device/divide.h"
#include "device/launch.h"
#include "ops/dispatch.h"
#include "ops/host_values.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

using device::Divider;

constexpr int64_t kMostBands = int64_t(1) << 20;

// y[bin, band]; a band rises from its edge to the next one, and falls to the one after.
template <class T>
struct Triangles {
  T* y;
  const int32_t* edges;
  Divider by_bands;
  DEVICE_FN void operator()(int64_t i) const {
    int64_t band;
    const int64_t bin = by_bands(i, band);
    const int64_t low = edges[band], center = edges[band + 1], high = edges[band + 2];
    float weight = 0;
    if (bin >= center && bin < high)
      weight = float(high - bin) / float(high - center);
    else if (bin == center && low == center)
      weight = 1;
    else if (bin >= low && bin <= center)
      weight = float(bin - low) / float(center - low);
    y[i] = T(weight);
  }
};

double host_number(const Tensor& tensor, const char* what) {
  require(tensor.count() == 1, what, " has ", tensor.count(), " values; it must have one");
  double value = 0;
  dispatch(FloatList{}, tensor.type, [&]<class T>() { value = *tensor.as<const T>(); });
  require(std::isfinite(value), what, " is ", value);
  return value;
}
int64_t host_count(const Tensor& tensor, const char* what, int64_t least) {
  require(tensor.count() == 1, what, " has ", tensor.count(), " values; it must have one");
  const int64_t value = host_ints(tensor, what)[0];
  constexpr int64_t kMost = int64_t(1) << 30;
  require(value >= least && value <= kMost, what, " is ", value, "; it must be from ", least, " to ", kMost);
  return value;
}

class MelWeightMatrix : public Op {
 public:
  explicit MelWeightMatrix(const NodeInfo&) {}
  void run(Context& context) const override {
    const int64_t bands = host_count(context.input(0), "num_mel_bins", 0),
                  length = host_count(context.input(1), "dft_length", 0),
                  rate = host_count(context.input(2), "sample_rate", 1);
    const auto lowest = float(host_number(context.input(3), "lower_edge_hertz")),
               highest = float(host_number(context.input(4), "upper_edge_hertz"));
    require(lowest >= 0 && highest >= lowest, "the edges are ", lowest, " and ", highest, " hertz");
    const Tensor y = context.output(0, Shape{length / 2 + 1, bands});
    if (y.count() == 0) return;
    require(bands <= kMostBands, "num_mel_bins is ", bands, "; ", kMostBands, " are the most");

    // In floats, as the CPU EP has it: a bin more or less would show.
    const auto mel_of = [](float hertz) { return float(2595 * std::log10(1 + hertz / 700)); };
    const float low = mel_of(lowest), step = (mel_of(highest) - low) / float(bands + 2);
    std::vector<int32_t> edges;
    for (int64_t i = 0; i < bands + 2; ++i) {
      const auto hertz = float(700 * (std::pow(10, (float(i) * step + low) / 2595) - 1));
      edges.push_back(int32_t(std::clamp<double>(std::floor(float(length + 1) * hertz / float(rate)), 0, 0x7fffff00)));
    }
    const int32_t* const in_memory = on_device(context, edges);
    dispatch(NumberList{}, y.type, [&]<class T>() {
      device::for_each_index(context.stream(), y.count(),
                             Triangles<T>{y.as<T>(), in_memory, Divider(bands, y.count())});
    });
  }
};

}  // namespace

std::vector<OpRow> mel_rows() {
  return {
      {.name = "MelWeightMatrix",
       .since = 17,
       .types = {in(0, kIndices), in(1, kIndices), in(2, kIndices), in(3, kFloats), in(4, kFloats), out(0, kNumbers)},
       .make = make<MelWeightMatrix>,
       .host_inputs = {0, 1, 2, 3, 4}}};
}

}  // namespace encore::ops
