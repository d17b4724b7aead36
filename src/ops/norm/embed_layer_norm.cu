// EmbedLayerNormalization: the embeddings of a token's word, place and segment are added and the sum normalised.
#include "device/launch.h"
#include "device/memory.h"
#include "ops/norm/normed_embeddings.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

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
    const auto picked = [&](const Tensor& table, const Tensor* by, int64_t repeats) {
      return EmbeddingTerm{table.data, table.shape[0], by ? indices_of(*by) : Indices(), repeats};
    };
    const bool places_repeat = !place_ids || place_ids->count() == length;
    NormedEmbeddings norm{
        .rows = rows,
        .width = width,
        .terms = {picked(words, &ids, rows), picked(places, place_ids, places_repeat ? length : rows)},
        .gamma = {context.input(5).data, y.type},
        .beta = {context.input(6).data, y.type},
        .sum = sum.data,
        .y = y.data,
        .epsilon = epsilon_};
    if (segments) norm.terms[2] = picked(*segments, segment_ids, rows);
    normalize_embeddings(context, norm, y.type);
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
