// Convolutions as matrix products: windows become columns, weights [channels, taps] multiply them.
#include "ops/nn/convolve.h"

#include <algorithm>

#include "device/launch.h"
#include "ops/dispatch.h"
#include "ops/nn/channel_map.h"

namespace encore::ops {
namespace {

using device::Compute;
using device::Divider;

constexpr int64_t kMostColumnBytes = int64_t{256} << 20;

template <class T>
struct SetBias {
  static constexpr bool kReads = false;
  const T* bias;
  DEVICE_FN T of(int64_t channel) const { return bias[channel]; }
  DEVICE_FN T apply(T of) const { return of; }
};
template <class T>
struct AddBias {
  static constexpr bool kReads = true;
  const T* bias;
  DEVICE_FN Compute<T> of(int64_t channel) const { return Compute<T>(bias[channel]); }
  DEVICE_FN Compute<T> apply(Compute<T> of, Compute<T> x) const { return x + of; }
};

// columns[image, channel, tap, position - first] = x at that tap of the window at that position.
template <class T>
struct TakeColumns {
  const T* x;
  T* columns;
  Window w;
  int64_t first, count;
  Divider by_count;
  Positions positions;
  DEVICE_FN void operator()(int64_t i) const {
    int64_t rest;
    const int64_t plane = by_count(i, rest);
    int at[kSpatial];
    positions(first + rest, at);
    const T* from = x + plane * w.in_count();
    T* to = columns + plane * w.taps() * count + rest;
    const int z0 = at[0] * w.stride[0] - w.before[0], y0 = at[1] * w.stride[1] - w.before[1];
    const int x0 = at[2] * w.stride[2] - w.before[2];
    for (int a = 0; a < w.kernel[0]; ++a) {
      const int z = z0 + a * w.dilation[0];
      for (int b = 0; b < w.kernel[1]; ++b) {
        const int y = y0 + b * w.dilation[1];
        const bool inside = unsigned(z) < unsigned(w.in[0]) && unsigned(y) < unsigned(w.in[1]);
        const T* row = from + (int64_t(z) * w.in[1] + y) * w.in[2];
        for (int c = 0; c < w.kernel[2]; ++c) {
          const int column = x0 + c * w.dilation[2];
          *to = inside && unsigned(column) < unsigned(w.in[2]) ? row[column] : T(0.f);
          to += count;
        }
      }
    }
  }
};

// y[image, channel, place] = bias + the sum of all columns whose tap falls on that place.
template <class T>
struct GatherColumns {
  const T *columns, *bias;
  T* y;
  Window w;
  Positions places;
  Divider channels;
  DEVICE_FN void operator()(int64_t i) const {
    int at[kSpatial];
    const int64_t plane = places(i, at);
    Compute<T> sum = 0;
    if (bias) {
      int64_t channel;
      channels(plane, channel);
      sum = Compute<T>(bias[channel]);
    }
    const int64_t positions = w.out_count();
    const T* from = columns + plane * w.taps() * positions;
    for (int a = 0; a < w.kernel[0]; ++a) {
      int z, y, x;
      if (!position(0, at[0], a, z)) continue;
      for (int b = 0; b < w.kernel[1]; ++b) {
        if (!position(1, at[1], b, y)) continue;
        for (int c = 0; c < w.kernel[2]; ++c) {
          if (!position(2, at[2], c, x)) continue;
          const int64_t tap = (int64_t(a) * w.kernel[1] + b) * w.kernel[2] + c;
          sum += Compute<T>(from[tap * positions + (int64_t(z) * w.out[1] + y) * w.out[2] + x]);
        }
      }
    }
    y[i] = T(sum);
  }

 private:
  // The window position whose tap lies here, if there is one.
  DEVICE_FN bool position(int d, int at, int tap, int& position) const {
    const int distance = at + w.before[d] - tap * w.dilation[d];
    if (distance < 0) return false;
    position = distance;
    if (w.stride[d] == 1) return distance < w.out[d];
    position = distance / w.stride[d];
    return position * w.stride[d] == distance && position < w.out[d];
  }
};

// One product for each group and image: as few calls as strides allow.
class GroupedProduct {
 public:
  device::Gemm gemm;  // of one group of one image
  int64_t groups, images;
  int64_t group_a, group_b, group_c, image_b, image_c;  // distances; `a`, the weights, is the same for all images

