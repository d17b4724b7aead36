// com.microsoft's DynamicSparseAttention: new keys go into a cache as GroupQueryAttention has one, and each query looks
// at the keys that an indexer has chosen for it: of the cache, or with a window of the cache at others.
#include <cmath>
#include <vector>

#include "ops/attention/inputs/grouped_inputs.h"
#include "ops/attention/inputs/heads.h"
#include "ops/attention/sparse/attend_topk.h"
#include "ops/choice.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

constexpr Types kTypes{Type::f32, Type::f16, Type::bf16};

class DynamicSparseAttention : public Op {
 public:
  explicit DynamicSparseAttention(const NodeInfo& node)
      : heads_(node.get_int("num_heads", 0)),
        kv_heads_(node.get_int("kv_num_heads", 0)),
        window_(node.get_int("local_window_size", -1)),
        rotated_from_(node.get_int("rotary_offset", 0)),
        rotates_(read_flag(node, "do_rotary", false)),
        interleaved_(read_flag(node, "rotary_interleaved", false)),
        shared_(read_flag(node, "auxiliary_kv_shared", false)),
        smooth_(read_flag(node, "smooth_softmax", false) && !node.has_input(kSinks)),
        scale_(node.get_float("scale", 0)),
        epsilon_(node.get_float("qk_norm_epsilon", 1e-6f)),
        type_(node.input_type(0)) {
    require(heads_ > 0 && kv_heads_ > 0 && heads_ % kv_heads_ == 0, "num_heads is ", heads_, " and kv_num_heads is ",
            kv_heads_, "; the former must be a multiple of the latter");
    require(heads_ < kSizeCap / 4, "num_heads is ", heads_, "; that is more than there are kernels for");
    const bool local = read_choice<bool>(node, "attention_mode", "selected_only",
                                         {{"selected_only", false}, {"local_plus_selected", true}});
    of_others_ = read_choice<bool>(node, "selected_kv_source", "main", {{"main", false}, {"auxiliary", true}});
    require(local == of_others_, "attention_mode is ", local ? "local_plus_selected" : "selected_only",
            " and selected_kv_source is ", of_others_ ? "auxiliary" : "main",
            "; they must be selected_only and main, or local_plus_selected and auxiliary");
    require(!of_others_ || window_ > 0, "local_window_size is ", window_, "; local_plus_selected wants one above zero");
    require(read_flag(node, "is_causal", true), "is_causal is 0; it must be 1");
    require(std::isfinite(scale_) && scale_ >= 0 && std::isfinite(epsilon_) && epsilon_ > 0, "scale is ", scale_,
            " and qk_norm_epsilon is ", epsilon_, "; they must be finite, and the latter above zero");
    require(rotated_from_ >= 0 && rotated_from_ % 8 == 0, "rotary_offset is ", rotated_from_,
            "; it must be a multiple of 8");
    require(node.has_input(1) == node.has_input(2), "key and value are wanted together, or packed with query");
    require(node.has_input(kPast) == node.has_input(kPast + 1), "past_key and past_value are wanted together");
    require(node.has_input(kQWeights) == node.has_input(kQWeights + 1),
            "q_norm_weight and k_norm_weight are wanted together");
    require(!rotates_ || (node.has_input(kCos) && node.has_input(kCos + 1)), "do_rotary wants cos_cache and sin_cache");
    require(node.has_input(kOthers) == of_others_, "auxiliary_key is wanted with selected_kv_source auxiliary only");
    require(!of_others_ || shared_ || node.has_input(kOthers + 1), "auxiliary_value may be left out only with ",
            "auxiliary_kv_shared");
    require(of_others_ || !node.has_input(kOthers + 1), "auxiliary_value is wanted with auxiliary_key only");
    for (const int i : {1, 2, int(kPast), kPast + 1, int(kOthers), kOthers + 1, int(kCos), kCos + 1, int(kQWeights),
                        kQWeights + 1, int(kSinks)})
      if (node.has_input(i) && node.input_type(i) != type_)
        fail(Code::not_supported, "query is ", device::name(type_), " and input ", i, " is ",
             device::name(node.input_type(i)), "; they must be of one type");
  }

  void prepare(Prepack& prepack) override {
    if (smooth_) zeros_ = keep_zeros(prepack, heads_, type_);
  }

