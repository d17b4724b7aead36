// What the indexers compare: queries and entries, each a vector that is made of others, gets the root mean square one,
// takes its weights, and is rotated to its position.
#include <cmath>
#include <limits>

#include "device/launch.h"
#include "device/transform.h"
#include "ops/attention/sparse/indexer.h"
#include "ops/dispatch.h"
#include "ops/shape.h"

namespace encore::ops {
namespace {

using device::Block;
using device::FaultRef;
using device::Pack;
using device::PerThread;

constexpr int kStep = 4;  // channels that a thread takes at once
using Channels = Pack<float, kStep>;

// `count` of them, and then anything.
template <class T>
DEVICE_FN Channels channels_at(const T* from, bool aligned, int count) {
  const Pack<T, kStep> pack = device::load_pack<kStep>(from, aligned, count < kStep ? count : kStep);
  Channels channels;
  UNROLL for (int c = 0; c < kStep; ++c) channels.at[c] = float(pack.at[c]);
  return channels;
}
template <class T>
bool steps_fit(const void* data, int64_t apart) {
  return apart % kStep == 0 && device::is_pack_aligned<kStep>(static_cast<const T*>(data));
}
template <class T>
bool steps_fit(const Pending& pending) {
  return steps_fit<T>(pending.buffer, pending.width) && steps_fit<T>(pending.fresh, pending.fresh_token);
}

// Which vector an item is.
template <class Out>
struct Made {
  int request, position, index;
  Out* to;  // null: none
};

template <class T>
struct QueryOf {
  using Out = float;
  const T* query;
  int64_t query_token;
  Requests requests;
  const int64_t* position_ids;
  int heads, size;
  int64_t first;
  float* to;
  bool aligned;

  DEVICE_FN Made<float> made(int64_t item) const {
    const int token = int(first + item / heads), request = requests.of_token(token);
    int64_t position;
    if (position_ids) {
      position = position_ids[token];
    } else {
      const Request r = requests.at(request);
      position = int64_t(r.past) + (token - r.first);
    }
    const int64_t most = int64_t(1) << 30;
    return {request, int(position < 0 ? 0 : position > most ? most : position), int(item), to + item * size};
  }
  DEVICE_FN Channels channels(const Made<float>& of, int d) const {
    const int token = int(first) + of.index / heads;
    return channels_at(query + token * query_token + int64_t(of.index % heads) * size + d, aligned, size - d);
  }
};

template <class F>
DEVICE_FN Channels mean_of(int count, F channels_of) {
  Channels sum{};
  for (int i = 0; i < count; ++i) {
    const Channels more = channels_of(i);
    UNROLL for (int c = 0; c < kStep; ++c) sum.at[c] += more.at[c];
  }
  UNROLL for (int c = 0; c < kStep; ++c) sum.at[c] /= float(count);
  return sum;
}

// The mean of the tokens of a block, of raw keys that are all there.
template <class T>
struct RawBlock {
  using Out = float;
  const T* keys;
  int64_t rows;
  VisibleCounts seen;
  int ratio, size, most, tokens;  // of entries and of a request's last query, tokens
  float* to;
  bool aligned;

  DEVICE_FN Made<float> made(int64_t item) const {
    const int request = int(item / most), entry = int(item % most);
    // The last query sees all that there is.
    if (entry >= seen.entries[int64_t(request + 1) * tokens - 1]) return {0, 0, 0, nullptr};
    return {request, token(request, entry * ratio), entry, to + item * size};
  }
  DEVICE_FN Channels channels(const Made<float>& of, int d) const {
    return mean_of(ratio, [&](int i) {
      const int64_t row = int64_t(of.request) * rows + token(of.request, of.index * ratio + i);
      return channels_at(keys + row * size + d, aligned, size - d);
    });
  }
  DEVICE_FN int token(int request, int i) const {
    return seen.list ? seen.list[int64_t(request) * seen.listed + i] : i;
  }
};

template <class T>
struct NewEntry {
  using Out = T;
  Requests requests;
  T* entries;  // [request, capacity, size]
  int size, most;
  bool aligned;

