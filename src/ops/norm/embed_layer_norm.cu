// EmbedLayerNormalization: the embeddings of a token's word, place and segment are added and the sum normalised.
#include <cmath>

#include "device/divide.h"
#include "device/memory.h"
#include "ops/dispatch.h"
#include "ops/norm/rows.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

using device::Compute;
using device::Divider;
using device::FaultRef;
using device::Pack;
using device::PerThread;

// Rows that are picked; without `ids`, the i-th of a sequence.
struct Table {
  const void* rows = nullptr;  // null: there is no such embedding
  int64_t count = 0;
  const int32_t* ids = nullptr;
};

template <class T, class How>
struct NormalizeEmbeddings {
  using Teams = RowTeams<T, How>;
  using C = Compute<T>;
  using Shared = typename Teams::Shared;
  using Block = device::Block<Shared>;
  using Index = typename Teams::Index;
  static constexpr int kPack = How::kPack, kMaxThreads = Teams::kMaxThreads;

  Table word, place, segment;
  Divider by_places;  // after which place.ids repeat
  const T *gamma, *beta;
  T *sum, *y;
  int64_t rows, width;
  C per_value, epsilon;
  FaultRef fault;

  // The rows of a thread's token.
  struct Token {
    const T *word, *place, *segment;
    DEVICE_FN void read(C (&values)[kPack], int64_t first) const {
      const auto a = device::load_pack<kPack>(word + first, true), b = device::load_pack<kPack>(place + first, true);
      UNROLL for (int j = 0; j < kPack; ++j) values[j] = C(a.at[j]) + C(b.at[j]);
      if (!segment) return;
      const auto c = device::load_pack<kPack>(segment + first, true);
      UNROLL for (int j = 0; j < kPack; ++j) values[j] += C(c.at[j]);
    }
  };

  DEVICE_FN void operator()(Block& b, const Shared&) const {
    const Teams teams(b, y, y, rows, width);
    PerThread<typename Teams::template KeptAs<C>, kMaxThreads> kept;
    PerThread<Token, kMaxThreads> tokens;
    const auto each_pack = [&](int t, auto f) {
      teams.each(t, [&](int k, Index first) {
        if constexpr (How::kKeep == 0) tokens[t].read(kept[t].at[k], first);
        f(kept[t].at[k], first);
      });
    };
    auto total = Teams::Together::reduce(
        b, C(0),
        [&](int t) {
          C all = 0;
          if (!teams.has_row(t)) return all;
          tokens[t] = token(teams.index(t));
          if constexpr (How::kKeep != 0)  // all are asked for before the first is needed
            teams.each(t, [&](int k, Index first) { tokens[t].read(kept[t].at[k], first); });
          each_pack(t, [&](const C(&values)[kPack], Index first) {
            UNROLL for (int j = 0; j < kPack; ++j) all += values[j];
            if (sum) store(sum + teams.index(t) * width + first, [&](int j) { return values[j]; });
          });
          return all;
        },
        Plus());
    auto squares = Teams::Together::reduce(
        b, C(0),
        [&](int t) {
          const C mean = total[t] * per_value;
          C all = 0;
          each_pack(t, [&](const C(&values)[kPack], Index) {
            UNROLL for (int j = 0; j < kPack; ++j) all += (values[j] - mean) * (values[j] - mean);
          });
          return all;
        },
        Plus());
    b.threads([&](int t, Shared&) {
      const C mean = total[t] * per_value, scale = C(1) / std::sqrt(squares[t] * per_value + epsilon);
      each_pack(t, [&](const C(&values)[kPack], Index first) {
        const auto factors = device::load_pack<kPack>(gamma + first, true);
        const auto offsets = device::load_pack<kPack>(beta + first, true);
        store(y + teams.index(t) * width + first,
              [&](int j) { return (values[j] - mean) * scale * C(factors.at[j]) + C(offsets.at[j]); });
      });
    });
  }

 private:
  DEVICE_FN Token token(int64_t row) const {
    int64_t at;
    by_places(row, at);
    return {picked(word, row, row), picked(place, at, at), picked(segment, row, row)};
  }
  DEVICE_FN const T* picked(const Table& table, int64_t i, int64_t otherwise) const {
    if (!table.rows) return nullptr;
    int64_t id = table.ids ? table.ids[i] : otherwise;
    if (id < 0 || id >= table.count) {  // none counts from the end
      fault.report(device::FaultKind::index_out_of_range, id, table.count);
      id = 0;
    }
    return static_cast<const T*>(table.rows) + id * width;
  }
  template <class F>
  DEVICE_FN static void store(T* to, F value) {
    Pack<T, kPack> out;
    UNROLL for (int j = 0; j < kPack; ++j) out.at[j] = T(value(j));
    device::store_pack(to, out, true);
  }
};

// Where the first zero of each row is.
struct FirstZero {
  const int32_t* mask;
  int32_t* at;
  int64_t width;
  struct Less {
    DEVICE_FN int32_t operator()(int32_t a, int32_t b) const { return a < b ? a : b; }
  };
  DEVICE_FN void operator()(device::Block<device::NoShared>& b, const device::NoShared&) const {
    const int32_t* row = mask + b.index() * width;
    const auto none = int32_t(width);
    const int32_t first = b.reduce(
        none,
        [&](int t) {
          for (int64_t i = t; i < width; i += b.size())
            if (row[i] == 0) return int32_t(i);
          return none;
        },
        Less());
    b.threads([&](int t, device::NoShared&) {
      if (t == 0) at[b.index()] = first;
    });
  }
};

