#include <cmath>

#include "device/launch.h"
#include "ops/attention/paged/paged_cache_view.h"
#include "ops/attention/rotary/pairs.h"
#include "ops/dispatch.h"

namespace encore::ops {
namespace {

using device::Block;
using device::FaultKind;
using device::Pack;
using device::PerThread;

constexpr int kThreads = 256, kWarps = kThreads / 32;

// A block for each token: its heads of queries, if they go anywhere, then those of keys and of values, in packs. Latent
// rows are keys alone.
template <class T>
struct ExtendPagedCache {
  static constexpr int kMaxThreads = kThreads, kPack = device::pack_size<T>();
  using Packed = Pack<T, kPack>;
  static constexpr int kMostHeads = 2048;  // that are normalised
  struct Shared {
    float factors[kMostHeads];
  };

  SequenceView sequences;
  SlotView slots;
  const T *q, *k, *v;
  int64_t q_token, kv_token;
  T* rotated_q;
  void *keys, *values;
  CodeKind coded;
  const float *key_scales, *value_scales;
  bool keys_by_channel, values_by_channel, latent;
  const int32_t* places;
  const T *cos, *sin, *q_weights, *k_weights;
  int64_t positions;
  device::SmallDivider by_packs;
  int q_heads, kv_heads;  // of queries none, if they stay
  int rotated_from;
  float epsilon;
  PairLayout layout;

  // A head of the token and where it goes.
  struct Head {
    const T* from;
    T* to;          // or, in a cache,
    void* cache;    // whose type may be another one
    int64_t begin;  // in the cache
    const T* weights;
    const float* scales;
    bool by_channel, is_value;
  };
  struct Token {
    int64_t token, position, slot;
  };

  DEVICE_FN void operator()(Block<Shared>& b, const Shared&) const {
    Token at{b.index(), 0, -1};
    const int sequence = b.reduce(
        -1,
        [&](int t) {
          int own = -1;
          for (int i = t; i < sequences.count; i += kThreads) {
            if (sequences.start(i) <= at.token && at.token < sequences.start(i + 1)) own = i;
          }
          return own;
        },
        [](int a, int c) { return a > c ? a : c; });
    if (at.token == 0) check_starts(b);
    if (sequence < 0) return;
    at.position = int64_t(sequences.past(sequence)) + at.token - sequences.start(sequence);
    b.threads([&](int t, Shared&) {
      if (t == 0) check(sequence, at);
    });
    at.slot = slot_of(sequence, at);

    const int normalised = q_heads + kv_heads, heads = normalised + (latent ? 0 : kv_heads);
    if (q_weights) {
      for (int first = 0; first < normalised; first += kWarps) {
        PerThread<float, kThreads> squares;
        b.template reduce_groups<32>(
            squares, [&](int t) { return first + t / 32 < normalised ? squares_of(first + t / 32, t % 32, at) : 0.f; },
            [](float a, float c) { return a + c; });
        b.threads([&](int t, Shared& s) {
          if (t % 32 == 0 && first + t / 32 < normalised)
            s.factors[first + t / 32] = 1 / std::sqrt(squares[t] / float(layout.size) + epsilon);
        });
      }
    }
    b.threads([&](int t, Shared& s) {
      for (int i = t; i < heads * by_packs.divisor(); i += kThreads) {
        int pack;
        const int number = by_packs(i, pack);
        if (number >= q_heads && at.slot < 0) return;
        const Head head = head_of(number, at);
        move(head, at, pack, q_weights && !head.is_value ? s.factors[number] : 1.f);
      }
    });
  }