  DEVICE_FN Made<T> made(int64_t item) const {
    const int request = int(item / most), index = int(item % most);
    const Request r = requests.at(request);
    if (index >= r.made) return {0, 0, 0, nullptr};
    const int64_t entry = r.entries + index;
    const int64_t position = entry * requests.ratio, last = int64_t(1) << 30;
    return {request, int(position < last ? position : last), index,
            entries + (int64_t(request) * requests.capacity + entry) * size};
  }
};

template <class T>
struct NewBlock : NewEntry<T> {
  PendingView<T> keys;
  DEVICE_FN Channels channels(const Made<T>& of, int d) const {
    const Request r = this->requests.at(of.request);
    const int ratio = this->requests.ratio;
    return mean_of(ratio, [&](int i) {
      return channels_at(keys.at(of.request, r, of.index * ratio + i) + d, this->aligned, this->size - d);
    });
  }
};

// The softmax of gates, for each channel, over a window's tokens and those of the one before it, of which it takes the
// first half of channels.
template <class T>
struct NewWindow : NewEntry<T> {
  PendingView<T> keys, gates;
  const T* bias;
  DEVICE_FN Channels channels(const Made<T>& of, int d) const {
    const Request r = this->requests.at(of.request);
    const int ratio = this->requests.ratio, size = this->size;
    const int from = r.overlap + of.index * ratio;
    const int first = from >= ratio ? 0 : ratio;
    const auto at = [&](const T* row, int slot) {
      return channels_at(row + (slot < ratio ? d : size + d), this->aligned, size - d);
    };
    const auto gate = [&](int slot) {
      Channels gate = at(gates.at(of.request, r, from - ratio + slot), slot);
      const Channels more = at(bias + int64_t(slot < ratio ? slot : slot - ratio) * 2 * size, slot);
      UNROLL for (int c = 0; c < kStep; ++c) gate.at[c] += more.at[c];
      return gate;
    };
    Channels top, total{}, sum{};
    UNROLL for (int c = 0; c < kStep; ++c) top.at[c] = -std::numeric_limits<float>::infinity();
    for (int slot = first; slot < 2 * ratio; ++slot) {
      const Channels one = gate(slot);
      UNROLL for (int c = 0; c < kStep; ++c) top.at[c] = one.at[c] > top.at[c] ? one.at[c] : top.at[c];
    }
    for (int slot = first; slot < 2 * ratio; ++slot) {
      const Channels one = gate(slot), value = at(keys.at(of.request, r, from - ratio + slot), slot);
      UNROLL for (int c = 0; c < kStep; ++c) {
        const float power = std::exp(one.at[c] - top.at[c]);
        total.at[c] += power;
        sum.at[c] += power * value.at[c];
      }
    }
    UNROLL for (int c = 0; c < kStep; ++c) {
      const bool sound = total.at[c] > 0 && total.at[c] <= std::numeric_limits<float>::max();
      sum.at[c] = sound ? sum.at[c] / total.at[c] : 0.f;
    }
    return sum;
  }
};

// 32 threads for each vector.
template <class T, class Source>
struct PrepareVectors {
  static constexpr int kThreads = 128, kMaxThreads = kThreads, kVectors = kThreads / 32;
  using Out = typename Source::Out;
  struct Shared {
    Made<Out> made[kVectors];
  };
  Source source;
  int64_t items;
  const T* weights;
  const T *cos, *sin;
  int positions, width;  // of the tables
  bool of_request, leading;
  int size;
  float epsilon;