  void run(Context& context, const void* a, const void* b, void* c, void* workspace) const {
    const bool over_groups = images == 1;
    device::Gemm call = gemm;
    call.batch = over_groups ? groups : images;
    call.stride_a = over_groups ? group_a : 0;
    call.stride_b = over_groups ? group_b : image_b;
    call.stride_c = over_groups ? group_c : image_c;
    const auto size = int64_t(device::size_bytes(gemm.type));
    for (int64_t g = 0; g < (over_groups ? 1 : groups); ++g)
      context.blas().gemm(context.stream(), call, static_cast<const char*>(a) + g * group_a * size,
                          static_cast<const char*>(b) + g * group_b * size, static_cast<char*>(c) + g * group_c * size,
                          nullptr, workspace);
  }
};

template <class T>
void convolve_as(Context& context, const ConvProblem& p, const ConvData& data) {
  const Window& w = p.window;
  const int64_t positions = w.out_count(), depth = checked_product(p.in_channels, w.taps());  // of all groups
  const int64_t group_depth = depth / p.groups, group_channels = p.out_channels / p.groups;
  const int64_t image_in = p.in_channels * w.in_count(), image_out = p.out_channels * positions;
  const bool direct = w.is_pointwise();

  // As many images at once as the columns of may take; of a very large image, a part.
  const int64_t most = kMostColumnBytes / int64_t(sizeof(T));
  const int64_t image_columns = std::max<int64_t>(checked_product(depth, positions), 1);
  const int64_t images = direct ? p.images : std::clamp<int64_t>(most / image_columns, 1, p.images);
  const int64_t part = direct || image_columns <= most
                           ? positions
                           : std::clamp<int64_t>(most / std::max<int64_t>(depth, 1), 1, positions);
  T* columns = direct ? nullptr : static_cast<T*>(context.scratch(size_t(images * depth * part) * sizeof(T)));
  void* workspace = context.scratch(context.blas().workspace_bytes());

  T* y = static_cast<T*>(data.y);
  if (data.bias)
    map_channels(context.stream(), static_cast<const T*>(nullptr), y, p.images, p.out_channels, positions,
                 SetBias<T>{static_cast<const T*>(data.bias)});
  GroupedProduct product{};
  product.groups = p.groups;
  product.group_a = group_channels * group_depth;
  product.group_c = group_channels * positions;
  product.image_c = image_out;
  device::Gemm& gemm = product.gemm;
  gemm.type = gemm.output = p.type;
  gemm.m = group_channels;
  gemm.k = gemm.lda = group_depth;
  gemm.ldc = positions;
  gemm.beta = data.bias ? 1 : 0;
  gemm.tf32 = p.tf32;
  for (int64_t image = 0; image < p.images; image += images) {
    product.images = std::min(images, p.images - image);
    const T* x = static_cast<const T*>(data.x) + image * image_in;
    for (int64_t first = 0; first < positions; first += part) {
      const int64_t count = std::min(part, positions - first), planes = product.images * p.in_channels;
      gemm.n = gemm.ldb = count;
      product.group_b = group_depth * count;
      product.image_b = depth * count;
      if (!direct)
        device::for_each_index(
            context.stream(), planes * count,
            TakeColumns<T>{x, columns, w, first, count, Divider(count, planes * count), Positions(w.out, positions)});
      product.run(context, data.w, direct ? x : columns, y + image * image_out + first, workspace);
    }
  }
}

template <class T>
void convolve_transposed_as(Context& context, const ConvProblem& p, const ConvData& data) {
  const Window& w = p.window;
  const int64_t positions = w.out_count(), height = checked_product(p.out_channels, w.taps());
  const int64_t group_in = p.in_channels / p.groups, group_height = height / p.groups;
  const int64_t image_in = p.in_channels * positions, image_out = p.out_channels * w.in_count();
  const int64_t image_columns = std::max<int64_t>(checked_product(height, positions), 1);
  const int64_t images =
      std::clamp<int64_t>(kMostColumnBytes / int64_t(sizeof(T)) / image_columns, 1, std::max<int64_t>(p.images, 1));
  T* columns = static_cast<T*>(context.scratch(size_t(checked_product(images, image_columns)) * sizeof(T)));
  void* workspace = context.scratch(context.blas().workspace_bytes());

  GroupedProduct product{};
  product.groups = p.groups;
  product.group_a = group_in * group_height;
  product.group_b = group_in * positions;
  product.group_c = group_height * positions;
  product.image_b = image_in;
  product.image_c = height * positions;
  device::Gemm& gemm = product.gemm;
  gemm.type = gemm.output = p.type;
  gemm.m = gemm.lda = group_height;
  gemm.transpose_a = true;
  gemm.k = group_in;
  gemm.n = gemm.ldb = gemm.ldc = positions;
  gemm.tf32 = p.tf32;
  for (int64_t image = 0; image < p.images; image += images) {
    product.images = std::min(images, p.images - image);
    product.run(context, data.w, static_cast<const T*>(data.x) + image * image_in, columns, workspace);
    const int64_t n = product.images * image_out;
    device::for_each_index(
        context.stream(), n,
        GatherColumns<T>{columns, static_cast<const T*>(data.bias), static_cast<T*>(data.y) + image * image_out, w,
                         Positions(w.in, n), Divider(p.out_channels, n)});
  }
}

}  // namespace

void convolve(Context& context, const ConvProblem& problem, const ConvData& data) {
  dispatch(FloatList{}, problem.type, [&]<class T>() { convolve_as<T>(context, problem, data); });
}

void convolve_transposed(Context& context, const ConvProblem& problem, const ConvData& data) {
  dispatch(FloatList{}, problem.type, [&]<class T>() { convolve_transposed_as<T>(context, problem, data); });
}

void add_bias(Context& context, Type type, int64_t images, int64_t channels, int64_t width, const void* bias, void* y) {
  dispatch(FloatList{}, type, [&]<class T>() {
    map_channels(context.stream(), static_cast<const T*>(y), static_cast<T*>(y), images, channels, width,
                 AddBias<T>{static_cast<const T*>(bias)});
  });
}

}  // namespace encore::ops