 private:
  DEVICE_FN void check_starts(Block<Shared>& b) const {
    b.threads([&](int t, Shared&) {
      for (int i = t; i <= sequences.count; i += kThreads) {
        const int start = sequences.starts[i], before = i ? sequences.starts[i - 1] : start;
        if (start < before || start < 0 || start > sequences.tokens || (i == 0 && start != 0))
          slots.fault.report(FaultKind::bad_value, start, sequences.tokens);
      }
    });
  }
  DEVICE_FN void check(int sequence, const Token& at) const {
    const int past = sequences.pasts[sequence];
    if (past < 0 || at.position >= slots.room) slots.fault.report(FaultKind::bad_value, past, slots.room);
    if (cos && at.position >= positions) slots.fault.report(FaultKind::index_out_of_range, at.position, positions);
    if (!places) return;
    const int place = places[at.token];
    const int64_t all = int64_t(slots.pages) * slots.by_slots.divisor();
    if (place < -1 || place >= all) slots.fault.report(FaultKind::index_out_of_range, place, all);
  }
  DEVICE_FN int64_t slot_of(int sequence, const Token& at) const {
    if (!places) return at.position < slots.room ? slots.slot(sequence, int(at.position)) : -1;
    const int place = places[at.token];
    return place >= 0 && place < int64_t(slots.pages) * slots.by_slots.divisor() ? place : -1;
  }
  DEVICE_FN Head head_of(int number, const Token& at) const {
    const int size = layout.size;
    if (number < q_heads)
      return {q + at.token * q_token + int64_t(number) * size,
              rotated_q + (at.token * q_heads + number) * size,
              nullptr,
              0,
              q_weights,
              nullptr,
              false,
              false};
    const bool is_value = number >= q_heads + kv_heads;
    const int kv_head = number - q_heads - (is_value ? kv_heads : 0);
    const int64_t from = at.token * kv_token + int64_t(kv_head) * size;
    const float* const scales = is_value ? value_scales : key_scales;
    const bool by_channel = is_value ? values_by_channel : keys_by_channel;
    return {(is_value ? v : k) + from,
            nullptr,
            is_value ? values : keys,
            (at.slot * kv_heads + kv_head) * size,
            k_weights,
            by_channel ? scales + int64_t(kv_head) * size : scales,
            by_channel,
            is_value};
  }
  DEVICE_FN float squares_of(int number, int lane, const Token& at) const {
    const T* const from = head_of(number, at).from;
    float sum = 0;
    for (int first = lane * kPack; first < layout.size; first += 32 * kPack) {
      const int left = layout.size - first, count = left < kPack ? left : kPack;
      const Packed pack = device::load_pack<kPack>(from + first, layout.aligned, count);
      UNROLL for (int i = 0; i < kPack; ++i) {
        const float value = i < count ? float(pack.at[i]) : 0.f;
        sum += value * value;
      }
    }
    return sum;
  }

