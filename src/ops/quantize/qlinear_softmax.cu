// QLinearSoftmax: of 8-bit integers there are but 256 exponentials, which a block makes once.
#include <algorithm>

#include "device/divide.h"
#include "device/launch.h"
#include "ops/quantize/linear_bytes.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

using device::Block;

// A group of threads makes a row, whose elements are `inner` apart, after another.
struct SoftmaxBytes {
  static constexpr int kThreads = 256, kMaxThreads = kThreads, kGroup = 32, kRows = kThreads / kGroup;
  struct Shared {
    float powers[256];  // of e, to minus so many steps of the scale
  };
  const uint8_t* x;
  uint8_t* y;
  LinearBytes from, to;
  int64_t rows, width;
  device::Divider inner;

  DEVICE_FN void operator()(Block<Shared>& b, const Shared& shared) const {
    b.threads([&](int t, Shared& s) { s.powers[t] = float(exp(-double(t) * double(*from.scale))); });
    const float one = floor(1.f / *to.scale);
    device::PerThread<int, kMaxThreads> largest;
    device::PerThread<float, kMaxThreads> sum;
    for (int64_t first = b.index() * kRows; first < rows; first += b.count() * kRows) {
      b.reduce_groups<kGroup>(
          largest,
          [&](int t) {
            int mine = from.least();
            for_each(first, t, [&](int64_t at) { mine = larger(mine, from.whole(x[at])); });
            return mine;
          },
          [](int v, int w) { return larger(v, w); });
      b.reduce_groups<kGroup>(
          sum,
          [&](int t) {
            float mine = 0;
            for_each(first, t, [&](int64_t at) { mine += shared.powers[largest[t] - from.whole(x[at])]; });
            return mine;
          },
          [](float v, float w) { return v + w; });
      b.threads([&](int t, Shared& s) {
        for_each(first, t, [&](int64_t at) {
          const float power = s.powers[largest[t] - from.whole(x[at])];
          y[at] = to.kept_in_range(rint(power * one / sum[t]) + float(to.zero_point()));
        });
      });
    }
  }

 private:
  DEVICE_FN static int larger(int v, int w) { return v > w ? v : w; }
  // Calls f(where an element is) for those of a thread.
  template <class F>
  DEVICE_FN void for_each(int64_t first, int t, F f) const {
    const int64_t row = first + t / kGroup;
    if (row >= rows) return;
    int64_t inside;
    const int64_t start = inner(row, inside) * width * inner.divisor() + inside;
    for (int64_t i = t % kGroup; i < width; i += kGroup) f(start + i * inner.divisor());
  }
};

class QLinearSoftmax : public Op {
 public:
  explicit QLinearSoftmax(const NodeInfo& node) {
    const auto opset = node.find_int("opset");
    require(opset.has_value() && *opset >= 1 && *opset <= 1 << 16, "opset is ", opset.value_or(0),
            "; one of ai.onnx's is wanted");
    one_axis_ = *opset >= 13;
    axis_ = node.get_int("axis", one_axis_ ? -1 : 1);
  }
  void run(Context& context) const override {
    const Tensor& x = context.input(0);
    const int axis = checked_axis(axis_, x.shape.rank());
    const LinearBytes from = LinearBytes::of(context, x.type, 1, 2, "X"),
                      to = LinearBytes::of(context, x.type, 3, 4, "Y");
    const Tensor y = context.output(0, x.shape);
    if (x.count() == 0) return;
    const int64_t inner = one_axis_ ? x.shape.count(axis + 1, x.shape.rank()) : 1;
    const int64_t width = one_axis_ ? x.shape[axis] : x.shape.count(axis, x.shape.rank()), rows = x.count() / width;
    constexpr int64_t kMostBlocks = 1024;
    device::block_kernel<SoftmaxBytes::Shared>(
        context.stream(),
        {std::min((rows + SoftmaxBytes::kRows - 1) / SoftmaxBytes::kRows, kMostBlocks), SoftmaxBytes::kThreads},
        SoftmaxBytes{x.as<const uint8_t>(), y.as<uint8_t>(), from, to, rows, width, device::Divider(inner, rows)});
  }

 private:
  bool one_axis_;
  int64_t axis_;
};

}  // namespace

std::vector<OpRow> qlinear_softmax_rows() {
  const Types bytes{Type::i8, Type::u8}, floats{Type::f32};
  return {{.domain = kMicrosoft,
           .name = "QLinearSoftmax",
           .since = 1,
           .until = 1,
           .types = {in(0, bytes), in(1, floats), in(3, floats), out(0, bytes)},
           .make = make<QLinearSoftmax>}};
}

}  // namespace encore::ops
