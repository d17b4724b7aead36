#include "ops/norm/few_row_norm.h"

#include "device/blas.h"
#include "device/device.h"
#include "device/fast_math.h"
#include "device/prefetch.h"
#include "device/warp.h"
#include "device/words.h"
#include "ops/elementwise/digits.h"
#include "ops/norm/row_norm_types.h"
#include "ops/reduce/odd.h"

namespace encore::ops {
namespace {

using device::Block;
using device::load_words;
using device::Pack;
using device::pack_of;
using device::PerThread;
using device::Warp;

// A block for each row, with a pack or two for each thread. Scale and bias, which come from farther away than what the
// last kernel wrote, are brought nearer while that still runs. All that the row needs is asked for at once; then there
// is one exchange between warps. Of x in parts the model's constants are asked for before the last kernel is done.
// kAhead: there is a norm ahead. kClips: x is clipped first.
template <class X, class V, class Y, bool kAdds, bool kAhead, bool kClips, int kKeep, int kParts>
struct NormalizeFewRows {
  using Part = std::conditional_t<kParts == 1, X, float>;
  static constexpr int kPack = device::pack_size<Part, V>();
  static constexpr int kMaxThreads = kKeep == 1 ? 512 : 1024, kMaxWarps = kMaxThreads / 32;
  static constexpr bool kBeginsEarly = true;
  template <class T>
  using Words = device::WordsOf<T, kPack>;
  struct Held {
    float values[kKeep][kPack];
    Words<V> gamma[kKeep], beta[kKeep];
    Words<X> bias[kKeep];
    Words<Y> behind[kKeep];
  };
  // Of warps. What there is no warp for is zero.
  struct Shared {
    alignas(16) float squares[kMaxWarps];  // of deviations from the warp's own mean, if the row is centred
    alignas(16) float mean[kMaxWarps], count[kMaxWarps];
    alignas(16) float ahead[kAhead || kClips ? kMaxWarps : 4];  // squares for the norm ahead, or how bounds are chosen
  };
  struct Clips {
    RowClip clip;
    SearchedPacks<X> all;
  };
  struct NoClips {};
  struct Moments {
    float mean, squares;
  };

  RowNorm norm;
  float per_value, epsilon;  // 1 / width
  int packs;                 // of a row
  [[no_unique_address]] std::conditional_t<kClips, Clips, NoClips> clips = {};

  DEVICE_FN void operator()(Block<Shared>& b, const Shared&) const {
    const int row = int(b.index()), threads = b.size();
    PerThread<Held, kMaxThreads> held;
    device::for_each_warp(b, [&](const Warp& warp, Shared& s) {
      const int first = 32 * warp.index();
      warp.lanes([&](int lane) {
        Held& own = held[first + lane];
        UNROLL for (int k = 0; k < kKeep; ++k) own.gamma[k] = own.beta[k] = {}, own.bias[k] = {};
        if constexpr (kParts > 1)
          each(first + lane, threads, [&](int k, int at) { ask(own, row, k, at); });
        else
          prefetch(row, first + lane, threads);
        if constexpr (kAhead) prefetch_ahead(row, first + lane, threads);
        b.wait();
        load(own, row, first + lane, threads);
        ask_behind(own, row, first + lane, threads);
      });
      if constexpr (kAhead)
        reduce_ahead(warp, held, s, threads);
      else if constexpr (kClips)
        choose(warp, s, threads);
      else
        reduce(warp, held, s, threads);
    });
    if constexpr (kClips)
      device::for_each_warp(b, [&](const Warp& warp, Shared& s) {
        const int first = 32 * warp.index();
        const bool is_so = sum(threads / 32, [&](int w) { return four(s.ahead, w); }) != 0;
        warp.lanes([&](int lane) { clip(held[first + lane], is_so, first + lane, threads); });
        reduce(warp, held, s, threads);
      });
    if constexpr (kAhead)
      device::for_each_warp(b, [&](const Warp& warp, Shared& s) {
        const int first = 32 * warp.index();
        warp.lanes([&](int lane) { norm_ahead(held[first + lane], s, row, first + lane, threads); });
        reduce(warp, held, s, threads);
      });
    b.threads([&](int t, const Shared& s) {
      const Moments all = joined(s, threads / 32);
      const float scale = inverse_root_for<X>(all.squares * per_value + epsilon);
      store(held[t], row, t, threads, all.mean, scale);
      if (t == 0) {
        write(norm.mean, row, all.mean);
        write(norm.inverse_deviation, row, scale);
      }
    });
  }

