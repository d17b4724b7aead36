#include "ops/shape/strided.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <type_traits>

#include "device/divider_of.h"
#include "device/launch.h"
#include "device/pieces.h"
#include "device/unaligned_pack.h"
#include "ops/dispatch.h"
#include "ops/shape/interleave.h"

namespace encore::ops {
namespace {

using device::Block;
using device::SmallDivider;

// Dimensions, innermost first. Those that most copies have are walked without a branch: what there is none of has
// size one.
template <class Int>
struct WalkBy {
  static constexpr int kMostDims = 16, kUsualDims = std::is_same_v<Int, int> ? 4 : 0;
  device::DividerOf<Int> sizes[kMostDims];
  Int in_strides[kMostDims] = {}, out_strides[kMostDims] = {};
  int rank = 0;

  // `count`: of all elements.
  void add(int64_t size, int64_t in_stride, int64_t out_stride, int64_t count) {
    sizes[rank] = device::divider_of<Int>(size, count);
    in_strides[rank] = Int(in_stride);
    out_strides[rank++] = Int(out_stride);
  }
  DEVICE_FN void locate(Int i, Int& from, Int& to) const {
    from = to = 0;
    const auto step = [&](int d) {
      Int at;
      i = sizes[d](i, at);
      from += at * in_strides[d];
      to += at * out_strides[d];
    };
    UNROLL for (int d = 0; d < kUsualDims; ++d) step(d);
    NO_UNROLL for (int d = kUsualDims; d < rank; ++d) step(d);
  }
};
using Walk = WalkBy<int>;

template <class T>
struct CopyStrided {
  const T* in;
  T* out;
  Walk walk;
  DEVICE_FN void operator()(int64_t i) const {
    int from, to;
    walk.locate(int(i), from, to);
    device::store_aligned(out + to, device::load_aligned<1>(in + from));
  }
};

// A byte of the output for each index, of elements of kBits bits. `count`: of elements.
template <int kBits>
struct CopyPacked {
  const uint8_t* in;
  uint8_t* out;
  int64_t count;
  WalkBy<int64_t> walk;
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

// The input in the order of the output.
template <class T>
struct WalkedPieces {
  const T* in;
  Walk walk;
  DEVICE_FN device::Piece<T> operator()(int64_t i) const {
    int from, to, at;
    walk.locate(int(i), from, to);
    walk.sizes[0](int(i), at);
    return {in + from, walk.sizes[0].divisor() - at, walk.in_strides[0]};
  }
};

// Runs of neighbours, or of one value again and again, to places that are not dense. A thread fills what lies in 16
// aligned bytes of the output, which at the ends of a run is less.
template <class T>
struct CopyRuns {
  static constexpr int kPack = device::pack_size<T>();
  const T* in;
  T* out;
  int run;
  bool repeats;
  SmallDivider by_packs;  // that a run may touch
  Walk walk;
  DEVICE_FN void operator()(int64_t i) const {
    int pack, from, to;
    walk.locate(by_packs(int(i), pack), from, to);
    T* into = out + to;
    const int first = pack * kPack - int(reinterpret_cast<uintptr_t>(into) / sizeof(T) % kPack);
    const int begin = first < 0 ? 0 : first, end = run - first > kPack ? first + kPack : run;
    if (begin >= end) return;
    const int count = end - begin;
    const auto values =
        repeats ? device::load_apart(in + from, 0, count) : device::load_unaligned_pack(in + from + begin, count);
    device::store_pack(into + begin, values, true, count);
  }
};

// Reads along one dimension and writes along another, through a tile in shared memory, so that both sides are
// coalesced and move up to 16 bytes at a time. Lines are neighbours in the input; the tile holds them turned, with
// narrow elements of neighbouring lines joined to words of four bytes. The tile's shape is chosen at launch: 2^shape
// times as many lines of so much fewer bytes as the square-like one.
template <class T>
struct TransposeTiles {
  static constexpr int kMaxThreads = 128;
  static constexpr int kPack = device::pack_size<T>();
  static constexpr int kJoined = sizeof(T) < 4 ? int(4 / sizeof(T)) : 1;
  static constexpr int kLoads = 4;                                                     // of a thread, 16 bytes each
  static constexpr int kTileBits = 9, kLeastBits = 1, kSquareBits = 3, kMostBits = 5;  // of counts of 16 bytes
  // After the turned lines of 16 bytes come some bytes that let the words of a warp lie in different banks.
  static constexpr int kBytes = (16 << kTileBits) + (16 << kMostBits);
  static_assert(kLoads * kMaxThreads == 1 << kTileBits);
  using Words = device::Pack<T, kJoined>;
  struct Shared {
    device::Granule tile[kBytes / 16];
  };
  const T* in;
  T* out;
  int64_t read_size, write_size;             // of the dimensions with stride one in `in` and in `out`
  int64_t read_out_stride, write_in_stride;  // their strides on the other side
  SmallDivider read_tiles, write_tiles;
  int line_bits;    // a line has 2^line_bits times 16 bytes
  int store_bytes;  // that can be written at once
  Walk rest;
  DEVICE_FN void operator()(Block<Shared>& b, const Shared&) const {
    int read_tile, write_tile, from, to;
    const int outer = write_tiles(read_tiles(int(b.index()), read_tile), write_tile);
    rest.locate(outer, from, to);
    const int64_t read0 = (int64_t(read_tile) * kPack) << line_bits, write0 = int64_t(write_tile) << lines_bits();
    // What there is of the tile.
    const int length = read_size - read0 < kPack << line_bits ? int(read_size - read0) : kPack << line_bits;
    const int lines = write_size - write0 < 1 << lines_bits() ? int(write_size - write0) : 1 << lines_bits();
    b.threads([&](int t, Shared& s) {
      const int x = (t & ((1 << line_bits) - 1)) * kPack, y = (t >> line_bits) * kJoined;
      const int apart = (kMaxThreads >> line_bits) * kJoined, count = length - x < kPack ? length - x : kPack;
      const T* const source = in + from + (write0 + y) * write_in_stride + read0 + x;
      device::UnalignedPack<T> loads[kLoads];
      UNROLL for (int i = 0; i < kLoads; ++i) {
        const int line = i / kJoined * apart + i % kJoined;
        loads[i] = device::UnalignedPack<T>(source + line * write_in_stride, y + line < lines ? count : 0);
      }
      char* const turned = tile_of(s) + place(x) + y * int(sizeof(T));
      UNROLL for (int i = 0; i < kLoads; i += kJoined) {
        device::Pack<T, kPack> values[kJoined];
        UNROLL for (int j = 0; j < kJoined; ++j) values[j] = loads[i + j].pack();
        UNROLL for (int k = 0; k < kPack; ++k) {
          Words words;
          UNROLL for (int j = 0; j < kJoined; ++j) words.at[j] = values[j].at[k];
          *reinterpret_cast<Words*>(turned + ((k << lines_bits()) + i / kJoined * apart) * int(sizeof(T))) = words;
        }
      }
    });
    b.threads([&](int t, Shared& s) {
      T* const target = out + to + read0 * read_out_stride + write0;
      if (store_bytes == 16)
        store<16>(t, tile_of(s), target, length, lines);
      else if (store_bytes == 8)
        store<8>(t, tile_of(s), target, length, lines);
      else if (store_bytes == 4)
        store<4>(t, tile_of(s), target, length, lines);
      else
        store<1>(t, tile_of(s), target, length, lines);
    });
  }

