#include "ops/shape/strided.h"

#include <cstdint>

#include "device/device.h"
#include "device/divide.h"
#include "device/launch.h"
#include "device/neighbours.h"
#include "ops/dispatch.h"

namespace encore::ops {
namespace {

using device::Block;
using device::Divider;

struct Walk {
  static constexpr int kMostDims = 16;
  Divider sizes[kMostDims];  // outermost first
  int64_t in_strides[kMostDims], out_strides[kMostDims];
  int rank;

  DEVICE_FN void locate(int64_t i, int64_t& from, int64_t& to) const {
    from = to = 0;
    for (int d = rank - 1; d >= 0; --d) {
      int64_t at = i;
      if (d > 0) i = sizes[d](i, at);
      from += at * in_strides[d];
      to += at * out_strides[d];
    }
  }
};

template <class T>
struct CopyStrided {
  const T* in;
  T* out;
  Walk walk;
  DEVICE_FN void operator()(int64_t i) const {
    int64_t from, to;
    walk.locate(i, from, to);
    out[to] = in[from];
  }
};

// A byte of the output for each index, of elements of kBits bits. `count`: of elements.
template <int kBits>
struct CopyPacked {
  const uint8_t* in;
  uint8_t* out;
  int64_t count;
  Walk walk;
  DEVICE_FN void operator()(int64_t i) const {
    constexpr int kInByte = 8 / kBits;
    unsigned byte = 0;
    UNROLL for (int e = 0; e < kInByte; ++e) {
      const int64_t index = i * kInByte + e;
      if (index >= count) break;
      int64_t from, to;
      walk.locate(index, from, to);
      byte |= (unsigned(in[from / kInByte]) >> (from % kInByte * kBits) & ((1u << kBits) - 1)) << (e * kBits);
    }
    out[i] = uint8_t(byte);
  }
};

// Runs of neighbours, or of one value again and again, whose sizes are too odd to take them as wider elements. A thread
// fills what lies in 16 aligned bytes of the output, which at the ends of a run is less.
template <class T>
struct CopyRuns {
  static constexpr int kPack = device::pack_size<T>();
  const T* in;
  T* out;
  int64_t run;
  bool repeats;
  Divider by_packs;  // that a run may touch
  Walk walk;
  DEVICE_FN void operator()(int64_t i) const {
    int64_t pack, at, to;
    walk.locate(by_packs(i, pack), at, to);
    const T* from = in + at;
    T* into = out + to;
    const int before = int(reinterpret_cast<uintptr_t>(into) / sizeof(T) % kPack);
    const int64_t first = pack * kPack - before;
    if (first < 0 || run - first < kPack) {
      NO_UNROLL for (int64_t j = first < 0 ? 0 : first; j < first + kPack && j < run; ++j) into[j] =
          from[repeats ? 0 : j];
      return;
    }
    device::Pack<T, kPack> values;
    if (repeats) {
      UNROLL for (int j = 0; j < kPack; ++j) values.at[j] = *from;
    } else {
      values = device::load_neighbours<kPack>(from + first);
    }
    device::store_pack(into + first, values, true);
  }
};

// Reads along one dimension and writes along another, through a tile in shared memory, so that both sides are
// coalesced. Narrow elements are read and written kWide at a time.
constexpr int kTileRows = 8;
template <class T, int kWide>
struct TransposeTiles {
  static constexpr int kLanes = 32, kMaxThreads = kLanes * kTileRows, kTile = kLanes * kWide;
  static constexpr int kRows = kTile / kTileRows;  // of a thread
  using Values = device::Pack<T, kWide>;
  struct Shared {
    T tile[kTile][kTile + 1];
  };
  const T* in;
  T* out;
  int64_t read_size, write_size;             // of the dimensions with stride one in `in` and in `out`
  int64_t read_out_stride, write_in_stride;  // their strides on the other side
  Divider read_tiles, write_tiles;
  Walk rest;
  DEVICE_FN void operator()(Block<Shared>& b, const Shared&) const {
    int64_t read_tile, write_tile, from, to;
    const int64_t outer = write_tiles(read_tiles(b.index(), read_tile), write_tile);
    rest.locate(outer, from, to);
    const int64_t read0 = read_tile * kTile, write0 = write_tile * kTile;
    b.threads([&](int t, Shared& s) {
      const int x = t % kLanes * kWide;
      Values values[kRows] = {};  // all are asked for before the first is waited for
      UNROLL for (int i = 0; i < kRows; ++i) {
        const int y = t / kLanes + i * kTileRows;
        if (read0 + x < read_size && write0 + y < write_size)
          values[i] = device::load_pack<kWide>(in + from + (write0 + y) * write_in_stride + read0 + x, true);
      }
      UNROLL for (int i = 0; i < kRows; ++i) UNROLL for (int j = 0; j < kWide; ++j) {
        s.tile[t / kLanes + i * kTileRows][x + j] = values[i].at[j];
      }
    });
    b.threads([&](int t, Shared& s) {
      const int x = t % kLanes * kWide;
      UNROLL for (int i = 0; i < kRows; ++i) {
        const int y = t / kLanes + i * kTileRows;
        if (write0 + x >= write_size || read0 + y >= read_size) continue;
        Values values;
        UNROLL for (int j = 0; j < kWide; ++j) values.at[j] = s.tile[x + j][y];
        device::store_pack(out + to + (read0 + y) * read_out_stride + write0 + x, values, true);
      }
    });
  }
};

}  // namespace

void StridedCopy::add(int64_t dim, int64_t in_stride, int64_t out_stride) {
  count_ *= dim;
  if (dim == 1) return;
  if (!dims_.empty()) {
    Dim& outer = dims_.back();
    if (outer.in_stride == in_stride * dim && outer.out_stride == out_stride * dim) {
      outer = {outer.size * dim, in_stride, out_stride};
      return;
    }
  }
  dims_.push_back({dim, in_stride, out_stride});
}

// Takes neighbouring elements as one wider element as long as everything stays aligned.
void StridedCopy::widen(const void* in, void* out, size_t& bytes) {
  if (dims_.empty()) return;
  Dim& inner = dims_.back();
  while (bytes < 16 && inner.in_stride == 1 && inner.out_stride == 1 && inner.size % 2 == 0 &&
         (reinterpret_cast<uintptr_t>(in) | reinterpret_cast<uintptr_t>(out)) % (2 * bytes) == 0) {
    for (size_t d = 0; d + 1 < dims_.size(); ++d)
      if (dims_[d].in_stride % 2 || dims_[d].out_stride % 2) return;
    for (size_t d = 0; d + 1 < dims_.size(); ++d) {
      dims_[d].in_stride /= 2;
      dims_[d].out_stride /= 2;
    }
    inner.size /= 2;
    count_ /= 2;
    bytes *= 2;
  }
}

// The dimension along which the input is contiguous while the output is contiguous along the last one; -1 if tiles
// would not pay.
int StridedCopy::find_read_dim() const {
  if (dims_.size() < 2 || dims_.back().out_stride != 1 || dims_.back().in_stride == 1) return -1;
  for (size_t d = 0; d + 1 < dims_.size(); ++d)
    if (dims_[d].in_stride == 1) return dims_[d].size >= 8 && dims_.back().size >= 8 ? int(d) : -1;
  return -1;
}

// Whether `count` elements can be moved at once along `read_dim` of the input and along the last one of the output,
// whose addresses are given.
template <class T>
bool StridedCopy::packs_along(int read_dim, int64_t count, const T* in, const T* out) const {
  if ((reinterpret_cast<uintptr_t>(in) | reinterpret_cast<uintptr_t>(out)) % (size_t(count) * sizeof(T)) != 0)
    return false;
  const int last = int(dims_.size()) - 1;
  for (int d = 0; d <= last; ++d) {
    const Dim& dim = dims_[size_t(d)];
    const bool read = d == read_dim, written = d == last;
    if (((read || written) && dim.size % count != 0) || (!read && dim.in_stride % count != 0) ||
        (!written && dim.out_stride % count != 0))
      return false;
  }
  return true;
}

// Whether the last dimension is made of long runs of narrow elements.
bool StridedCopy::has_runs(size_t bytes) const {
  constexpr size_t kLong = 64;
  if (dims_.empty() || bytes == 16) return false;
  const Dim& inner = dims_.back();
  return inner.out_stride == 1 && (inner.in_stride == 1 || inner.in_stride == 0) && size_t(inner.size) * bytes >= kLong;
}

void StridedCopy::run(device::StreamRef stream, const void* in, void* out, size_t bytes) {
  if (count_ == 0) return;
  if (dims_.size() > Walk::kMostDims) {
    // A launch for each index of the outermost dimension; the others have enough elements for that.
    const Dim outer = dims_.front();
    dims_.erase(dims_.begin());
    count_ /= outer.size;
    for (int64_t i = 0; i < outer.size; ++i)
      StridedCopy(*this).run(stream, static_cast<const char*>(in) + i * outer.in_stride * int64_t(bytes),
                             static_cast<char*>(out) + i * outer.out_stride * int64_t(bytes), bytes);
    return;
  }
  widen(in, out, bytes);
  const bool runs = has_runs(bytes);
  const int read_dim = runs ? -1 : find_read_dim();
  Walk walk{};
  int64_t outer = 1;
  const int last = int(dims_.size()) - 1;
  for (int d = 0; d <= last; ++d) {
    if ((read_dim >= 0 && (d == read_dim || d == last)) || (runs && d == last)) continue;
    const Dim& dim = dims_[size_t(d)];
    outer *= dim.size;
    walk.sizes[walk.rank] = Divider(dim.size, count_);
    walk.in_strides[walk.rank] = dim.in_stride;
    walk.out_strides[walk.rank++] = dim.out_stride;
  }
  dispatch_size(bytes, [&]<class T>() {
    const T* from = static_cast<const T*>(in);
    T* to = static_cast<T*>(out);
    if constexpr (sizeof(T) < 16)
      if (runs) {
        const Dim& run = dims_.back();
        const int64_t packs = (run.size + 2 * CopyRuns<T>::kPack - 2) / CopyRuns<T>::kPack;
        device::for_each_index(
            stream, outer * packs,
            CopyRuns<T>{from, to, run.size, run.in_stride == 0, Divider(packs, outer * packs), walk});
        return;
      }
    if (read_dim < 0) {
      device::for_each_index(stream, count_, CopyStrided<T>{from, to, walk});
      return;
    }
    const Dim &read = dims_[size_t(read_dim)], &write = dims_.back();
    // Calls it if there are so many tiles; true if so.
    const auto transpose = [&]<int kWide>(int64_t least_tiles) {
      using Kernel = TransposeTiles<T, kWide>;
      constexpr int64_t kTile = Kernel::kTile;
      const int64_t read_tiles = (read.size + kTile - 1) / kTile, write_tiles = (write.size + kTile - 1) / kTile;
      const int64_t blocks = outer * read_tiles * write_tiles;
      if (blocks < least_tiles) return false;
      device::block_kernel<typename Kernel::Shared>(
          stream, {blocks, Kernel::kMaxThreads},
          Kernel{from, to, read.size, write.size, read.out_stride, write.in_stride, Divider(read_tiles, blocks),
                 Divider(write_tiles, blocks), walk});
      return true;
    };
    if constexpr (sizeof(T) < 4) {
      constexpr int kWide = 4 / sizeof(T);
      if (packs_along(read_dim, kWide, from, to) &&
          transpose.template operator()<kWide>(2 * device::multiprocessors(stream.device())))
        return;
    }
    transpose.template operator()<1>(0);
  });
}

void StridedCopy::run_packed(device::StreamRef stream, const void* in, void* out, int element_bits) {
  if (count_ == 0) return;
  const int64_t in_byte = 8 / element_bits;
  const auto whole = [&](int64_t elements) { return elements % in_byte == 0; };
  bool bytes = !dims_.empty() && dims_.back().in_stride == 1 && whole(dims_.back().size);
  for (size_t d = 0; d + 1 < dims_.size(); ++d) bytes &= whole(dims_[d].in_stride) && whole(dims_[d].out_stride);
  if (bytes) {
    for (size_t d = 0; d + 1 < dims_.size(); ++d) {
      dims_[d].in_stride /= in_byte;
      dims_[d].out_stride /= in_byte;
    }
    dims_.back().size /= in_byte;
    count_ /= in_byte;
    return run(stream, in, out, 1);
  }
  if (dims_.size() > Walk::kMostDims)
    fail(Code::not_supported, "elements of ", element_bits, " bits are moved along up to ", Walk::kMostDims,
         " dimensions, not ", dims_.size());
  Walk walk{};
  for (const Dim& dim : dims_) {
    walk.sizes[walk.rank] = Divider(dim.size, count_);
    walk.in_strides[walk.rank] = dim.in_stride;
    walk.out_strides[walk.rank++] = dim.out_stride;
  }
  const auto launch = [&]<int kBits>() {
    device::for_each_index(
        stream, (count_ - 1) / in_byte + 1,
        CopyPacked<kBits>{static_cast<const uint8_t*>(in), static_cast<uint8_t*>(out), count_, walk});
  };
  if (element_bits == 4)
    launch.operator()<4>();
  else
    launch.operator()<2>();
}

void copy_bytes(device::StreamRef stream, const void* in, void* out, int64_t bytes) {
  if (in == out || bytes == 0) return;
  StridedCopy copy;
  copy.add(bytes, 1, 1);
  copy.run(stream, in, out, 1);
}

}  // namespace encore::ops
