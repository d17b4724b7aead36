// Sequences that lie in pieces, brought together: what a kernel writes is dense, and what it reads is anywhere.
#pragma once
#include <cstdint>

#include "device/device.h"
#include "device/divider_of.h"
#include "device/launch.h"
#include "device/unaligned_pack.h"

namespace encore::device {

// Values of a sequence which lie `step` apart.
template <class T>
struct Piece {
  const T* from;  // null: the source's `value` again and again
  int64_t left;   // of them, at least one
  int64_t step = 1;
};

// `count` values, at least one, that lie `step` apart.
template <class T>
DEVICE_FN Pack<T, pack_size<T>()> load_apart(const T* from, int64_t step, int count) {
  constexpr int kPack = pack_size<T>();
  if (step == 1) return load_unaligned_pack(from, count);
  Pack<T, kPack> values = {};
  if (kPack > 1 && step == 2 && count == kPack) {
    const UnalignedPack<T> first(from, kPack), second(from + kPack - 1, kPack);
    const auto low = first.pack(), high = second.pack();
    UNROLL for (int j = 0; j < kPack / 2; ++j) {
      values.at[j] = low.at[2 * j];
      values.at[kPack / 2 + j] = high.at[2 * j + 1];
    }
  } else if (kPack > 1 && step == -1 && count == kPack) {
    const auto backward = load_unaligned_pack(from - (kPack - 1));
    UNROLL for (int j = 0; j < kPack; ++j) values.at[j] = backward.at[kPack - 1 - j];
  } else if (step == 0) {
    const T value = *from;
    UNROLL for (int j = 0; j < kPack; ++j) values.at[j] = value;
  } else {
    UNROLL for (int j = 0; j < kPack; ++j) {
      if (j < count) values.at[j] = from[j * step];
    }
  }
  return values;
}

// `count` values of a sequence from the i-th on, or none; source(i) is the Piece that begins there. Those of the first
// piece are on their way from memory if they are neighbours: pack() waits for them.
template <class T, class Source>
struct Pieces {
  static constexpr int kPack = pack_size<T>();
  int64_t first = 0;
  int count = 0, begun = 0;
  UnalignedPack<T> near = {};

  DEVICE_FN Pieces(const Source& source, int64_t i, int wanted) : first(i), count(wanted) {
    if (count <= 0) return;
    const Piece<T> piece = source(i);
    if (!piece.from || piece.step != 1) return;
    begun = piece.left < count ? int(piece.left) : count;
    near = UnalignedPack<T>(piece.from, begun);
  }
  DEVICE_FN Pack<T, kPack> pack(const Source& source) const {
    auto values = near.pack();
    NO_UNROLL for (int done = begun; done < count;) {
      const Piece<T> piece = source(first + done);
      if (piece.from && piece.left >= kPack && count == kPack && done == 0)
        return load_apart(piece.from, piece.step, kPack);
      const int end = piece.left < count - done ? done + int(piece.left) : count;
      UNROLL for (int j = 0; j < kPack; ++j) {  // no load waits for another
        if (j < done || j >= end) continue;
        if constexpr (requires { source.value; })
          values.at[j] = piece.from ? piece.from[(j - done) * piece.step] : source.value;
        else
          values.at[j] = piece.from[(j - done) * piece.step];
      }
      done = end;
    }
    return values;
  }
};

// Rows of `width` values, `stride` apart, that follow each other in the sequence. What a thread fills at once lies in
// 16 aligned bytes of a row, or is one value; it does so at two places, `threads` apart, so that both reads are under
// way. Int is int where all that is counted is below 2^30.
template <class T, class Source, class Int>
struct FillRows {
  static constexpr int kPack = pack_size<T>();
  T* out;
  Int width, stride;
  bool one_row, in_packs;
  DividerOf<Int> by_packs;  // those of a row
  Int packs, threads;
  Source source;
  DEVICE_FN void operator()(int64_t index) const {
    const Int i = Int(index);
    const Place a = place(i), b = i + threads < packs ? place(i + threads) : Place{};
    const Pieces<T, Source> of_a(source, a.first, a.count), of_b(source, b.first, b.count);
    if (a.count > 0) store_pack(a.to, of_a.pack(source), true, a.count);
    if (b.count > 0) store_pack(b.to, of_b.pack(source), true, b.count);
  }

 private:
  struct Place {
    T* to = nullptr;
    Int first = 0;  // in the sequence
    int count = 0;
  };
  DEVICE_FN Place place(Int i) const {
    Int pack = i, row = 0;
    if (!one_row) row = by_packs(i, pack);
    T* const into = out + row * stride;
    if (!in_packs) return {into + pack, row * width + pack, 1};
    const Int first = pack * kPack - int(reinterpret_cast<uintptr_t>(into) / sizeof(T) % kPack);
    const Int begin = first < 0 ? 0 : first, end = first + kPack < width ? first + kPack : width;
    return {into + begin, row * width + begin, int(end - begin)};
  }
};

// As many threads as keep the device busy.
inline int64_t busy_threads(StreamRef stream) { return 512 * int64_t(multiprocessors(stream.device())); }

// `long_pieces`: they mostly have more than 16 bytes side by side. Short ones are worth a pack for each thread only if
// that leaves enough threads.
template <class Int = int64_t, class T, class Source>
FillRows<T, Source, Int> filled_rows(StreamRef stream, T* out, int64_t rows, int64_t width, int64_t stride,
                                     bool long_pieces, const Source& source) {
  constexpr int kPack = pack_size<T>();
  if (rows == 1 || width == stride) {
    width = stride = rows * width;
    rows = 1;
  }
  const int64_t busy = busy_threads(stream);
  const bool in_packs = long_pieces || rows * width / kPack >= busy;
  int64_t packs = width;  // of a row; where they may begin anywhere, one more than needed
  if (in_packs) {
    const int64_t before = reinterpret_cast<uintptr_t>(out) / sizeof(T) % kPack;
    packs = ((rows == 1 || stride % kPack == 0 ? before : kPack - 1) + width + kPack - 1) / kPack;
  }
  const auto by_packs = divider_of<Int>(packs, rows * packs);
  packs *= rows;
  const int64_t threads = packs >= 4 * busy ? (packs + 1) / 2 : packs;
  return {out, Int(width), Int(stride), rows == 1, in_packs, by_packs, Int(packs), Int(threads), source};
}
template <class Int = int64_t, class T, class Source>
void fill_rows(StreamRef stream, T* out, int64_t rows, int64_t width, int64_t stride, bool long_pieces,
               const Source& source) {
  if (rows == 0 || width == 0) return;
  const auto fill = filled_rows<Int>(stream, out, rows, width, stride, long_pieces, source);
  for_each_index(stream, fill.threads, fill);
}

}  // namespace encore::device