 private:
  static constexpr auto add = [](float a, float c) { return a + c; };
  DEVICE_FN static float square(float x) { return x * x; }

  using AllHeld = PerThread<Held, kMaxThreads>;
  // The moments of what a warp has of the row.
  DEVICE_FN void reduce(const Warp& warp, AllHeld& held, Shared& s, int threads) const {
    const int first = 32 * warp.index();
    PerThread<float, 32> sum, squares;
    warp.lanes([&](int lane) {
      const Held& own = held[first + lane];
      sum[lane] = squares[lane] = 0;
      each(first + lane, threads, [&](int k, int) {
        UNROLL for (int i = 0; i < kPack; ++i) {
          sum[lane] += own.values[k][i];
          squares[lane] += square(own.values[k][i]);
        }
      });
    });
    const float count = float(count_of(first, threads));
    if (norm.centred) {  // the mean of the squares less the square of the mean would cancel
      warp.template reduce_columns<1>([&](int lane) -> float& { return sum[lane]; }, add);
      warp.lanes([&](int lane) {
        const Held& own = held[first + lane];
        sum[lane] *= device::fast_reciprocal(count);
        squares[lane] = 0;
        each(first + lane, threads, [&](int k, int) {
          UNROLL for (int i = 0; i < kPack; ++i) squares[lane] += square(own.values[k][i] - sum[lane]);
        });
      });
    }
    warp.template reduce_columns<1>([&](int lane) -> float& { return squares[lane]; }, add);
    warp.lanes([&](int lane) {
      const int at = warp.index() + lane * (threads / 32);  // the first lane's is the warp's own
      if (at >= kMaxWarps) return;
      s.squares[at] = lane == 0 ? squares[lane] : 0.f;
      s.mean[at] = lane == 0 ? sum[lane] : 0.f;
      s.count[at] = lane == 0 ? count : 0.f;
    });
  }

  // ---- the norm ahead, which takes no mean

  DEVICE_FN void reduce_ahead(const Warp& warp, AllHeld& held, Shared& s, int threads) const {
    const int first = 32 * warp.index();
    PerThread<float, 32> squares;
    warp.lanes([&](int lane) {
      squares[lane] = 0;
      each(first + lane, threads, [&](int k, int) {
        UNROLL for (const float value : held[first + lane].values[k]) squares[lane] += square(value);
      });
    });
    warp.template reduce_columns<1>([&](int lane) -> float& { return squares[lane]; }, add);
    warp.lanes([&](int lane) {
      const int at = warp.index() + lane * (threads / 32);
      if (at < kMaxWarps) s.ahead[at] = lane == 0 ? squares[lane] : 0.f;
    });
  }
  DEVICE_FN void prefetch_ahead(int row, int t, int threads) const {
    each(t, threads, [&](int, int first) {
      if (row == 0) device::prefetch(static_cast<const V*>(norm.ahead.gamma) + first);
      device::prefetch(static_cast<const X*>(norm.skip) + skip_begin(row) + first);
    });
  }
  // Norms x, and adds the skip.
  DEVICE_FN void norm_ahead(Held& own, const Shared& s, int row, int t, int threads) const {
    const float squares = sum(threads / 32, [&](int w) { return four(s.ahead, w); });
    const float scale = inverse_root_for<X>(squares * per_value + float(norm.ahead.epsilon));
    each(t, threads, [&](int k, int first) {
      const auto gamma = pack_of<V>(load_words<kPack>(static_cast<const V*>(norm.ahead.gamma) + first));
      const auto skip = pack_of<X>(load_words<kPack>(static_cast<const X*>(norm.skip) + skip_begin(row) + first));
      UNROLL for (int i = 0; i < kPack; ++i) own.values[k][i] =
          float(X(own.values[k][i] * scale * float(gamma.at[i]))) + float(skip.at[i]);
    });
  }

