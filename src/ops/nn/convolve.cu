// Convolutions as matrix products: windows become columns, weights [channels, taps] multiply them.
#include "ops/nn/convolve.h"

#include <algorithm>

#include "device/memory.h"
#include "ops/dispatch.h"
#include "ops/elementwise/channel_map.h"
#include "ops/matmul/product.h"
#include "ops/nn/im2col.h"
#include "ops/shape/strided.h"

namespace encore::ops {
namespace {

// What columns may take at once.
int64_t most_column_bytes(Context& context) {
  return int64_t(std::min(context.dnn().settings().most_workspace_bytes, size_t{256} << 20));
}

template <class T>
struct SetBias {
  static constexpr bool kReads = false;
  const T* bias;
  DEVICE_FN T of(int64_t channel) const { return bias[channel]; }
  DEVICE_FN T apply(T of) const { return of; }
};
void fill_with_bias(StreamRef stream, Type type, const void* bias, void* y, int64_t batch, int64_t channels,
                    int64_t width) {
  dispatch(FloatList{}, type, [&]<class T>() {
    map_channels(stream, static_cast<const T*>(nullptr), static_cast<T*>(y), batch, channels, width,
                 SetBias<T>{static_cast<const T*>(bias)});
  });
}

// One product for each group and image: as few calls as strides allow.
class GroupedProduct {
 public:
  device::Gemm gemm;  // of one group of one image
  int64_t groups, images;
  int64_t group_a, group_b, group_c, image_b, image_c;  // distances; `a`, the weights, is the same for all images

