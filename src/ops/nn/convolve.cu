// Convolutions as matrix products: windows become columns, weights [channels, taps] multiply them.
#include "ops/nn/convolve.h"

#include <algorithm>

#include "device/launch.h"
#include "device/memory.h"
#include "device/unaligned_pack.h"
#include "ops/dispatch.h"
#include "ops/elementwise/channel_map.h"
#include "ops/matmul/product.h"
#include "ops/shape/strided.h"

namespace encore::ops {
namespace {

using device::Compute;
using device::Divider;

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

// columns[image, channel, tap, position - first] = x at that tap of the window at that position.
template <class T>
struct Im2Col {
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
          *to = inside && unsigned(column) < unsigned(w.in[2]) ? row[column] : T{};
          to += count;
        }
      }
    }
  }
};

// y[image, channel, place] = bias + the sum of all columns whose tap falls on that place.
template <class T>
struct Col2ImSum {
  const T *columns, *bias;
  T* y;
  Window w;
  Elements elements;
  Divider by_group;                                              // the channels of one
  int64_t by_image, by_groups, by_channel, by_tap, by_position;  // from one column to the next

  DEVICE_FN void operator()(int64_t i) const {
    int at[kSpatial];
    int64_t channel, of_group;
    const int64_t image = elements(i, channel, at), group = by_group(channel, of_group);
    Compute<T> sum = bias ? Compute<T>(bias[channel]) : Compute<T>(0);
    const T* from = columns + image * by_image + group * by_groups + of_group * by_channel;
    for (int a = 0; a < w.kernel[0]; ++a) {
      int z, y, x;
      if (!position(0, at[0], a, z)) continue;
      for (int b = 0; b < w.kernel[1]; ++b) {
        if (!position(1, at[1], b, y)) continue;
        for (int c = 0; c < w.kernel[2]; ++c) {
          if (!position(2, at[2], c, x)) continue;
          const int64_t tap = (int64_t(a) * w.kernel[1] + b) * w.kernel[2] + c;
          sum += Compute<T>(from[tap * by_tap + ((int64_t(z) * w.out[1] + y) * w.out[2] + x) * by_position]);
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

// rows[group, position, tap, channel] = x at that tap of the window at that position, for the positions of all images
// from `first` on. T is some of a group's channels, which are only moved.
template <class T>
struct Im2Row {
  const T* x;
  T* rows;
  Window w;
  int64_t first, count, channels;  // of a group
  Divider by_channels, by_rows;
  Positions taps, positions;
  DEVICE_FN void operator()(int64_t i) const {
    int64_t channel, row;
    int tap[kSpatial], at[kSpatial];
    const int64_t group = by_rows(taps(by_channels(i, channel), tap), row), image = positions(first + row, at);
    int64_t place = image;
    bool inside = true;
    UNROLL for (int d = 0; d < kSpatial; ++d) {
      const int where = at[d] * w.stride[d] - w.before[d] + tap[d] * w.dilation[d];
      inside &= unsigned(where) < unsigned(w.in[d]);
      place = place * w.in[d] + where;
    }
    rows[i] = inside ? x[place * channels + group * by_channels.divisor() + channel] : T{};
  }
};

// The same where windows lie along the last dimension. A thread finds its position once for some taps, `apart` from one
// to the next, and asks for all of them before it has one.
template <class T>
struct Im2RowOfLines {
  static constexpr int kAtOnce = 8;
  const T* x;
  T* rows;
  Window w;
  int64_t first, channels;
  int apart;
  Divider by_channels, by_apart, by_rows;
  Positions positions;

  DEVICE_FN void operator()(int64_t i) const {
    int64_t channel, tap, row;
    int at[kSpatial];
    const int64_t line = by_apart(by_channels(i, channel), tap), wide = by_channels.divisor();
    const int64_t group = by_rows(line, row);
    int64_t place = positions(first + row, at);
    bool inside = true;
    UNROLL for (int d = 0; d < kSpatial - 1; ++d) {
      const int where = at[d] * w.stride[d] - w.before[d];
      inside &= unsigned(where) < unsigned(w.in[d]);
      place = place * w.in[d] + where;
    }
    const int taps = w.kernel[2], column = at[2] * w.stride[2] - w.before[2];
    const T* const from = x + place * w.in[2] * channels + group * wide + channel;
    T* const to = rows + line * taps * wide + channel;
    T values[kAtOnce] = {};
    UNROLL for (int k = 0; k < kAtOnce; ++k) {
      const int own = int(tap) + k * apart, where = column + own * w.dilation[2];
      if (own < taps && inside && unsigned(where) < unsigned(w.in[2])) values[k] = from[where * channels];
    }
    UNROLL for (int k = 0; k < kAtOnce; ++k) {
      const int own = int(tap) + k * apart;
      if (own < taps) to[own * wide] = values[k];
    }
  }
};

// rows[group, position, channel, tap] = the same, of x with its channels first.
template <class T>
struct Im2RowOfPlanes {
  static constexpr int kPack = device::pack_size<T>();
  const T* x;
  T* rows;
  int64_t n;
  Window w;
  int64_t first, groups;
  Divider by_channels, by_rows;
  Positions taps, positions;

  DEVICE_FN void operator()(int64_t i) const {
    const int64_t begin = i * kPack;
    const int count = n - begin < kPack ? int(n - begin) : kPack;
    int tap[kSpatial];
    int64_t window = taps(begin, tap);  // in one plane
    Line line = find_line(window, tap);
    device::Pack<T, kPack> pack;
    const bool of_one_line = tap[2] + count <= w.kernel[2];
    if (of_one_line && w.dilation[2] == 1 && line.column >= 0 && line.column + count <= line.size) {
      pack = device::load_unaligned_pack(line.at + line.column, count);
    } else if (of_one_line) {
      UNROLL for (int j = 0; j < kPack; ++j) {
        const int column = line.column + j * w.dilation[2];
        pack.at[j] = j < count && unsigned(column) < unsigned(line.size) ? line.at[column] : T{};
      }
    } else {
      UNROLL for (int j = 0; j < kPack; ++j) {
        pack.at[j] = unsigned(line.column) < unsigned(line.size) ? line.at[line.column] : T{};
        line.column += w.dilation[2];
        if (++tap[2] < w.kernel[2] || j + 1 >= count) continue;
        tap[2] = 0;
        if (++tap[1] == w.kernel[1]) {
          tap[1] = 0;
          if (++tap[0] == w.kernel[0]) {
            tap[0] = 0;
            ++window;
          }
        }
        line = find_line(window, tap);
      }
    }
    device::store_pack(rows + begin, pack, true, count);
  }

 private:
  struct Line {
    const T* at;
    int size, column;  // none of it, if it lies in padding
  };
  DEVICE_FN Line find_line(int64_t window, const int (&tap)[kSpatial]) const {
    int64_t channel, row;
    int at[kSpatial];
    const int64_t group = by_rows(by_channels(window, channel), row), image = positions(first + row, at);
    const int64_t plane = (image * groups + group) * by_channels.divisor() + channel;
    int where[kSpatial];
    UNROLL for (int d = 0; d < kSpatial; ++d) where[d] = at[d] * w.stride[d] - w.before[d] + tap[d] * w.dilation[d];
    const bool inside = unsigned(where[0]) < unsigned(w.in[0]) && unsigned(where[1]) < unsigned(w.in[1]);
    return {x + ((plane * w.in[0] + where[0]) * w.in[1] + where[1]) * w.in[2], inside ? w.in[2] : 0, where[2]};
  }
};

// The same for windows that share nothing, which is a copy: all images' positions one after the other, and of each
// [channel, tap] or, channels last, [tap, channel].
void copy_windows(StreamRef stream, const ConvProblem& p, int64_t images, const void* x, void* to) {
  const Window& w = p.window;
  const bool last = p.layout == Layout::channels_last;
  const int64_t place = last ? p.in_channels : 1;  // from one to the next
  int64_t to_stride = w.out_count() * p.in_channels * w.taps();
  StridedCopy copy;
  copy.add(images, w.in_count() * p.in_channels, to_stride);
  for (int d = 0; d < kSpatial; ++d) copy.add(w.out[d], w.in_step(d) * place * w.stride[d], to_stride /= w.out[d]);
  if (!last) copy.add(p.in_channels, w.in_count(), to_stride = w.taps());
  for (int d = 0; d < kSpatial; ++d) copy.add(w.kernel[d], w.in_step(d) * place, to_stride /= w.kernel[d]);
  if (last) copy.add(p.in_channels, 1, 1);
  copy.run(stream, x, to, device::size_bytes(p.type));
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

// Columns are only moved.
void im2col(StreamRef stream, const ConvProblem& p, const void* x, const ColumnRange& range, void* columns) {
  const Window& w = p.window;
  const int64_t n = range.images * p.in_channels * range.count;
  dispatch_size(device::size_bytes(p.type), [&]<class T>() {
    device::for_each_index(
        stream, n,
        Im2Col<T>{static_cast<const T*>(x) + range.image * p.in_channels * w.in_count(), static_cast<T*>(columns), w,
                  range.first, range.count, Divider(range.count, n), Positions(w.out, w.out_count())});
  });
}

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

// Rows of the windows at the positions of all images from `first` on: of all groups at once.
void im2row(StreamRef stream, const ConvProblem& p, const void* x, int64_t first, int64_t count, void* rows) {
  const Window& w = p.window;
  const auto size = int64_t(device::size_bytes(p.type));
  const int64_t channels = p.in_channels / p.groups, positions = p.images * w.out_count();
  if (p.layout == Layout::channels_first)
    return dispatch_size(size_t(size), [&]<class T>() {
      const int64_t n = p.in_channels * count * w.taps();
      using Kernel = Im2RowOfPlanes<T>;
      device::for_each_index(
          stream, (n + Kernel::kPack - 1) / Kernel::kPack,
          Kernel{static_cast<const T*>(x), static_cast<T*>(rows), n, w, first, p.groups, Divider(channels, n),
                 Divider(count, n), Positions(w.kernel, n), Positions(w.out, positions)});
    });
  // As wide as a group's channels and their address allow.
  int64_t bytes = 16;
  while (channels * size % bytes != 0 || reinterpret_cast<uintptr_t>(x) % size_t(bytes) != 0) bytes /= 2;
  dispatch_size(size_t(bytes), [&]<class Moved>() {
    const int64_t wide = channels * size / bytes, n = p.groups * count * w.taps() * wide;
    using OfLines = Im2RowOfLines<Moved>;
    if (w.taps() == w.kernel[2] && w.kernel[2] >= OfLines::kAtOnce) {
      const int apart = (w.kernel[2] + OfLines::kAtOnce - 1) / OfLines::kAtOnce;
      device::for_each_index(
          stream, p.groups * count * apart * wide,
          OfLines{static_cast<const Moved*>(x), static_cast<Moved*>(rows), w, first, wide * p.groups, apart,
                  Divider(wide, n), Divider(apart, n), Divider(count, n), Positions(w.out, positions)});
      return;
    }
    device::for_each_index(
        stream, n,
        Im2Row<Moved>{static_cast<const Moved*>(x), static_cast<Moved*>(rows), w, first, count, wide * p.groups,
                      Divider(wide, n), Divider(count, n), Positions(w.kernel, n), Positions(w.out, positions)});
  });
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

void col2im(StreamRef stream, const ConvProblem& p, int64_t images, const void* columns, const void* bias, void* y) {
  const Window& w = p.window;
  const bool last = p.layout == Layout::channels_last;
  const int64_t n = images * p.out_channels * w.in_count(), of_group = p.out_channels / p.groups;
  const int64_t positions = w.out_count(), taps = w.taps(), group_columns = of_group * taps * positions;
  dispatch(FloatList{}, p.type, [&]<class T>() {
    Col2ImSum<T> kernel{static_cast<const T*>(columns),
                        static_cast<const T*>(bias),
                        static_cast<T*>(y),
                        w,
                        Elements(p.layout, p.out_channels, w.in, n),
                        Divider(of_group, p.out_channels),
                        last ? group_columns : group_columns * p.groups,
                        last ? group_columns * images : group_columns,
                        last ? 1 : taps * positions,
                        last ? of_group : positions,
                        last ? taps * of_group : 1};
    device::for_each_index(stream, n, kernel);
  });
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

bool convolve_pointwise(Context& context, const ConvProblem& p, const ConvData& data, const void* residual,
                        const Activation& activation) {
  const int64_t positions = p.window.out_count();
  if (p.groups != 1 || !p.window.is_pointwise() || (p.layout == Layout::channels_first && positions != 1)) return false;
  device::Gemm gemm;
  gemm.type = gemm.output = p.type;
  gemm.m = p.images * positions;
  gemm.n = gemm.ldc = p.out_channels;
  gemm.k = gemm.lda = gemm.ldb = p.in_channels;
  gemm.transpose_b = true;
  gemm.beta = residual ? 1 : 0;
  gemm.tf32 = p.tf32;
  gemm.constant_b = data.constant_w;
  product(context, gemm, {data.x, data.w, data.bias, data.y, residual}, activation);
  return true;
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