  // ---- bounds that x is clipped to

  DEVICE_FN void choose(const Warp& warp, Shared& s, int threads) const {
    PerThread<bool, 32> is_so;
    warp.lanes([&](int lane) {
      const int t = 32 * warp.index() + lane;
      is_so[lane] = clips.clip.is_so ? t == 0 && *clips.clip.is_so : clips.all.has_any(t, threads);
    });
    const uint32_t votes = warp.votes([&](int lane) { return is_so[lane]; });
    warp.lanes([&](int lane) {
      const int at = warp.index() + lane * (threads / 32);
      if (at < kMaxWarps) s.ahead[at] = lane == 0 && votes != 0 ? 1.f : 0.f;
    });
  }
  DEVICE_FN void clip(Held& own, bool is_so, int t, int threads) const {
    const RowClip::Bounds bounds = is_so ? clips.clip.if_so : clips.clip.otherwise;
    each(t, threads, [&](int k, int) { UNROLL for (float& value : own.values[k]) value = bounds(value); });
  }

  // ----

  // f(k, first value) for each pack of a thread.
  template <class F>
  DEVICE_FN void each(int t, int threads, F f) const {
    UNROLL for (int k = 0; k < kKeep; ++k) {
      const int pack = t + k * threads;
      if (pack < packs) f(k, pack * kPack);
    }
  }
  // The values of the warp of which `first` is a thread.
  DEVICE_FN int count_of(int first, int threads) const {
    int count = 0;
    UNROLL for (int k = 0; k < kKeep; ++k) {
      const int left = packs - first - k * threads;
      count += left < 0 ? 0 : left < 32 ? left : 32;
    }
    return count * kPack;
  }

  DEVICE_FN int64_t begin(int row) const { return int64_t(row) * norm.width; }
  DEVICE_FN int64_t skip_begin(int row) const {
    const bool repeats = kParts == 1 && norm.skip_rows != norm.rows;
    return begin(repeats ? int(unsigned(row) % unsigned(norm.skip_rows)) : row);
  }

  DEVICE_FN const V* gammas_of(int row) const { return static_cast<const V*>(norm.gamma.data) + row * norm.gamma.step; }
  DEVICE_FN const V* betas_of(int row) const { return static_cast<const V*>(norm.beta.data) + row * norm.beta.step; }
  DEVICE_FN void prefetch(int row, int t, int threads) const {
    if (row > 0 && norm.gamma.step == 0) return;
    each(t, threads, [&](int, int first) {
      device::prefetch(gammas_of(row) + first);
      if (norm.beta.data) device::prefetch(betas_of(row) + first);
    });
  }
  // What may be the model's own.
  DEVICE_FN void ask(Held& own, int row, int k, int first) const {
    own.gamma[k] = load_words<kPack>(gammas_of(row) + first);
    if (norm.beta.data) own.beta[k] = load_words<kPack>(betas_of(row) + first);
    if (kAdds && norm.bias) own.bias[k] = load_words<kPack>(static_cast<const X*>(norm.bias) + first);
  }
  DEVICE_FN void load(Held& own, int row, int t, int threads) const {
    const Part* const x = static_cast<const Part*>(norm.x) + begin(row);
    Words<Part> values[kKeep][kParts] = {};
    Words<X> skips[kKeep] = {};
    each(t, threads, [&](int k, int first) {
      UNROLL for (int p = 0; p < kParts; ++p) {
        if (p == 0 || p < norm.parts) values[k][p] = load_words<kPack>(x + p * norm.rows * norm.width + first);
      }
      if (kParts == 1) ask(own, row, k, first);
      if (kAdds && !kAhead && norm.skip)
        skips[k] = load_words<kPack>(static_cast<const X*>(norm.skip) + skip_begin(row) + first);
    });
    UNROLL for (int k = 0; k < kKeep; ++k) {
      const auto skip = pack_of<X>(skips[k]), bias = pack_of<X>(own.bias[k]);
      UNROLL for (int i = 0; i < kPack; ++i) {
        float value = float(pack_of<Part>(values[k][0]).at[i]);
        UNROLL for (int p = 1; p < kParts; ++p) value += pack_of<Part>(values[k][p]).at[i];
        own.values[k][i] = kAdds ? value + float(skip.at[i]) + float(bias.at[i]) : value;
      }
    }
  }

