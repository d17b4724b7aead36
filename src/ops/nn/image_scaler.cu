// ImageScaler and Crop, experimental operators of the first ONNX, which runtimes still know.
#include "ops/dispatch.h"
#include "ops/elementwise/channel_map.h"
#include "ops/keep_list.h"
#include "ops/registry.h"
#include "ops/shape/strided.h"

namespace encore::ops {
namespace {

using device::Compute;

// x * scale + bias[channel]
template <class C>
struct Scaled {
  static constexpr bool kReads = true;
  float scale;
  const float* bias;
  DEVICE_FN C of(int64_t channel) const { return C(bias[channel]); }
  DEVICE_FN C apply(C offset, C x) const { return x * C(scale) + offset; }
};

void check_image(const Shape& x) {
  require(x.rank() == 4, "the input has shape ", x.str(), "; it must be [batch, channels, height, width]");
}

class ImageScaler : public Op {
 public:
  explicit ImageScaler(const NodeInfo& node)
      : scale_(node.get_float("scale", 1.f)), bias_(node.find_floats("bias").value_or(std::vector<float>())) {}
  void prepare(Prepack& prepack) override { on_device_ = keep_list(prepack, bias_); }
  void run(Context& context) const override {
    const Tensor& x = context.input(0);
    check_image(x.shape);
    require(int64_t(bias_.size()) == x.shape[1], "attribute bias has ", bias_.size(), " values, the input ",
            x.shape.str(), " has ", x.shape[1], " channels");
    const Tensor y = context.output(0, x.shape);
    dispatch(FloatList{}, x.type, [&]<class T>() {
      map_channels(context.stream(), x.as<const T>(), y.as<T>(), x.shape[0], x.shape[1], x.shape.count(2, 4),
                   Scaled<Compute<T>>{scale_, on_device_});
    });
  }

 private:
  float scale_;
  std::vector<float> bias_;
  const float* on_device_ = nullptr;
};

class Crop : public Op {
 public:
  explicit Crop(const NodeInfo& node)
      : border_(node.find_ints("border").value_or(std::vector<int64_t>())),
        scale_(node.find_ints("scale").value_or(std::vector<int64_t>())) {
    if (border_.size() != 4)
      fail(Code::not_supported, "attribute border has ", border_.size(),
           " values; it must have 4: left, top, right and bottom");
    if (!scale_.empty() && scale_.size() != 2)
      fail(Code::not_supported, "attribute scale has ", scale_.size(), " values; it must have 2: height and width");
  }
  void run(Context& context) const override {
    const Tensor& x = context.input(0);
    check_image(x.shape);
    const int64_t top = border_[1], left = border_[0];
    const int64_t height = kept(x.shape[2], top, border_[3], 0), width = kept(x.shape[3], left, border_[2], 1);
    const Tensor y = context.output(0, x.shape.with(2, height).with(3, width));
    if (y.count() == 0) return;
    const auto from = strides_of(x.shape), to = strides_of(y.shape);
    StridedCopy copy;
    for (int i = 0; i < 4; ++i) copy.add(y.shape[i], from[size_t(i)], to[size_t(i)]);
    const size_t bytes = device::size_bytes(x.type);
    copy.run(context.stream(), x.as<const char>() + (top * from[2] + left) * int64_t(bytes), y.data, bytes);
  }

 private:
  // How long a dimension is without its borders, or as `scale` has it.
  int64_t kept(int64_t dim, int64_t before, int64_t after, size_t which) const {
    require(before >= 0 && before <= dim, "the border ", before, " does not fit dimension ", dim);
    if (scale_.empty()) {
      require(after >= 0 && after <= dim - before, "the borders ", before, " and ", after, " do not fit dimension ",
              dim);
      return dim - before - after;
    }
    require(scale_[which] >= 0 && scale_[which] <= dim - before, "a size of ", scale_[which], " after the border ",
            before, " does not fit dimension ", dim);
    return scale_[which];
  }
  std::vector<int64_t> border_, scale_;
};

}  // namespace

std::vector<OpRow> image_scaler_rows() {
  return {
      {.name = "ImageScaler", .since = 1, .until = 1, .types = {in(0, kFloats)}, .make = make<ImageScaler>},
      {.name = "Crop", .since = 1, .until = 1, .types = {in(0, kFloats)}, .make = make<Crop>},
  };
}

}  // namespace encore::ops
