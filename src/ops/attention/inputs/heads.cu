#include "ops/attention/inputs/heads.h"

#include <cmath>

#include "device/divide.h"
#include "device/transform.h"
#include "ops/attention/dense/attend_view.h"
#include "ops/attention/inputs/past.h"
#include "ops/dispatch.h"

namespace encore::ops {
namespace {

using device::Divider;
using device::Pack;

// Queries, keys and values, and of the latter two what is before and behind the new ones.
constexpr int kMostMoves = 7;

template <class T, bool kSequences>
struct MoveHeads {
  static constexpr int kPack = device::pack_size<T>();
  struct Part {
    const T* from;
    T* to;
    const T* bias;
    int64_t from_batch, from_head, from_row, to_batch, to_head, to_row;
    int64_t end;  // of the indices for this part
    Divider by_packs, by_rows, by_heads;
    int size;
  };
  Part part[kMostMoves];
  bool aligned;
  const int32_t* starts;  // of sequences
  int64_t tokens;
  device::FaultRef fault;

  DEVICE_FN void operator()(int64_t i) const {
    int n = 0;
    while (i >= part[n].end) ++n;
    const Part& p = part[n];
    int64_t pack, row, head;
    const int64_t batch = p.by_heads(p.by_rows(p.by_packs(i - (n ? part[n - 1].end : 0), pack), row), head);
    const int column = int(pack) * kPack, left = p.size - column, count = left < kPack ? left : kPack;
    T* const to = p.to + batch * p.to_batch + head * p.to_head + row * p.to_row + column;
    int64_t from_row = row;
    if constexpr (kSequences) {
      from_row = token_of(batch, row);
      if (from_row < 0) {
        Pack<T, kPack> zeros;
        UNROLL for (int j = 0; j < kPack; ++j) zeros.at[j] = T(0.f);
        device::store_pack(to, zeros, aligned, count);
        return;
      }
    }
    const T* const from = p.from + batch * p.from_batch + head * p.from_head + from_row * p.from_row + column;
    Pack<T, kPack> values = device::load_pack<kPack>(from, aligned, count);
    if (p.bias) {
      const auto more = device::load_pack<kPack>(p.bias + head * p.size + column, aligned, count);
      UNROLL for (int j = 0; j < kPack; ++j) values.at[j] = T(float(values.at[j]) + float(more.at[j]));
    }
    device::store_pack(to, values, aligned, count);
  }

