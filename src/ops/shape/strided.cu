#include "ops/shape/strided.h"

#include <cstdint>

#include "device/divide.h"
#include "device/launch.h"
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

// Reads along one dimension and writes along another, through a tile in shared memory, so that both sides are
// coalesced.
constexpr int kTile = 32, kTileRows = 8;
template <class T>
struct TransposeTiles {
  static constexpr int kMaxThreads = kTile * kTileRows;
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
      const int x = t % kTile;
      for (int y = t / kTile; y < kTile; y += kTileRows)
        if (read0 + x < read_size && write0 + y < write_size)
          s.tile[y][x] = in[from + (write0 + y) * write_in_stride + read0 + x];
    });
    b.threads([&](int t, Shared& s) {
      const int x = t % kTile;
      for (int y = t / kTile; y < kTile; y += kTileRows)
        if (write0 + x < write_size && read0 + y < read_size)
          out[to + (read0 + y) * read_out_stride + write0 + x] = s.tile[x][y];
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
  const int read_dim = find_read_dim();
  Walk walk{};
  int64_t outer = 1;
  const int last = int(dims_.size()) - 1;
  for (int d = 0; d <= last; ++d) {
    if (read_dim >= 0 && (d == read_dim || d == last)) continue;
    const Dim& dim = dims_[size_t(d)];
    outer *= dim.size;
    walk.sizes[walk.rank] = Divider(dim.size, count_);
    walk.in_strides[walk.rank] = dim.in_stride;
    walk.out_strides[walk.rank++] = dim.out_stride;
  }
  dispatch_size(bytes, [&]<class T>() {
    const T* from = static_cast<const T*>(in);
    T* to = static_cast<T*>(out);
    if (read_dim < 0) {
      device::for_each_index(stream, count_, CopyStrided<T>{from, to, walk});
      return;
    }
    const Dim &read = dims_[size_t(read_dim)], &write = dims_.back();
    const int64_t read_tiles = (read.size + kTile - 1) / kTile, write_tiles = (write.size + kTile - 1) / kTile;
    const int64_t blocks = outer * read_tiles * write_tiles;
    device::block_kernel<typename TransposeTiles<T>::Shared>(
        stream, {blocks, kTile * kTileRows},
        TransposeTiles<T>{from, to, read.size, write.size, read.out_stride, write.in_stride,
                          Divider(read_tiles, blocks), Divider(write_tiles, blocks), walk});
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
