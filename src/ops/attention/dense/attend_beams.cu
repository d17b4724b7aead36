// Each thread has the score of a key, for which it needs no other; then groups of threads go through the values. Blocks
// share out the keys of a head. The block that has the last key puts it into the cache.
#include "ops/attention/dense/attend_beams.h"

#include "device/launch.h"
#include "ops/attention/dense/split_k.h"
#include "ops/dispatch.h"

namespace encore::ops {
namespace {

using device::Block;
using device::Pack;
using device::PerThread;

constexpr int kThreads = 128, kAtOnce = 4;  // loads on their way

template <class T>
struct AttendBeams {
  static constexpr int kMaxThreads = kThreads, kPack = device::pack_size<T>();
  using Packed = Pack<T, kPack>;
  struct Shared {
    float q[kMostBeamSize];
    float prob[kThreads];
    int source[kThreads];  // the batch that a key is of
    float acc[kThreads * kPack];
  };
  struct Accumulator {
    float at[kPack];
  };

  HeadView<const T> q, new_key, new_value;
  HeadView<T> y;
  T *key_cache, *value_cache;
  const T *q_bias, *k_bias, *v_bias, *bias;
  int64_t bias_batch, bias_head;
  const int32_t *indirection, *mask;
  void* scores;
  bool half_scores, aligned;
  int heads, keys, past, size, width, places;
  int64_t capacity;
  float scale, filter;
  SplitPartials partial;
  device::FaultRef fault;

  DEVICE_FN void operator()(Block<Shared>& b, const Shared& s) const {
    const int shares = partial.shares, index = int(b.index());
    const int share = index % shares, place = index / shares, head = place % heads, batch = place / heads;
    const int tiles = (keys + kThreads - 1) / kThreads, own = (tiles + shares - 1) / shares * kThreads;
    const int first = share * own, end = keys - first > own ? first + own : keys;
    const int lanes = size / kPack, groups = kThreads / lanes;

    PerThread<Accumulator, kThreads> acc;
    PerThread<float, kThreads> score;
    b.threads([&](int t, Shared& s) {
      for (int i = t; i < size; i += kThreads) {
        const float value = float(q.at(batch, head, 0)[i]);
        s.q[i] = q_bias ? float(T(value + float(q_bias[head * size + i]))) : value;
      }
      UNROLL for (int j = 0; j < kPack; ++j) acc[t].at[j] = 0;
    });
    float row_max = kMaskedScore<float>, row_sum = 0;
    for (int key = first; key < end; key += kThreads) {
      b.threads([&](int t, Shared& s) {
        score[t] = kMaskedScore<float>;
        if (key + t >= end) return;
        const int source = source_of(batch, key + t);
        s.source[t] = source;
        score[t] = score_of(s, batch, source, head, key + t);
      });
      const float tile_max = b.reduce(
          kMaskedScore<float>, [&](int t) { return score[t]; }, [](float a, float c) { return max_score(a, c); });
      const float now = max_score(row_max, tile_max), base = finite_max(now), correction = exponential(row_max - base);
      row_max = now;
      row_sum *= correction;
      row_sum += b.reduce(
          0.f, [&](int t) { return exponential(score[t] - base); }, [](float a, float c) { return a + c; });
      b.threads([&](int t, Shared& s) { s.prob[t] = exponential(score[t] - base); });
      b.threads([&](int t, Shared&) {
        const int lane = t % lanes, group = t / lanes;
        if (group >= groups) return;
        UNROLL for (int j = 0; j < kPack; ++j) acc[t].at[j] *= correction;
        const int count = end - key < kThreads ? end - key : kThreads;
        for (int n = group; n < count; n += groups * kAtOnce) {
          Packed values[kAtOnce];
          UNROLL for (int i = 0; i < kAtOnce; ++i) {
            const int one = n + i * groups;
            if (one < count) values[i] = value_of(batch, s.source[one], head, key + one, lane * kPack);
          }
          UNROLL for (int i = 0; i < kAtOnce; ++i) {
            const int one = n + i * groups;
            if (one >= count) break;
            const float prob = s.prob[one];
            UNROLL for (int j = 0; j < kPack; ++j) acc[t].at[j] += prob * float(values[i].at[j]);
          }
        }
      });
    }
    b.threads([&](int t, Shared& s) {
      if (t / lanes >= groups) return;
      UNROLL for (int j = 0; j < kPack; ++j) s.acc[t * kPack + j] = acc[t].at[j];
    });
    b.threads([&](int t, Shared&) {
      const int64_t row = (int64_t(batch) * heads + head) * shares + share;
      for (int column = t; column < size; column += kThreads) {
        float sum = 0;
        for (int g = 0; g < groups; ++g) sum += s.acc[g * size + column];
        if (shares == 1)
          y.at(batch, head, 0)[column] = T(normalised(sum, row_sum));
        else
          partial.acc[row * size + column] = sum;
      }
      if (shares > 1 && t == 0) {
        partial.row_max[row] = row_max;
        partial.row_sum[row] = row_sum;
      }
    });
  }