  DEVICE_FN void move(const Head& of, const Token& at, int pack, float factor) const {
    if (pack >= layout.rotated_packs) {
      int first = (pack - layout.rotated_packs) * kPack;  // what is rotated is left out
      if (first >= rotated_from) first += 2 * layout.half;
      const int left = layout.size - first, count = left < kPack ? left : kPack;
      Packed packed = device::load_pack<kPack>(of.from + first, layout.aligned, count);
      if (q_weights && !of.is_value) {
        const Packed weights = device::load_pack<kPack>(of.weights + first, layout.aligned, count);
        UNROLL for (int i = 0; i < kPack; ++i) packed.at[i] = T(float(packed.at[i]) * factor * float(weights.at[i]));
      }
      store(of, first, packed, count);
      return;
    }
    const int first = pack * kPack, count = layout.half - first < kPack ? layout.half - first : kPack;
    layout.interleaved ? move_pairs<true>(of, at, first, count, factor)
                       : move_pairs<false>(of, at, first, count, factor);
  }
  template <bool kNeighbours>
  DEVICE_FN void move_pairs(const Head& of, const Token& at, int first, int count, float factor) const {
    using Some = Pairs<T, kNeighbours>;
    Some pairs = Some::load(of.from + rotated_from, layout, first, count);
    if (!of.is_value) {
      if (q_weights) pairs.scale(factor, Some::load(of.weights + rotated_from, layout, first, count));
      const int64_t angle = (at.position < positions ? at.position : 0) * layout.half + first;
      pairs.rotate(device::load_pack<kPack>(cos + angle, layout.aligned, count),
                   device::load_pack<kPack>(sin + angle, layout.aligned, count));
    }
    if constexpr (!kNeighbours) {
      store(of, rotated_from + first, pairs.real, count);
      store(of, rotated_from + layout.half + first, pairs.imaginary, count);
    } else {
      Packed low, high;
      UNROLL for (int i = 0; i < kPack; ++i) {
        Packed& to = i < kPack / 2 ? low : high;
        to.at[2 * i % kPack] = pairs.real.at[i];
        to.at[2 * i % kPack + 1] = pairs.imaginary.at[i];
      }
      const int column = rotated_from + 2 * first, all = 2 * count;
      store(of, column, low, all < kPack ? all : kPack);
      if (all > kPack) store(of, column + kPack, high, all - kPack);
    }
  }
  DEVICE_FN void store(const Head& of, int column, const Packed& pack, int count) const {
    if (of.to) return device::store_pack(of.to + column, pack, layout.aligned, count);
    if (coded == CodeKind::none)
      return device::store_pack(static_cast<T*>(of.cache) + of.begin + column, pack, layout.aligned, count);
    Pack<uint8_t, kPack> codes{};
    UNROLL for (int i = 0; i < kPack; ++i) {
      if (i >= count) break;
      const float scale = of.scales[of.by_channel ? column + i : 0];
      codes.at[i] = uint8_t(code_of(coded, float(pack.at[i]) / scale));
    }
    if (coded == CodeKind::i4) {  // columns and counts are even here: no byte is of two threads
      Pack<uint8_t, kPack / 2> pairs;
      UNROLL for (int i = 0; i < kPack / 2; ++i) pairs.at[i] = uint8_t(codes.at[2 * i] | codes.at[2 * i + 1] << 4);
      return device::store_pack(static_cast<uint8_t*>(of.cache) + (of.begin + column) / 2, pairs, layout.aligned,
                                count / 2);
    }
    device::store_pack(static_cast<uint8_t*>(of.cache) + of.begin + column, codes, layout.aligned, count);
  }
};

}  // namespace

void extend_paged_cache(Context& context, const PagedCacheExtension& e) {
  dispatch(TypeList<Half, BFloat16>{}, e.type, [&]<class T> {
    using Kernel = ExtendPagedCache<T>;
    constexpr int kPack = Kernel::kPack;
    const PagedCache& pages = e.pages;
    const auto aligned = [](auto... addresses) {
      return (device::is_pack_aligned<kPack>(static_cast<const T*>(addresses)) && ...);
    };
    PairLayout layout;
    layout.size = int(pages.size);
    layout.half = int(e.cos ? e.rotated / 2 : 0);
    layout.rotated_packs = (layout.half + kPack - 1) / kPack;
    layout.interleaved = e.cos && e.interleaved;
    layout.aligned =
        pages.size % kPack == 0 && layout.half % kPack == 0 && e.rotated_from % kPack == 0 && e.q_token % kPack == 0 &&
        e.kv_token % kPack == 0 &&
        aligned(e.q, e.k, e.v, e.rotated_q, pages.keys, pages.values, e.cos, e.sin, e.q_weights, e.k_weights);
    require(pages.type != Type::i4 || layout.interleaved || layout.half % 2 == 0, "cos_cache has ", layout.half,
            " columns; beside pages of int4, of which two values are a byte, it must have an even number");
    const int64_t packs = layout.rotated_packs + (pages.size - 2 * layout.half + kPack - 1) / kPack;
    const int64_t q_heads = e.rotated_q ? e.heads : 0, heads = q_heads + 2 * pages.kv_heads;
    require(heads * packs < kIntCap && (!e.q_weights || heads - pages.kv_heads <= Kernel::kMostHeads), "a token's ",
            heads, " heads are more than there are kernels for");
    device::block_kernel<typename Kernel::Shared>(context.stream(), {e.sequences.tokens, kThreads},
                                                  Kernel{e.sequences,
                                                         SlotView(pages, context.fault()),
                                                         static_cast<const T*>(e.q),
                                                         static_cast<const T*>(e.k),
                                                         static_cast<const T*>(e.v),
                                                         e.q_token,
                                                         e.kv_token,
                                                         static_cast<T*>(e.rotated_q),
                                                         pages.keys,
                                                         pages.values,
                                                         kind_of(pages),
                                                         pages.key_scales,
                                                         pages.value_scales,
                                                         pages.keys_by_channel,
                                                         pages.values_by_channel,
                                                         pages.latent,
                                                         e.places,
                                                         static_cast<const T*>(e.cos),
                                                         static_cast<const T*>(e.sin),
                                                         static_cast<const T*>(e.q_weights),
                                                         static_cast<const T*>(e.k_weights),
                                                         e.positions,
                                                         device::SmallDivider(int(packs)),
                                                         int(q_heads),
                                                         int(pages.kv_heads),
                                                         int(e.rotated_from),
                                                         e.epsilon,
                                                         layout});
  });
}

}  // namespace encore::ops