 private:
  // Below zero for padding.
  DEVICE_FN int64_t token_of(int64_t batch, int64_t row) const {
    const int64_t start = starts[batch], token = start + row;
    if (row >= starts[batch + 1] - start) return -1;
    if (start >= 0 && token < tokens) return token;
    fault.report(device::FaultKind::index_out_of_range, token, tokens);
    return -1;
  }
};

}  // namespace

Heads heads_in_rows(const void* data, int64_t batch, int64_t rows, int64_t heads, int64_t size, int64_t width,
                    int64_t apart) {
  return {{data, rows * width, apart ? apart : size, width}, batch, heads, rows, size};
}

Heads heads_of_cache(const void* data, int64_t batch, int64_t heads, int64_t rows, int64_t size, int64_t capacity) {
  return {{data, heads * capacity * size, capacity * size, size}, batch, heads, rows, size};
}

const void* offset(const void* at, int64_t elements, Type type) {
  return at ? static_cast<const char*>(at) + elements * int64_t(device::size_bytes(type)) : nullptr;
}
void* offset(void* at, int64_t elements, Type type) {
  return at ? static_cast<char*>(at) + elements * int64_t(device::size_bytes(type)) : nullptr;
}

double scale_of(float attribute, int64_t head_size) {
  return attribute != 0 ? double(attribute) : 1 / std::sqrt(double(head_size));
}

int64_t past_rows_of(const Tensor& tensor, int64_t new_rows, int64_t capacity) {
  require(tensor.shape.is_scalar(), "past_sequence_length has shape ", tensor.shape.str(), "; it must be one number");
  const int64_t past = *tensor.as<const int32_t>();
  require(past >= 0 && past <= capacity - new_rows, "past_sequence_length is ", past, "; with ", new_rows,
          " new rows it must be between 0 and ", capacity - new_rows, " in a buffer of ", capacity);
  return past;
}

void* HeadMoves::scratch(const Heads& heads, int64_t rows) {
  const int64_t count = checked_product(checked_product(heads.batch, heads.heads), checked_product(rows, heads.size));
  return context_.scratch(device::size_bytes(type_, count));
}

void HeadMoves::move(Heads& heads, const void* bias) {
  const int64_t width = heads.heads * heads.size;
  const Heads made = heads_in_rows(scratch(heads, heads.rows), heads.batch, heads.rows, heads.heads, heads.size, width);
  moves_.push_back({heads.view, made.view, bias, heads.batch, heads.heads, heads.rows, heads.size});
  heads = made;
}

void HeadMoves::append(Heads& heads, const void* bias, const Cache& cache) {
  if (!cache.present && cache.past_rows == 0) return add_bias(heads, bias);
  const int64_t rows = cache.past_rows + heads.rows, capacity = cache.present ? cache.capacity : rows;
  void* const all = cache.present ? cache.present : scratch(heads, rows);
  check_past(heads.batch * heads.heads, cache.past, cache.past_capacity, all, capacity);
  const auto at = [&](const void* data, int64_t row, int64_t of) {
    return heads_of_cache(offset(data, row * heads.size, type_), heads.batch, heads.heads, rows, heads.size, of).view;
  };
  const auto copy = [&](int64_t first, int64_t count) {
    moves_.push_back({at(cache.past, first, cache.past_capacity), at(all, first, capacity), nullptr, heads.batch,
                      heads.heads, count, heads.size});
  };
  if (cache.past && cache.past != all) {
    copy(0, cache.past_rows);
    if (cache.past_capacity == capacity) copy(rows, capacity - rows);  // a buffer stays what it was
  }
  moves_.push_back(
      {heads.view, at(all, cache.past_rows, capacity), bias, heads.batch, heads.heads, heads.rows, heads.size});
  heads.view = at(all, 0, capacity);
  heads.rows = rows;
}

template <class T, bool kSequences>
void HeadMoves::launch() const {
  using Kernel = MoveHeads<T, kSequences>;
  constexpr int kPack = Kernel::kPack;
  Kernel kernel;
  int parts = 0;
  kernel.aligned = true;
  kernel.starts = from_.starts;
  kernel.tokens = from_.tokens;
  kernel.fault = context_.fault();
  int64_t end = 0;
  for (const Move& move : moves_) {
    const int64_t packs = (move.size + kPack - 1) / kPack;
    const int64_t count = checked_product(checked_product(move.batch, move.heads), checked_product(move.rows, packs));
    if (count == 0) continue;
    require(move.size < kIntCap, "heads of ", move.size, " are more than there are kernels for");
    require(parts < kMostMoves, "there are more than ", kMostMoves, " moves");
    end += count;
    const auto* const bias = static_cast<const T*>(move.bias);
    kernel.part[parts++] = {static_cast<const T*>(move.from.data),
                            static_cast<T*>(const_cast<void*>(move.to.data)),
                            bias,
                            move.from.batch,
                            move.from.head,
                            move.from.row,
                            move.to.batch,
                            move.to.head,
                            move.to.row,
                            end,
                            Divider(packs, count),
                            Divider(move.rows, count),
                            Divider(move.heads, count),
                            int(move.size)};
    kernel.aligned = kernel.aligned && packs_fit<kPack, T>(move.from, move.size) &&
                     packs_fit<kPack, T>(move.to, move.size) && (!bias || device::is_pack_aligned<kPack>(bias));
  }
  device::for_each_index(context_.stream(), end, kernel);
}

void HeadMoves::run() {
  if (moves_.empty()) return;
  dispatch(TypeList<float, Half, BFloat16>{}, type_, [&]<class T> {
    if (from_.starts)
      launch<T, true>();
    else
      launch<T, false>();
  });
  moves_.clear();
}

}  // namespace encore::ops