  DEVICE_FN void operator()(Block<Shared>& b, const Shared&) const {
    b.threads([&](int t, Shared& s) {
      if (t >= kVectors) return;
      const int64_t item = b.index() * kVectors + t;
      s.made[t] = item < items ? source.made(item) : Made<Out>{0, 0, 0, nullptr};
    });
    PerThread<float, kThreads> squares;
    b.threads([&](int t, Shared& s) {
      const Made<Out>& made = s.made[t / 32];
      float* const vector = b.template dynamic<float>(s) + t / 32 * size;
      float sum = 0;
      if (made.to)
        for (int d = t % 32 * kStep; d < size; d += 32 * kStep) {
          const Channels some = source.channels(made, d);
          UNROLL for (int c = 0; c < kStep; ++c) {
            if (d + c >= size) continue;
            vector[d + c] = some.at[c];
            sum += some.at[c] * some.at[c];
          }
        }
      squares[t] = sum;
    });
    b.template reduce_groups<32>(
        squares, [&](int t) { return squares[t]; }, [](float a, float c) { return a + c; });
    b.threads([&](int t, Shared& s) {
      if (!s.made[t / 32].to) return;
      float* const vector = b.template dynamic<float>(s) + t / 32 * size;
      const float factor = 1 / std::sqrt(squares[t] / float(size) + epsilon);
      for (int d = t % 32; d < size; d += 32) vector[d] = vector[d] * factor * float(weights[d]);
    });
    b.threads([&](int t, Shared& s) {
      const Made<Out>& made = s.made[t / 32];
      if (!made.to) return;
      const float* const vector = b.template dynamic<float>(s) + t / 32 * size;
      for (int d = t % 32; d < size; d += 32) made.to[d] = Out(rotated(vector, d, made));
    });
  }

 private:
  DEVICE_FN float rotated(const float* vector, int d, const Made<Out>& made) const {
    const int position = made.position < positions ? made.position : positions - 1;
    const int64_t row = (of_request ? int64_t(made.request) * positions + position : position) * width;
    if (leading) {  // halves of the first channels
      if (d >= width) return vector[d];
      const int half = width / 2;
      const float other = d < half ? -vector[d + half] : vector[d - half];
      return vector[d] * float(cos[row + d]) + other * float(sin[row + d]);
    }
    const int at = d - (size - 2 * width);  // neighbours among the last ones
    if (at < 0) return vector[d];
    const float other = at % 2 == 0 ? -vector[d + 1] : vector[d - 1];
    return vector[d] * float(cos[row + at / 2]) + other * float(sin[row + at / 2]);
  }
};

template <class T, class Source>
void prepare(Context& context, const Indexing& p, const Source& source, int64_t items, const void* weights) {
  using Kernel = PrepareVectors<T, Source>;
  const int64_t blocks = (items + Kernel::kVectors - 1) / Kernel::kVectors;
  const int64_t bytes = int64_t(Kernel::kVectors) * p.size * int64_t(sizeof(float));
  device::block_kernel<typename Kernel::Shared>(
      context.stream(), {blocks, Kernel::kThreads, bytes},
      Kernel{source, items, static_cast<const T*>(weights), static_cast<const T*>(p.angles.cos),
             static_cast<const T*>(p.angles.sin), p.angles.positions, p.angles.width, p.angles.of_request,
             !p.requests.windows, p.size, p.epsilon});
}

// Which tokens of a request there are: a block for each.
struct ListTokens {
  static constexpr int kThreads = 1024, kMaxThreads = kThreads;
  struct Shared {
    int unused;
  };
  const int64_t* mask;
  VisibleCounts seen;
  int tokens, ratio;  // new ones

  DEVICE_FN void operator()(Block<Shared>& b, const Shared&) const {
    const int all = seen.listed, past = all - tokens;
    const int64_t request = b.index();
    const int64_t* const there = mask + request * all;
    PerThread<int, kThreads> before;
    int listed = 0;
    for (int first = 0; first < all; first += kThreads) {
      const int some = b.scan(
          before, 0, [&](int t) { return first + t < all && there[first + t] != 0 ? 1 : 0; },
          [](int a, int c) { return a + c; });
      b.threads([&](int t, Shared&) {
        const int token = first + t;
        if (token >= all) return;
        const int so_far = listed + before[t], is = there[token] != 0 ? 1 : 0;
        if (is) seen.list[request * all + so_far] = token;
        if (token < past) return;
        const int64_t query = request * tokens + (token - past);
        seen.tokens[query] = so_far + is;
        seen.entries[query] = (so_far + is) / ratio;
      });
      listed += some;
    }
  }
};

struct CountVisible {
  Requests requests;
  const int64_t* position_ids;
  VisibleCounts seen;
  FaultRef fault;

