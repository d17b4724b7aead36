#include "ops/nn/im2col.h"

#include "device/launch.h"
#include "device/unaligned_pack.h"
#include "ops/dispatch.h"
#include "ops/shape/strided.h"

namespace encore::ops {
namespace {

using device::Compute;
using device::Divider;

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

}  // namespace

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

}  // namespace encore::ops