  void run(Context& context, const void* a, const void* b, void* c, device::Workspace& workspace) const {
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

using FillColumns = std::function<void(const ColumnRange&, void* columns)>;

// `fill`: null where x is the columns. `disjoint`: they are what windows that share nothing have of x.
template <class T>
void convolve_as(Context& context, const ConvProblem& p, const ConvData& data, const FillColumns& fill, bool disjoint) {
  const Window& w = p.window;
  const int64_t positions = w.out_count(), depth = checked_product(p.in_channels, w.taps());  // of all groups
  const int64_t group_depth = depth / p.groups, group_channels = p.out_channels / p.groups;
  const int64_t image_in = p.in_channels * w.in_count(), image_out = p.out_channels * positions;
  const bool direct = !fill;

  // As many images at once as the columns of may take; of a very large image, a part.
  const int64_t most = most_column_bytes(context) / int64_t(sizeof(T));
  const int64_t image_columns = std::max<int64_t>(checked_product(depth, positions), 1);
  const int64_t images = direct ? p.images : std::clamp<int64_t>(most / image_columns, 1, p.images);
  const int64_t part = direct || image_columns <= most
                           ? positions
                           : std::clamp<int64_t>(most / std::max<int64_t>(depth, 1), 1, positions);
  // Columns that are copied whole are cheaper to make as rows.
  const bool as_rows = disjoint && part == positions;
  T* columns = direct ? nullptr : static_cast<T*>(context.scratch(size_t(images * depth * part) * sizeof(T)));
  ScratchWorkspace workspace(context);

  T* y = static_cast<T*>(data.y);
  if (data.bias) fill_with_bias(context.stream(), p.type, data.bias, y, p.images, p.out_channels, positions);
  GroupedProduct product{};
  product.groups = p.groups;
  product.group_a = group_channels * group_depth;
  product.group_c = group_channels * positions;
  product.image_c = image_out;
  device::Gemm& gemm = product.gemm;
  gemm.type = gemm.output = p.type;
  gemm.m = group_channels;
  gemm.k = gemm.lda = group_depth;
  gemm.transpose_b = as_rows;
  gemm.ldc = positions;
  gemm.beta = data.bias ? 1 : 0;
  gemm.tf32 = p.tf32;
  for (int64_t image = 0; image < p.images; image += images) {
    product.images = std::min(images, p.images - image);
    const T* x = static_cast<const T*>(data.x) + image * image_in;
    for (int64_t first = 0; first < positions; first += part) {
      const int64_t count = std::min(part, positions - first);
      gemm.n = count;
      gemm.ldb = as_rows ? group_depth : count;
      product.group_b = group_depth * count;
      product.image_b = depth * count;
      if (as_rows)
        copy_windows(context.stream(), p, product.images, x, columns);
      else if (fill)
        fill({image, product.images, first, count}, columns);
      product.run(context, data.w, direct ? x : columns, y + image * image_out + first, workspace);
    }
  }
}

// Positions are rows, so the bias of a single group goes with the product; the groups' products are one call. What
// comes of channels first is turned at the end.
void convolve_rows(Context& context, const ConvProblem& p, const ConvData& data, bool turns) {
  const Window& w = p.window;
  const auto size = int64_t(device::size_bytes(p.type));
  const int64_t channels = p.in_channels / p.groups, out_channels = p.out_channels / p.groups;
  const int64_t depth = checked_product(channels, w.taps()), positions = p.images * w.out_count();
  const bool direct = w.is_pointwise();
  const int64_t row_bytes = checked_product(p.in_channels, w.taps()) * size;
  const int64_t part =
      direct ? positions
             : std::clamp<int64_t>(most_column_bytes(context) / std::max<int64_t>(row_bytes, 1), 1, positions);
  void* const rows = direct ? nullptr : context.scratch(size_t(checked_product(part, row_bytes)));
  void* const y = turns ? context.scratch(size_t(positions * p.out_channels * size)) : data.y;
  ScratchWorkspace workspace(context);
  const bool bias_first = data.bias && p.groups > 1;
  if (bias_first) fill_with_bias(context.stream(), p.type, data.bias, y, positions, p.out_channels, 1);

  device::Gemm gemm;
  gemm.type = gemm.output = p.type;
  gemm.n = gemm.stride_c = out_channels;
  gemm.k = gemm.ldb = depth;
  gemm.transpose_b = true;
  gemm.lda = direct ? p.in_channels : depth;
  gemm.ldc = p.out_channels;
  gemm.batch = p.groups;
  gemm.stride_b = out_channels * depth;
  gemm.beta = bias_first ? 1 : 0;
  gemm.has_bias = data.bias && !bias_first;
  gemm.tf32 = p.tf32;
  for (int64_t first = 0; first < positions; first += part) {
    gemm.m = std::min(part, positions - first);
    gemm.stride_a = direct ? channels : gemm.m * depth;
    if (p.groups == 1 && part == positions && !direct && w.is_disjoint())
      copy_windows(context.stream(), p, p.images, data.x, rows);
    else if (!direct)
      im2row(context.stream(), p, data.x, first, gemm.m, rows);
    context.blas().gemm(context.stream(), gemm, direct ? data.x : rows, data.w,
                        static_cast<char*>(y) + first * p.out_channels * size, gemm.has_bias ? data.bias : nullptr,
                        workspace);
  }
  if (!turns) return;
  StridedCopy turn;
  turn.add(p.images, w.out_count() * p.out_channels, w.out_count() * p.out_channels);
  turn.add(p.out_channels, 1, w.out_count());
  turn.add(w.out_count(), p.out_channels, 1);
  turn.run(context.stream(), y, data.y, size_t(size));
}

}  // namespace

void convolve_columns(Context& context, const ConvProblem& p, const ConvData& data, const FillColumns& fill) {
  dispatch(FloatList{}, p.type, [&]<class T>() { convolve_as<T>(context, p, data, fill, false); });
}

bool wants_arranging(const Shape& w, int64_t groups) {
  const int64_t taps = w.count(2, w.rank());
  return taps > 1 && (w[1] > 1 || (groups > 1 && w[0] > 1));
}

void arrange_weights(StreamRef stream, const Tensor& w, int64_t groups, void* into) {
  const int64_t outputs = w.shape[0], channels = w.shape[1], taps = w.shape.count(2, w.shape.rank());
  StridedCopy copy;
  if (channels == 1 && groups > 1) {
    copy.add(taps, 1, outputs);
    copy.add(outputs, taps, 1);
  } else {
    copy.add(outputs, channels * taps, channels * taps);
    copy.add(taps, 1, channels);
    copy.add(channels, taps, 1);
  }
  copy.run(stream, w.data, into, device::size_bytes(w.type));
}

bool suits_product(const ConvProblem& p) {
  constexpr int64_t kWide = 8;  // channels of a group
  if (p.groups == 1) return p.window.is_disjoint();
  return std::min(p.in_channels, p.out_channels) / p.groups >= kWide;
}

// Large windows that share nothing, as those that cut a picture to patches, cuDNN does badly, and large ones of groups.
bool is_product(const ConvProblem& problem, const device::DnnSettings& settings) {
  constexpr int64_t kLarge = 16;
  return !settings.measures() && suits_product(problem) && problem.window.taps() >= kLarge;
}

void convolve(Context& context, const ConvProblem& problem, const ConvData& data) {
  // Of single positions both layouts are the same.
  const Window& w = problem.window;
  const bool single = problem.groups == 1 && w.is_pointwise() && w.out_count() == 1;
  const bool turns = problem.layout == Layout::channels_first && problem.groups > 1 && !w.is_pointwise();
  if (problem.layout == Layout::channels_last || single || turns) return convolve_rows(context, problem, data, turns);
  FillColumns fill;
  if (!w.is_pointwise())
    fill = [&](const ColumnRange& range, void* columns) { im2col(context.stream(), problem, data.x, range, columns); };
  const bool disjoint = problem.groups == 1 && w.kernel[2] > 1 && w.is_disjoint();
  dispatch(FloatList{}, problem.type, [&]<class T>() { convolve_as<T>(context, problem, data, fill, disjoint); });
}

std::optional<device::Gemm> pointwise_product(const ConvProblem& p, const ConvData& data, const void* residual) {
  const int64_t positions = p.window.out_count();
  if (p.groups != 1 || !p.window.is_pointwise() || (p.layout == Layout::channels_first && positions != 1)) return {};
  device::Gemm gemm;
  gemm.type = gemm.output = p.type;
  gemm.m = p.images * positions;
  gemm.n = gemm.ldc = p.out_channels;
  gemm.k = gemm.ldb = p.in_channels;
  gemm.lda = x_pitch(p, data);
  gemm.transpose_b = true;
  gemm.beta = residual ? 1 : 0;
  gemm.tf32 = p.tf32;
  gemm.constant_b = data.constant_w;
  return gemm;
}

bool convolve_pointwise(Context& context, const ConvProblem& p, const ConvData& data, const void* residual,
                        const Activation& activation) {
  const auto gemm = pointwise_product(p, data, residual);
  if (gemm) product(context, *gemm, {data.x, data.w, data.bias, data.y, residual}, activation);
  return gemm.has_value();
}

void convolve_transposed(Context& context, const ConvProblem& p, const ConvData& data) {
  const bool last = p.layout == Layout::channels_last;
  const auto size = int64_t(device::size_bytes(p.type));
  const int64_t positions = p.window.out_count(), height = checked_product(p.out_channels, p.window.taps());
  const int64_t group_in = p.in_channels / p.groups, group_height = height / p.groups;
  const int64_t image_in = p.in_channels * positions, image_out = p.out_channels * p.window.in_count();
  const int64_t image_columns = std::max<int64_t>(checked_product(height, positions), 1);
  const int64_t most =
      std::clamp<int64_t>(most_column_bytes(context) / size / image_columns, 1, std::max<int64_t>(p.images, 1));
  auto* const columns = static_cast<char*>(context.scratch(size_t(checked_product(most, image_columns) * size)));
  ScratchWorkspace workspace(context);

  device::Gemm gemm;
  gemm.type = gemm.output = p.type;
  gemm.k = group_in;
  gemm.tf32 = p.tf32;
  for (int64_t image = 0; image < p.images; image += most) {
    const int64_t images = std::min(most, p.images - image);
    const char* x = static_cast<const char*>(data.x) + image * image_in * size;
    if (last) {  // a row for each position of all images
      gemm.m = images * positions;
      gemm.n = gemm.ldb = gemm.ldc = group_height;
      gemm.lda = p.in_channels;
      gemm.batch = p.groups;
      gemm.stride_a = group_in;
      gemm.stride_b = group_in * group_height;
      gemm.stride_c = gemm.m * group_height;
      context.blas().gemm(context.stream(), gemm, x, data.w, columns, nullptr, workspace);
    } else {
      gemm.m = gemm.lda = group_height;
      gemm.transpose_a = true;
      gemm.n = gemm.ldb = gemm.ldc = positions;
      const GroupedProduct product{
          gemm,     p.groups,          images, group_in * group_height, group_in * positions, group_height * positions,
          image_in, height * positions};
      product.run(context, data.w, x, columns, workspace);
    }
    col2im(context.stream(), p, images, columns, data.bias, static_cast<char*>(data.y) + image * image_out * size);
  }
}

void set_bias(Context& context, const ConvProblem& p, const Tensor& y, const void* bias) {
  if (!bias) return device::fill(context.stream(), y.data, 0, y.bytes());
  const bool last = p.layout == Layout::channels_last;
  const int64_t rows = y.count() / p.out_channels;  // of channels
  fill_with_bias(context.stream(), p.type, bias, y.data, last ? rows : p.images, p.out_channels,
                 last ? 1 : rows / p.images);
}

}  // namespace encore::ops