  DEVICE_FN void operator()(int64_t i) const {
    if (i < requests.count) requests.check(int(i), fault);
    if (i >= requests.tokens) return;
    const int token = int(i);
    const Request r = requests.at(requests.of_token(token));
    const int at = token - r.first;
    int64_t tokens = int64_t(r.past) + at + 1;
    if (position_ids) {
      const int64_t position = position_ids[i];
      tokens = position < 0 ? 0 : position > (int64_t(1) << 30) ? int64_t(1) << 30 : position + 1;
    }
    if (r.full || at < 0 || at >= r.tokens) tokens = 0;
    const int64_t entries = tokens / requests.ratio, there = r.entries + r.made;
    seen.tokens[i] = int(tokens);
    seen.entries[i] = int(entries < there ? entries : there);
  }
};

using Floats = TypeList<float, Half, BFloat16>;

}  // namespace

VisibleCounts count_visible(Context& context, const Indexing& p) {
  const Requests& requests = p.requests;
  const auto ints = [&](int64_t count) {
    return static_cast<int32_t*>(context.scratch(size_t(checked_product(count, int64_t(sizeof(int32_t))))));
  };
  VisibleCounts seen;
  seen.tokens = ints(requests.tokens);
  seen.entries = ints(requests.tokens);
  if (p.mask) {
    seen.listed = requests.past_tokens + requests.each;
    seen.list = ints(checked_product(requests.count, seen.listed));
    device::block_kernel<ListTokens::Shared>(context.stream(), {requests.count, ListTokens::kThreads},
                                             ListTokens{p.mask, seen, requests.each, requests.ratio});
    return seen;
  }
  device::for_each_index(context.stream(), std::max(requests.tokens, requests.starts ? requests.count : 0),
                         CountVisible{requests, p.position_ids, seen, context.fault()});
  return seen;
}

void make_entries(Context& context, const Indexing& p, const VisibleCounts& seen, float* of_raw, int64_t most) {
  const Requests& requests = p.requests;
  if (most == 0) return;
  const int64_t items = checked_product(requests.count, most);
  dispatch(Floats{}, p.type, [&]<class T> {
    if (of_raw) {
      prepare<T>(context, p,
                 RawBlock<T>{static_cast<const T*>(p.raw_keys), p.raw_rows, seen, requests.ratio, p.size, int(most),
                             requests.each, of_raw, steps_fit<T>(p.raw_keys, p.size)},
                 items, p.key_weights);
      return;
    }
    const bool aligned = p.size % kStep == 0 && steps_fit<T>(p.keys) &&
                         (!requests.windows || (steps_fit<T>(p.gates) && steps_fit<T>(p.gate_bias, p.size)));
    const NewEntry<T> entry{requests, static_cast<T*>(p.entries), p.size, int(most), aligned};
    if (requests.windows)
      prepare<T>(context, p, NewWindow<T>{entry, p.keys, p.gates, static_cast<const T*>(p.gate_bias)}, items,
                 p.key_weights);
    else
      prepare<T>(context, p, NewBlock<T>{entry, p.keys}, items, p.key_weights);
  });
}

void rotate_queries(Context& context, const Indexing& p, int64_t first, int64_t tokens, float* rotated) {
  dispatch(Floats{}, p.type, [&]<class T> {
    prepare<T>(context, p,
               QueryOf<T>{static_cast<const T*>(p.query), p.query_token, p.requests, p.position_ids, p.heads, p.size,
                          first, rotated, p.size % kStep == 0 && steps_fit<T>(p.query, p.query_token)},
               checked_product(tokens, p.heads), p.query_weights);
  });
}

}  // namespace encore::ops