 private:
  DEVICE_FN static char* tile_of(Shared& s) { return reinterpret_cast<char*>(s.tile); }
  static constexpr int bits_of(int count) { return count > 1 ? 1 + bits_of(count / 2) : 0; }
  DEVICE_FN int lines_bits() const { return kTileBits - line_bits; }
  // Where what was read at x, of all lines, begins.
  DEVICE_FN int place(int x) const {
    const int gap = line_bits < kSquareBits ? 16 << (kSquareBits - line_bits) : 16;
    return (x << lines_bits()) * int(sizeof(T)) + x / kPack * gap;
  }
  template <int kWidest>
  DEVICE_FN void store(int t, const char* tile, T* target, int length, int lines) const {
    constexpr int kCount = kWidest > int(sizeof(T)) ? kWidest / int(sizeof(T)) : 1;
    constexpr int kStores = kLoads * kPack / kCount, kAtOnce = kStores < 4 ? kStores : 4;
    using Values = device::Pack<T, kCount>;
    const int across_bits = lines_bits() - bits_of(kCount);
    NO_UNROLL for (int first = 0; first < kStores; first += kAtOnce) UNROLL for (int i = 0; i < kAtOnce; ++i) {
      const int index = t + (first + i) * kMaxThreads, x = index >> across_bits;
      const int y = (index & ((1 << across_bits) - 1)) * kCount, left = lines - y;
      if (left <= 0 || x >= length) continue;
      const Values values = *reinterpret_cast<const Values*>(tile + place(x) + y * int(sizeof(T)));
      device::store_pack(target + x * read_out_stride + y, values, true, left < kCount ? left : kCount);
    }
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
  const auto is_even = [&] {
    for (size_t d = 0; d + 1 < dims_.size(); ++d)
      if (dims_[d].in_stride % 2 || dims_[d].out_stride % 2) return false;
    return inner.size % 2 == 0 &&
           (reinterpret_cast<uintptr_t>(in) | reinterpret_cast<uintptr_t>(out)) % (2 * bytes) == 0;
  };
  while (bytes < 16 && inner.in_stride == 1 && inner.out_stride == 1 && is_even()) {
    for (size_t d = 0; d + 1 < dims_.size(); ++d) {
      dims_[d].in_stride /= 2;
      dims_[d].out_stride /= 2;
    }
    inner.size /= 2;
    count_ /= 2;
    bytes *= 2;
  }
  if (inner.size == 1) dims_.pop_back();
}

// The dimension along which the input is contiguous while the output is contiguous along the last one; -1 if tiles
// would not pay.
int StridedCopy::find_read_dim() const {
  if (dims_.size() < 2 || dims_.back().out_stride != 1 || dims_.back().in_stride == 1) return -1;
  for (size_t d = 0; d + 1 < dims_.size(); ++d)
    if (dims_[d].in_stride == 1) return dims_[d].size >= 8 && dims_.back().size >= 8 ? int(d) : -1;
  return -1;
}

// Whether the output is written without gaps in the order of the dimensions.
bool StridedCopy::is_dense() const {
  int64_t stride = 1;
  for (size_t d = dims_.size(); d-- > 0;) {
    if (dims_[d].out_stride != stride) return false;
    stride *= dims_[d].size;
  }
  return true;
}

// Whether places of elements, counted from the first, are numbers of 30 bits, so that an int holds what kernels count.
bool StridedCopy::is_small() const {
  int64_t in = 0, out = 0;
  for (const Dim& dim : dims_) {
    in += (dim.size - 1) * std::abs(dim.in_stride);
    out += (dim.size - 1) * std::abs(dim.out_stride);
  }
  return std::max({in, out, count_}) < int64_t(1) << 30;
}

// The two halves of the dimension that reaches the furthest, one after the other.
void StridedCopy::run_halves(device::StreamRef stream, const char* in, char* out, size_t bytes) const {
  const auto reach = [](const Dim& dim) {
    return (dim.size - 1) * std::max(std::abs(dim.in_stride), std::abs(dim.out_stride));
  };
  const auto furthest = std::ranges::max_element(dims_, {}, reach);
  StridedCopy first, second;
  const int64_t half = furthest->size / 2;
  for (auto dim = dims_.begin(); dim != dims_.end(); ++dim) {
    first.add(dim == furthest ? half : dim->size, dim->in_stride, dim->out_stride);
    second.add(dim == furthest ? dim->size - half : dim->size, dim->in_stride, dim->out_stride);
  }
  first.run(stream, in, out, bytes);
  second.run(stream, in + half * furthest->in_stride * int64_t(bytes),
             out + half * furthest->out_stride * int64_t(bytes), bytes);
}

// A few planes whose values go side by side, of one image or of several; nothing if it is none.
std::optional<Interleaving> StridedCopy::as_interleaving() const {
  const size_t rank = dims_.size();
  if (rank < 2 || rank > 3 || !is_dense()) return std::nullopt;
  const Dim &planes = dims_[rank - 1], &places = dims_[rank - 2];
  if (places.in_stride != 1) return std::nullopt;
  return Interleaving{rank == 3 ? dims_[0].size : 1, planes.size, places.size, rank == 3 ? dims_[0].in_stride : 0,
                      planes.in_stride};
}

// Whether the last dimension is made of long runs of narrow elements.
bool StridedCopy::has_runs(size_t bytes) const {
  constexpr size_t kLong = 64;
  if (dims_.empty() || bytes == 16) return false;
  const Dim& inner = dims_.back();
  return inner.out_stride == 1 && (inner.in_stride == 1 || inner.in_stride == 0) && size_t(inner.size) * bytes >= kLong;
}

// The most bytes up to 16 that can be written at once wherever the last dimension begins.
int StridedCopy::aligned_bytes(const void* out, size_t bytes) const {
  uintptr_t places = reinterpret_cast<uintptr_t>(out) | 16;
  for (size_t d = 0; d + 1 < dims_.size(); ++d) places |= uintptr_t(dims_[d].out_stride) * bytes;
  return int(places & -places);
}

void StridedCopy::run_on_host(const char* in, char* out, size_t bytes, size_t first) const {
  const bool is_dense = first + 1 == dims_.size() && dims_[first].in_stride == 1 && dims_[first].out_stride == 1;
  if (first == dims_.size() || is_dense) {
    std::memcpy(out, in, (is_dense ? size_t(dims_[first].size) : 1) * bytes);
    return;
  }
  const Dim& dim = dims_[first];
  for (int64_t i = 0; i < dim.size; ++i)
    run_on_host(in + i * dim.in_stride * int64_t(bytes), out + i * dim.out_stride * int64_t(bytes), bytes, first + 1);
}

void StridedCopy::run(device::StreamRef stream, const void* in, void* out, size_t bytes, Where where) {
  if (count_ == 0) return;
  if (where == Where::host) return run_on_host(static_cast<const char*>(in), static_cast<char*>(out), bytes, 0);
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
  if (!is_small()) return run_halves(stream, static_cast<const char*>(in), static_cast<char*>(out), bytes);
  if (const auto planes = as_interleaving(); planes && interleave(stream, *planes, in, out, bytes)) return;
  const int read_dim = find_read_dim();
  const bool dense = read_dim < 0 && is_dense(), runs = !dense && read_dim < 0 && has_runs(bytes);
  Walk walk;
  int64_t outer = 1;
  const int last = int(dims_.size()) - 1;
  for (int d = last; d >= 0; --d) {
    if ((read_dim >= 0 && (d == read_dim || d == last)) || (runs && d == last)) continue;
    const Dim& dim = dims_[size_t(d)];
    outer *= dim.size;
    walk.add(dim.size, dim.in_stride, dim.out_stride, count_);
  }
  dispatch_size(bytes, [&]<class T>() {
    const T* from = static_cast<const T*>(in);
    T* to = static_cast<T*>(out);
    if constexpr (sizeof(T) < 16) {
      if (dense && (has_runs(bytes) || count_ / device::pack_size<T>() >= device::busy_threads(stream)))
        return device::fill_rows<int>(stream, to, 1, count_, count_, has_runs(bytes), WalkedPieces<T>{from, walk});
      if (runs) {
        const Dim& run = dims_.back();
        const int64_t packs = (run.size + 2 * CopyRuns<T>::kPack - 2) / CopyRuns<T>::kPack;
        device::for_each_index(
            stream, outer * packs,
            CopyRuns<T>{from, to, int(run.size), run.in_stride == 0, SmallDivider(int(packs)), walk});
        return;
      }
    }
    if (read_dim < 0) {
      device::for_each_index(stream, count_, CopyStrided<T>{from, to, walk});
      return;
    }
    using Kernel = TransposeTiles<T>;
    const Dim &read = dims_[size_t(read_dim)], &write = dims_.back();
    // The shape whose tiles cover the least beyond the ends; of equal ones the one nearest to a square.
    int64_t read_tiles = 0, write_tiles = 0;
    int line_bits = 0;
    for (const int bits : {3, 2, 4, 1, 5}) {
      const int64_t length = int64_t(Kernel::kPack) << bits, lines = int64_t(1) << (Kernel::kTileBits - bits);
      const int64_t across = (read.size + length - 1) / length, down = (write.size + lines - 1) / lines;
      if (line_bits > 0 && across * down >= read_tiles * write_tiles) continue;
      read_tiles = across;
      write_tiles = down;
      line_bits = bits;
    }
    const int64_t blocks = outer * read_tiles * write_tiles;
    device::block_kernel<typename Kernel::Shared>(
        stream, {blocks, Kernel::kMaxThreads},
        Kernel{from, to, read.size, write.size, read.out_stride, write.in_stride, SmallDivider(int(read_tiles)),
               SmallDivider(int(write_tiles)), line_bits, aligned_bytes(out, sizeof(T)), walk});
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
  WalkBy<int64_t> walk;
  for (size_t d = dims_.size(); d-- > 0;) walk.add(dims_[d].size, dims_[d].in_stride, dims_[d].out_stride, count_);
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

void copy_bytes(device::StreamRef stream, const void* in, void* out, int64_t bytes, Where where) {
  if (in == out || bytes == 0) return;
  StridedCopy copy;
  copy.add(bytes, 1, 1);
  copy.run(stream, in, out, 1, where);
}

}  // namespace encore::ops