  void run(Context& context) const override {
    CacheExtension cache;
    cache.heads = heads_, cache.kv_heads = kv_heads_;
    take_new_rows(context, cache);
    require(cache.size <= 512, "heads have ", cache.size, " values; there are kernels for up to 512");
    const int64_t total = total_keys(context.input(kTotal), cache.rows), tokens = cache.batch * cache.rows;
    if (context.find_input(kPast)) {
      take_buffers(context, cache, kPast, total);
    } else {
      require(total == cache.rows, "total_sequence_length is ", total, "; without a past it must be that of the ",
              cache.rows, " new rows");
      cache.capacity = total;
    }
    const Tensor& last_keys = expect(context, kLastKeys, "seqlens_k", {cache.batch});
    cache.last_keys = last_keys.as<const int32_t>();
    if (rotates_) {
      if (context.find_input(kIds))
        cache.position_ids = expect(context, kIds, "position_ids", {cache.batch, cache.rows}).as<const int64_t>();
      take_rotation(context, cache, kCos, total, interleaved_);
      require(rotated_from_ <= cache.size - cache.rotated, "rotary_offset is ", rotated_from_, ", and ", cache.rotated,
              " values are rotated, of heads of ", cache.size);
      cache.rotated_from = rotated_from_;
    }
    if (context.find_input(kQWeights)) {
      cache.q_weights = expect(context, kQWeights, "q_norm_weight", {cache.size}).data;
      cache.k_weights = expect(context, kQWeights + 1, "k_norm_weight", {cache.size}).data;
      cache.q_epsilon = cache.k_epsilon = epsilon_;
    }
    TopkKeys chosen = take_chosen(context, cache, tokens);
    const void* const sinks = context.find_input(kSinks) ? expect(context, kSinks, "head_sink", {heads_}).data : zeros_;
    const Tensor y = context.output(0, {cache.batch, cache.rows, heads_ * cache.size});
    take_present(context, cache);
    if (cache.batch == 0) return;

    const int64_t token = heads_ * cache.size;
    HeadRows q{cache.q, cache.q_token, cache.size, cache.q_token};
    if ((cache.cos || cache.q_weights) && y.count() > 0) {
      cache.rotated_q = context.scratch(y.bytes());
      q = {cache.rotated_q, token, cache.size, token};
    }
    extend_cache(context, cache);
    if (y.count() == 0) return;

    Attend problem;
    problem.type = cache.type;
    problem.batch = tokens, problem.heads = heads_, problem.kv_heads = kv_heads_;
    problem.queries = 1, problem.keys = cache.capacity;
    problem.head_size = problem.value_size = cache.size;
    problem.q = q;
    problem.k =
        problem.v = {cache.keys, kv_heads_ * cache.capacity * cache.size, cache.capacity * cache.size, cache.size};
    problem.v.data = cache.values;
    problem.y = {y.data, token, cache.size, token};
    problem.scale = scale_of(scale_, cache.size);
    problem.sinks = sinks;
    attend_topk(context, problem, chosen);
  }

 private:
  enum Input {
    kPast = 3,
    kOthers = 5,
    kIndices = 7,
    kCounts,
    kLastKeys,
    kTotal,
    kCos,
    kIds = 13,
    kQWeights,
    kSinks = 16
  };

  static const Tensor& expect(Context& context, int input, const char* name, const Shape& shape) {
    const Tensor& tensor = context.input(input);
    require(tensor.shape == shape, name, " has shape ", tensor.shape.str(), "; ", shape.str(), " is wanted");
    return tensor;
  }
  TopkKeys take_chosen(Context& context, const CacheExtension& cache, int64_t tokens) const {
    TopkKeys chosen;
    const Tensor& indices = context.input(kIndices);
    require(indices.shape.rank() == 2 && indices.shape[0] == tokens && indices.shape[1] < kSizeCap,
            "selected_indices has shape ", indices.shape.str(), "; [", tokens, ",entries] is wanted");
    chosen.batch = cache.batch, chosen.rows = cache.rows;
    chosen.last_keys = cache.last_keys;
    chosen.window = of_others_ ? window_ : 0;
    chosen.of_others = of_others_;
    chosen.indices = indices.as<const int32_t>();
    chosen.most = indices.shape[1];
    chosen.counts = expect(context, kCounts, "selected_counts", {tokens}).as<const int32_t>();
    if (!of_others_) return chosen;
    const Tensor &keys = context.input(kOthers), *const values = context.find_input(kOthers + 1);
    const Shape& shape = keys.shape;
    require(shape.rank() == 4 && shape == Shape{cache.batch, kv_heads_, shape[2], cache.size} && shape[2] < kSizeCap,
            "auxiliary_key has shape ", shape.str(), "; [", cache.batch, ",", kv_heads_, ",keys,", cache.size,
            "] is wanted");
    require(!values || values->shape == shape, "auxiliary_value has shape ", values ? values->shape.str() : "",
            ", and auxiliary_key ", shape.str());
    chosen.other_keys = keys.data;
    chosen.other_values = values ? values->data : keys.data;
    chosen.others = shape[2];
    return chosen;
  }

  int64_t heads_, kv_heads_, window_, rotated_from_;
  bool rotates_, interleaved_, shared_, smooth_, of_others_ = false;
  float scale_, epsilon_;
  Type type_;
  void* zeros_ = nullptr;  // sinks of all heads
};

}  // namespace

std::vector<OpRow> dynamic_sparse_attention_rows() {
  return {
      {.domain = kMicrosoft,
       .name = "DynamicSparseAttention",
       .since = 1,
       .types = {in(0, kTypes), in(1, kTypes), in(2, kTypes), in(3, kTypes), in(4, kTypes), in(5, kTypes),
                 in(6, kTypes), in(7, {Type::i32}), in(8, {Type::i32}), in(9, {Type::i32}), in(10, {Type::i32}),
                 in(11, kTypes), in(12, kTypes), in(13, {Type::i64}), in(14, kTypes), in(15, kTypes), in(16, kTypes)},
       .make = make<DynamicSparseAttention>,
       .host_inputs = {10},
       .may_reuse = {{3, 1}, {4, 2}}}};
}

}  // namespace encore::ops