  // Once there are registers for it.
  DEVICE_FN void ask_behind(Held& own, int row, int t, int threads) const {
    UNROLL for (auto& words : own.behind) words = {};
    if (!norm.behind) return;
    each(t, threads, [&](int k, int first) {
      own.behind[k] = load_words<kPack>(static_cast<const Y*>(norm.behind) + begin(row) + first);
    });
  }

  DEVICE_FN void store(const Held& own, int row, int t, int threads, float mean, float scale) const {
    each(t, threads, [&](int k, int first) {
      const auto gamma = pack_of<V>(own.gamma[k]), beta = pack_of<V>(own.beta[k]);
      Pack<Y, kPack> out;
      UNROLL for (int i = 0; i < kPack; ++i) out.at[i] =
          Y((own.values[k][i] - mean) * scale * float(gamma.at[i]) + float(beta.at[i]));
      if (norm.behind) {
        const auto behind = pack_of<Y>(own.behind[k]);
        UNROLL for (int i = 0; i < kPack; ++i) out.at[i] = AddBehind()(out.at[i], behind.at[i]);
      }
      device::store_pack(static_cast<Y*>(norm.y) + begin(row) + first, out, true);
      if constexpr (kAdds || kClips) {
        if (!norm.sum) return;
        Pack<X, kPack> sum;
        UNROLL for (int i = 0; i < kPack; ++i) sum.at[i] = X(own.values[k][i]);
        device::store_pack(static_cast<X*>(norm.sum) + begin(row) + first, sum, true);
      }
    });
  }
  DEVICE_FN void write(void* statistics, int row, float value) const {
    if (!statistics) return;
    if (norm.double_statistics)
      static_cast<double*>(statistics)[row] = double(value);
    else
      static_cast<float*>(statistics)[row] = value;
  }