 private:
  DEVICE_FN int source_of(int batch, int key) const {
    if (!indirection || key >= past) return batch;
    const int beam = indirection[int64_t(batch) * places + key];
    if (beam >= 0 && beam < width) return batch / width * width + beam;
    fault.report(device::FaultKind::index_out_of_range, beam, width);
    return batch;
  }
  DEVICE_FN Packed load(const T* from) const { return device::load_pack<kPack>(from, aligned); }
  DEVICE_FN Packed made(const T* from, const T* bias, int column) const {
    Packed pack = load(from + column);
    if (!bias) return pack;
    const Packed more = load(bias + column);
    UNROLL for (int j = 0; j < kPack; ++j) pack.at[j] = T(float(pack.at[j]) + float(more.at[j]));
    return pack;
  }
  DEVICE_FN int64_t head_of(int batch, int head) const { return (int64_t(batch) * heads + head) * size * capacity; }

  DEVICE_FN float score_of(const Shared& s, int batch, int source, int head, int key) const {
    T* const at = key_cache + head_of(source, head) + int64_t(key) * kPack;
    const int64_t step = capacity * kPack;
    const int chunks = size / kPack;
    float sum = 0;
    for (int chunk = 0; chunk < chunks; chunk += kAtOnce) {
      Packed packs[kAtOnce];
      UNROLL for (int i = 0; i < kAtOnce; ++i) {
        const int one = chunk + i;
        if (one >= chunks) break;
        if (key < past) {
          packs[i] = load(at + one * step);
        } else {
          packs[i] = made(new_key.at(batch, head, 0), k_bias ? k_bias + head * size : nullptr, one * kPack);
          device::store_pack(at + one * step, packs[i], aligned);
        }
      }
      UNROLL for (int i = 0; i < kAtOnce; ++i) {
        if (chunk + i >= chunks) break;
        UNROLL for (int j = 0; j < kPack; ++j) sum += s.q[(chunk + i) * kPack + j] * float(packs[i].at[j]);
      }
    }
    sum *= scale;
    if (mask && mask[int64_t(batch) * keys + key] == 0) sum += filter;
    if (bias) sum += float(bias[batch * bias_batch + head * bias_head + key]);
    if (scores) {
      const int64_t i = (int64_t(batch) * heads + head) * keys + key;
      if (half_scores)
        static_cast<Half*>(scores)[i] = Half(sum);
      else
        static_cast<float*>(scores)[i] = sum;
    }
    return sum;
  }
  DEVICE_FN Packed value_of(int batch, int source, int head, int key, int column) const {
    T* const at = value_cache + head_of(source, head) + int64_t(key) * size + column;
    if (key < past) return load(at);
    const Packed pack = made(new_value.at(batch, head, 0), v_bias ? v_bias + head * size : nullptr, column);
    device::store_pack(at, pack, aligned);
    return pack;
  }
};

template <class T>
void run(Context& context, const Attend& p, const BeamCache& cache) {
  using Kernel = AttendBeams<T>;
  constexpr int kPack = Kernel::kPack;
  const int64_t blocks = checked_product(p.batch, p.heads);
  const SplitPartials partial = make_partials(context, p, splits_for(context, p, blocks, 8, kThreads));
  const auto fits = [](const void* data) {
    return !data || device::is_pack_aligned<kPack>(static_cast<const T*>(data));
  };
  const bool is_new = cache.new_key.data != nullptr;
  const bool aligned = fits(cache.keys) && fits(cache.values) && fits(cache.k_bias) && fits(cache.v_bias) &&
                       (!is_new || (packs_fit<kPack, T>(cache.new_key, p.head_size) &&
                                    packs_fit<kPack, T>(cache.new_value, p.head_size)));
  const auto values = [](const void* data) { return static_cast<const T*>(data); };
  device::block_kernel<typename Kernel::Shared>(context.stream(), {checked_product(blocks, partial.shares), kThreads},
                                                Kernel{p.q,
                                                       cache.new_key,
                                                       cache.new_value,
                                                       p.y,
                                                       static_cast<T*>(cache.keys),
                                                       static_cast<T*>(cache.values),
                                                       values(cache.q_bias),
                                                       values(cache.k_bias),
                                                       values(cache.v_bias),
                                                       values(p.mask.data),
                                                       p.mask.batch,
                                                       p.mask.head,
                                                       cache.indirection,
                                                       cache.mask,
                                                       cache.scores,
                                                       cache.scores_type == Type::f16,
                                                       aligned,
                                                       int(p.heads),
                                                       int(p.keys),
                                                       int(is_new ? p.keys - 1 : p.keys),
                                                       int(p.head_size),
                                                       int(cache.width),
                                                       int(cache.places),
                                                       cache.capacity,
                                                       float(p.scale),
                                                       cache.filter,
                                                       partial,
                                                       context.fault()});
  combine_splits(context, p, partial);
}

}  // namespace

int64_t chunk_of(Type type) { return 16 / int64_t(device::size_bytes(type)); }

void attend_beams(Context& context, const Attend& problem, const BeamCache& cache) {
  dispatch(TypeList<float, Half>{}, problem.type, [&]<class T> { run<T>(context, problem, cache); });
}

}  // namespace encore::ops