class EmbedLayerNorm : public Op {
 public:
  explicit EmbedLayerNorm(const NodeInfo& node) : epsilon_(node.get_float("epsilon", 1e-12f)) {
    require(epsilon_ >= 0, "epsilon is ", epsilon_, "; it must not be negative");
    require(node.has_input(1) == node.has_input(4), "segment_ids and segment_embedding must be given together");
  }

  void run(Context& context) const override {
    const Tensor &ids = context.input(0), &words = context.input(2), &places = context.input(3);
    const Tensor *segment_ids = context.find_input(1), *segments = context.find_input(4), *mask = context.find_input(7),
                 *place_ids = context.find_input(8);
    require(ids.shape.rank() == 2, "input_ids ", ids.shape.str(), " must have two dimensions");
    const int64_t batch = ids.shape[0], length = ids.shape[1], rows = ids.count();
    const auto check_table = [&](const Tensor& table, const char* what) {
      require(table.shape.rank() == 2 && (table.shape[1] == words.shape.back()), what, " ", table.shape.str(),
              " must have two dimensions, the last of them as word_embedding ", words.shape.str());
      require(table.shape[0] > 0 || rows == 0, what, " ", table.shape.str(), " has no rows to pick");
    };
    require(words.shape.rank() == 2, "word_embedding ", words.shape.str(), " must have two dimensions");
    check_table(words, "word_embedding");
    check_table(places, "position_embedding");
    if (segments) check_table(*segments, "segment_embedding");
    const int64_t width = words.shape[1];
    const auto check_ids = [&](const Tensor* given, const char* what) {
      if (given)
        require(given->shape == ids.shape, what, " ", given->shape.str(), " must have the shape of input_ids ",
                ids.shape.str());
    };
    check_ids(segment_ids, "segment_ids");
    check_ids(mask, "mask");
    if (place_ids && place_ids->shape != Shape{1, length}) check_ids(place_ids, "position_ids");
    if (!place_ids)
      require(length <= places.shape[0], "sequences of ", length, " exceed position_embedding ", places.shape.str());
    for (int input : {5, 6})
      require(context.input(input).shape == Shape{width}, input == 5 ? "gamma" : "beta", " has shape ",
              context.input(input).shape.str(), "; embeddings of ", width, " want [", width, "]");

    const Tensor y = context.output(0, Shape{batch, length, width});
    const Tensor ends = context.wants_output(1) ? context.output(1, Shape{batch}) : Tensor();
    const Tensor sum = context.wants_output(2) ? context.output(2, y.shape) : Tensor();
    if (ends.data && batch > 0) {
      if (mask)
        device::block_kernel<device::NoShared>(context.stream(), {batch, 256},
                                               FirstZero{mask->as<const int32_t>(), ends.as<int32_t>(), length});
      else
        device::fill(context.stream(), ends.data, 0, ends.bytes());
    }
    if (y.count() == 0) return;
    const Table word{words.data, words.shape[0], ids.as<const int32_t>()};
    const Table place{places.data, places.shape[0], place_ids ? place_ids->as<const int32_t>() : nullptr};
    Table segment;
    if (segments) segment = {segments->data, segments->shape[0], segment_ids->as<const int32_t>()};
    const bool places_repeat = !place_ids || place_ids->count() == length;
    dispatch(TypeList<float, Half>{}, y.type, [&]<class T>() {
      using C = Compute<T>;
      constexpr int kWide = device::pack_size<T>();
      const T *gamma = context.input(5).as<const T>(), *beta = context.input(6).as<const T>();
      bool whole = width % kWide == 0;
      for (const void* data :
           {word.rows, place.rows, segment.rows, static_cast<const void*>(gamma), static_cast<const void*>(beta),
            static_cast<const void*>(y.data), static_cast<const void*>(sum.data)})
        whole &= device::is_pack_aligned<kWide>(static_cast<const T*>(data));
      spread_over_teams<void, kWide, true>(context.stream(), rows, width, whole, [&]<class How>(device::Blocks grid) {
        using Kernel = NormalizeEmbeddings<T, How>;
        device::block_kernel<typename Kernel::Shared>(
            context.stream(), grid,
            Kernel{word, place, segment, Divider(places_repeat ? length : rows, rows), gamma, beta, sum.as<T>(),
                   y.as<T>(), rows, width, C(1) / C(width), C(epsilon_), context.fault()});
      });
    });
  }

 private:
  float epsilon_;
};

}  // namespace

std::vector<OpRow> embed_layer_norm_rows() {
  const Types ids{Type::i32}, values{Type::f32, Type::f16};
  return {{.domain = kMicrosoft,
           .name = "EmbedLayerNormalization",
           .since = 1,
           .types = {in(0, ids), in(1, ids), in(2, values), in(3, values), in(4, values), in(5, values), in(6, values),
                     in(7, ids), in(8, ids)},
           .make = make<EmbedLayerNorm>}};
}

}  // namespace encore::ops