  using Four = Pack<float, 4>;
  DEVICE_FN static Four four(const float (&of)[kMaxWarps], int warp) { return device::load_pack<4>(of + warp, true); }
  // Of f(first of four warps), in four chains.
  template <class F>
  DEVICE_FN static float sum(int warps, F f) {
    Four sums{};
    NO_UNROLL for (int w = 0; w < warps; w += 4) {
      const Four some = f(w);
      UNROLL for (int i = 0; i < 4; ++i) sums.at[i] += some.at[i];
    }
    return (sums.at[0] + sums.at[1]) + (sums.at[2] + sums.at[3]);
  }
  // The row's mean, and the squares of deviations from it, from those of warps.
  DEVICE_FN Moments joined(const Shared& s, int warps) const {
    if (!norm.centred) return {0, sum(warps, [&](int w) { return four(s.squares, w); })};
    const float mean = per_value * sum(warps, [&](int w) {
                         Four some = four(s.mean, w), count = four(s.count, w);
                         UNROLL for (int i = 0; i < 4; ++i) some.at[i] *= count.at[i];
                         return some;
                       });
    const float squares = sum(warps, [&](int w) {
      Four some = four(s.squares, w), own = four(s.mean, w), count = four(s.count, w);
      UNROLL for (int i = 0; i < 4; ++i) some.at[i] += count.at[i] * square(own.at[i] - mean);
      return some;
    });
    return {mean, squares};
  }
};

template <class Kernel, int kKeep, class... Clips>
void normalize(device::StreamRef stream, const RowNorm& norm, int64_t packs, const Clips&... clips) {
  const int64_t threads = (packs + 32 * kKeep - 1) / (32 * kKeep) * 32;
  device::block_kernel<typename Kernel::Shared>(
      stream, {norm.rows, int(threads)},
      Kernel{norm, 1 / float(norm.width), float(norm.epsilon), int(packs), clips...});
}
template <class X, class V, class Y, bool kAdds, int kParts = 1, bool kAhead = false>
void normalize(device::StreamRef stream, const RowNorm& norm) {
  using Kernel = NormalizeFewRows<X, V, Y, kAdds, kAhead, false, 1, kParts>;
  const int64_t packs = norm.width / Kernel::kPack;
  if (packs <= Kernel::kMaxThreads)
    normalize<Kernel, 1>(stream, norm, packs);
  else
    normalize<NormalizeFewRows<X, V, Y, kAdds, kAhead, false, 2, kParts>, 2>(stream, norm, packs);
}

// Which types have kernels for a norm ahead.
template <class X, bool kAdds = true>
constexpr bool kHasAhead = kAdds && sizeof(X) == 2;

constexpr int64_t kMostKept = 2 * 1024;  // packs of a row

// Of more, other ways keep a GPU as busy, or busier.
bool are_few(int device, int64_t rows) { return rows < 4 * int64_t(device::multiprocessors(device)); }

// Calls f.template operator()<X, V>(): the types of all but scale and bias, and of these.
template <class F>
void dispatch_parts(const NormTypes& types, F f) {
  dispatch(TypeList<float, Half, BFloat16>{}, types.x, [&]<class T> {
    if (types.gamma == types.x)
      f.template operator()<T, T>();
    else
      f.template operator()<T, float>();
  });
}

}  // namespace

bool normalize_few_rows(device::StreamRef stream, const RowNorm& norm, const NormTypes& types) {
  if (!are_few(stream.device(), norm.rows) || types.x == Type::f64) return false;
  bool done = false;
  dispatch_norm(norm, types, [&]<class X, class V, class Y, bool kAdds> {
    if constexpr (sizeof(X) <= sizeof(float)) {
      const int64_t packs = norm.width / device::pack_size<X, V>();
      if (packs > kMostKept || !is_whole<X, V, Y>(norm)) return;
      done = kHasAhead<X, kAdds> || !norm.ahead.gamma;
      if (!done) return;
      if constexpr (kHasAhead<X, kAdds>)
        if (norm.ahead.gamma) return normalize<X, V, Y, kAdds, 1, true>(stream, norm);
      normalize<X, V, Y, kAdds>(stream, norm);
    }
  });
  return done;
}

bool clip_and_normalize_few_rows(device::StreamRef stream, const RowNorm& norm, const RowClip& clip, Type gamma) {
  if (!are_few(stream.device(), norm.rows)) return false;
  const auto of = [&]<class V> {
    using Kernel = NormalizeFewRows<Half, V, Half, false, false, true, 1, 1>;
    const int64_t packs = norm.width / Kernel::kPack;
    if (packs > Kernel::kMaxThreads || !is_whole<Half, V, Half>(norm)) return false;
    const SearchedPacks<Half> all(static_cast<const Half*>(norm.x), norm.rows * norm.width, Odd());
    normalize<Kernel, 1>(stream, norm, packs, typename Kernel::Clips{clip, all});
    return true;
  };
  return gamma == Type::f32 ? of.template operator()<float>() : of.template operator()<Half>();
}

bool can_normalize_parts(int device, const RowNorm& norm, const NormTypes& types) {
  const bool repeats = norm.skip && norm.skip_rows != norm.rows;
  if (!are_few(device, norm.rows) || repeats || (norm.strict && types.x == Type::f32)) return false;
  bool whole = false;
  dispatch_parts(types, [&]<class T, class V> {
    whole = is_whole<T, V, T>(norm) && norm.width <= kMostKept * device::pack_size<float>() &&
            (kHasAhead<T> || !norm.ahead.gamma);
  });
  return whole;
}

void normalize_parts(device::StreamRef stream, const RowNorm& norm, const NormTypes& types) {
  constexpr int kMost = device::kMostProductParts;
  dispatch_parts(types, [&]<class T, class V> {
    if constexpr (kHasAhead<T>)
      if (norm.ahead.gamma) return normalize<T, V, T, true, kMost, true>(stream, norm);
    normalize<T, V, T, true, kMost>(stream, norm);
  });
}

}  // namespace encore::ops
