// com.microsoft's GroupQueryAttention: keys and values live in a KV cache that new ones go into, and queries look at
// all of it.
//
// How long each batch is only the device knows. So launches are sized by the cache, and one captured graph serves every
// length; but a prompt, all of whose rows are new, is attended by itself.
//
// A cache may hold no more than a window (window_cache.h), and it may hold codes for keys and values
// (cache_quantization.h).
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "ops/attention/dense/decode_step.h"
#include "ops/attention/inputs/grouped_inputs.h"
#include "ops/attention/inputs/heads.h"
#include "ops/choice.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

constexpr Types kTypes{Type::f32, Type::f16, Type::bf16};
constexpr Types kCacheTypes = kTypes | Types{Type::u8, Type::i8, Type::f8e4m3};

class GroupQueryAttention : public Op {
 public:
  explicit GroupQueryAttention(const NodeInfo& node)
      : heads_(node.get_int("num_heads", 0)),
        kv_heads_(node.get_int("kv_num_heads", 0)),
        window_(node.get_int("local_window_size", -1)),
        shown_(node.get_int("qk_output", 0)),
        causal_(read_flag(node, "causal", true)),
        rotates_(node.get_int("do_rotary", 0) == 1),
        interleaved_(node.get_int("rotary_interleaved", 0) == 1),
        windowed_(read_flag(node, "sliding_window_cache", false)),
        smooth_(node.get_int("smooth_softmax", 0) == 1 && !node.has_input(kSinks)),
        scale_(node.get_float("scale", 0)),
        softcap_(node.get_float("softcap", 0)),
        q_epsilon_(epsilon_of(node, "q_norm_epsilon")),
        k_epsilon_(epsilon_of(node, "k_norm_epsilon")),
        type_(node.input_type(0)),
        tf32_(node.settings.use_tf32) {
    require(heads_ > 0 && kv_heads_ > 0 && heads_ % kv_heads_ == 0, "num_heads is ", heads_, " and kv_num_heads is ",
            kv_heads_, "; the former must be a multiple of the latter");
    require(heads_ < kSizeCap / 4, "num_heads is ", heads_, "; that is more than there are kernels for");
    require(window_ == -1 || (window_ > 0 && window_ <= std::numeric_limits<int32_t>::max() && causal_),
            "local_window_size is ", window_, "; it must be -1, or above zero in causal attention, in 32 bits");
    require(std::isfinite(scale_) && std::isfinite(softcap_) && softcap_ >= 0, "scale is ", scale_, " and softcap is ",
            softcap_, "; they must be finite, and the latter not negative");
    require(!windowed_ || window_ > 0, "sliding_window_cache wants a local_window_size above zero, not ", window_);
    if (windowed_ && node.has_input(kBias))
      fail(Code::not_supported, "attention_bias is not supported with sliding_window_cache");
    const bool shows = node.output_count() > 3 && node.has_output(3);
    require(shown_ >= 0 && shown_ <= 2 && shows == (shown_ != 0), "qk_output is ", shown_,
            "; it must be 1 or 2 with output_qk, and 0 without");
    if (shows && windowed_) fail(Code::not_supported, "output_qk is not supported with sliding_window_cache");
    take_code_kind(node);
    for (const int i : {1, 2, int(kCos), int(kSin), int(kBias), int(kSinks), int(kQWeights), int(kKWeights)})
      if (node.has_input(i) && node.input_type(i) != type_)
        fail(Code::not_supported, "query is ", device::name(type_), " and input ", i, " is ",
             device::name(node.input_type(i)), "; they must be of one type");
    require(!rotates_ || (node.has_input(kCos) && node.has_input(kSin)), "do_rotary wants cos_cache and sin_cache");
    require(node.has_input(kCos) == node.has_input(kSin), "cos_cache and sin_cache are wanted together");
    require(node.has_input(1) == node.has_input(2), "key and value are wanted together, or packed with query");
    require(node.has_input(kPastKey) == node.has_input(kPastValue), "past_key and past_value are wanted together");
    require(node.has_input(kQWeights) == node.has_input(kKWeights),
            "q_norm_weight and k_norm_weight are wanted together");
  }

  void prepare(Prepack& prepack) override {
    if (smooth_) zeros_ = keep_zeros(prepack, heads_, type_);
  }

  size_t cleared_bytes() const override { return kAttentionClears; }
  void run(Context& context) const override {
    const Tensor& query = context.input(0);
    CacheExtension cache;
    cache.heads = heads_, cache.kv_heads = kv_heads_;
    take_new_rows(context, cache, true);
    take_norms(context, cache);
    const int64_t total = take_lengths(context, cache);
    const Shape y_shape{cache.batch, cache.rows, checked_product(heads_, cache.size)};
    require(total < kSizeCap && cache.capacity < kSizeCap && cache.rows < kSizeCap && cache.size < kSizeCap &&
                heads_ + 2 * kv_heads_ < kSizeCap,
            "query ", query.shape.str(), " and ", cache.capacity, " keys are more than there are kernels for");
    take_positions(context, cache, total);
    take_scales(context, cache);

    Attend problem;
    problem.sinks = sinks(context);
    take_bias(context, cache, total, problem.mask);
    const Tensor y = context.output(0, y_shape);
    take_present(context, cache);
    void* const scores = shown_ == 0 ? nullptr : context.output(3, {cache.batch, heads_, cache.rows, total}).data;
    if (cache.batch == 0) return;
    WindowMove window;
    const int32_t* const last_rows = windowed_ ? enter_window(context, cache, window) : cache.last_keys;

    const int64_t row = code_kind_ == CodeKind::none ? cache.size : row_bytes_of(cache);
    const HeadRows keys{cache.keys, kv_heads_ * cache.capacity * row, cache.capacity * row, row};
    problem.type = query.type, problem.tf32 = tf32_;
    problem.batch = cache.batch, problem.heads = heads_, problem.kv_heads = kv_heads_;
    problem.queries = cache.rows, problem.keys = cache.from_start ? cache.rows : cache.capacity;
    problem.head_size = problem.value_size = cache.size;
    problem.q = {cache.q, cache.rows * cache.q_token, cache.size, cache.q_token};
    problem.k = problem.v = keys;
    problem.v.data = cache.values;
    problem.is_cache = true;
    problem.k_codes = cache.codes[0], problem.v_codes = cache.codes[1];
    problem.y = {y.data, y_shape.count(1, 3), cache.size, y_shape[2]};
    problem.scale = scale_ != 0 ? double(scale_) : 1 / std::sqrt(double(cache.size));
    problem.softcap = softcap_;
    problem.visible.before = window_ - (window_ > 0);
    problem.visible.after = causal_ ? 0 : -1;
    problem.visible.from_end = !cache.from_start;
    // Of a prompt that has no padding, causal attention needs no lengths.
    if (!cache.from_start || !causal_ || cache.batch > 1) problem.visible.last_keys = last_rows;
    if (shown_ != 0) {
      problem.keys = total;
      problem.scores.data = scores;
      problem.scores.stage = shown_ == 1 ? ScoresOutput::seen : ScoresOutput::softmax;
    }
    if (y.count() > 0 && decode_step(context, cache, problem)) return;
    // Of a filled cache nothing else looks at the lengths.
    if ((cache.cos || cache.q_weights || cache.filled) && y.count() > 0) {
      cache.rotated_q = context.scratch(y.bytes());
      problem.q = {cache.rotated_q, y_shape.count(1, 3), cache.size, y_shape[2]};
    }
    extend_cache(context, cache);
    if (y.count() > 0) attend(context, problem);
    leave_stage(context, cache, window);
  }

 private:
  enum Input {
    kPastKey = 3,
    kPastValue,
    kLastKeys,
    kTotal,
    kCos,
    kSin,
    kIds,
    kBias,
    kSinks,
    kKScale,
    kVScale,
    kQWeights,
    kKWeights
  };

  // What the cache holds: values, or codes for them.
  void take_code_kind(const NodeInfo& node) {
    const Quantized keys = read_quantized(node, "k_quant_type"), values = read_quantized(node, "v_quant_type");
    if ((keys == Quantized::none) != (values == Quantized::none))
      fail(Code::not_supported, "k_quant_type is ", node.get_string("k_quant_type", "NONE"), " and v_quant_type is ",
           node.get_string("v_quant_type", "NONE"), "; keys and values must both be quantized, or neither");
    const Type past = node.input_type(kPastKey), past_value = node.input_type(kPastValue);
    if (keys == Quantized::none) {
      for (const int i : {int(kPastKey), int(kPastValue)})
        if (node.has_input(i) && node.input_type(i) != type_)
          fail(Code::not_supported, "query is ", device::name(type_), " and input ", i, " is ",
               device::name(node.input_type(i)), "; without k_quant_type they must be of one type");
      return;
    }
    per_channel_[0] = keys == Quantized::by_channel, per_channel_[1] = values == Quantized::by_channel;
    require(
        node.has_input(kPastKey) && node.has_input(kPastValue) && node.has_input(kKScale) && node.has_input(kVScale),
        "a quantized cache wants past_key, past_value, k_scale and v_scale");
    const int64_t bits = node.get_int("kv_cache_bit_width", 0);
    const bool is_byte = bits == 8 || bits == 0;  // without the attribute the type says it
    code_kind_ = past == Type::u8 && bits == 4     ? CodeKind::i4
                 : past == Type::i8 && bits == 8   ? CodeKind::i8
                 : past == Type::f8e4m3 && is_byte ? CodeKind::f8
                                                   : CodeKind::none;
    if (code_kind_ == CodeKind::none || past_value != past)
      fail(Code::not_supported, "past_key is ", device::name(past), ", past_value is ", device::name(past_value),
           " and kv_cache_bit_width is ", bits,
           "; a quantized cache is of uint8 with 4 bits, or of int8 or float8e4m3fn with 8");
  }

  // Its own, or that of both.
  static float epsilon_of(const NodeInfo& node, const char* name) {
    const auto own = node.find_float(name);
    const float epsilon = own.value_or(node.get_float("qk_norm_epsilon", 1e-6f));
    require(std::isfinite(epsilon) && epsilon > 0, own ? name : "qk_norm_epsilon", " is ", epsilon,
            "; it must be finite and above zero");
    return epsilon;
  }
  void take_norms(Context& context, CacheExtension& cache) const {
    const Tensor *q_weights = context.find_input(kQWeights), *k_weights = context.find_input(kKWeights);
    for (const Tensor* weights : {q_weights, k_weights})
      require(!weights || weights->shape == Shape{cache.size}, "q_norm_weight or k_norm_weight has shape ",
              weights ? weights->shape.str() : "", "; [", cache.size, "] is wanted");
    if (!q_weights || !k_weights) return;
    cache.q_weights = q_weights->data, cache.k_weights = k_weights->data;
    cache.q_epsilon = q_epsilon_, cache.k_epsilon = k_epsilon_;
  }

  // The past, and where the new rows begin. Returns the longest length.
  int64_t take_lengths(Context& context, CacheExtension& cache) const {
    const Tensor& last_keys = context.input(kLastKeys);
    require(last_keys.count() == cache.batch, "seqlens_k has shape ", last_keys.shape.str(), "; a number for each of ",
            cache.batch, " batches is wanted");
    const Tensor& told = context.input(kTotal);
    const bool is_told = told.where == Where::host;
    int64_t total = is_told ? total_keys(told, cache.rows) : 0;
    if (const Tensor* key = context.find_input(kPastKey)) {
      const Tensor& value = context.input(kPastValue);
      const Shape& shape = key->shape;
      const int64_t last = row_size(cache);
      require(shape.rank() == 4 && shape == Shape{cache.batch, kv_heads_, shape[2], last} && value.shape == shape,
              "past_key ", shape.str(), " and past_value ", value.shape.str(), " must be [", cache.batch, ",",
              kv_heads_, ",keys,", last, "]");
      cache.past_keys = key->data, cache.past_values = value.data;
      cache.past_rows = shape[2];
    }
    if (!is_told) {
      require(cache.rows == 1 && cache.past_rows > 0, "total_sequence_length is on the device, and there are ",
              cache.rows, " new rows and a past of ", cache.past_rows, "; one row and a past with room are wanted");
      total = cache.past_rows;
    }
    if (cache.filled) {
      require(!windowed_, "key and value have no rows, which sliding_window_cache does not allow");
      require(total <= cache.past_rows, "key and value have no rows, so the past must have all keys; ",
              "total_sequence_length is ", total, ", and the past has ", cache.past_rows);
    }
    if (windowed_) {
      require(cache.past_rows >= window_, "the past has room for ", cache.past_rows,
              " keys; with sliding_window_cache ", "it must have room for the window of ", window_);
      require(cache.past_rows < kSizeCap, "the past has room for ", cache.past_rows,
              " keys, more than there are kernels for");
      cache.capacity = cache.past_rows;
      cache.residents = {int(cache.capacity), int(cache.capacity - window_ + 1)};
    } else {
      require(total <= cache.past_rows + cache.rows, "total_sequence_length is ", total, "; the past has ",
              cache.past_rows, " keys, and ", cache.rows, " are new");
      cache.capacity = std::max(total, cache.past_rows);
    }
    cache.last_keys = last_keys.as<const int32_t>();
    // One row ends at the last key, whether there is a past or not.
    cache.from_start = cache.rows > 1 && cache.rows == total;
    return total;
  }

  void take_positions(Context& context, CacheExtension& cache, int64_t total) const {
    const Tensor* const ids = context.find_input(kIds);
    require(!ids || ids->shape == Shape{cache.batch, cache.rows}, "position_ids has shape ",
            ids ? ids->shape.str() : "", "; [", cache.batch, ",", cache.rows, "] is wanted");
    if (!rotates_) return;
    if (ids) cache.position_ids = ids->as<const int64_t>();
    take_rotation(context, cache, kCos, total, interleaved_);
  }

  // A row of a head in the cache, as its shape counts and in bytes.
  int64_t row_size(const CacheExtension& cache) const {
    return code_kind_ == CodeKind::none ? cache.size : row_bytes_of(cache);
  }
  int64_t row_bytes_of(const CacheExtension& cache) const { return row_bytes(code_kind_, cache.size, cache.type); }

  void take_scales(Context& context, CacheExtension& cache) const {
    if (code_kind_ == CodeKind::none) return;
    for (int i = 0; i < 2; ++i) {
      const Tensor& scales = context.input(kKScale + i);
      const int64_t wanted = per_channel_[i] ? checked_product(kv_heads_, cache.size) : 1;
      require(scales.shape.count() == wanted, i == 0 ? "k_scale" : "v_scale", " has shape ", scales.shape.str(), "; ",
              wanted, " of them are wanted, as [1,", per_channel_[i] ? kv_heads_ : 1, ",1,",
              per_channel_[i] ? cache.size : 1, "]");
      cache.codes[i] = {code_kind_, scales.as<const float>(), per_channel_[i] ? cache.size : 0, per_channel_[i]};
    }
  }

  const void* sinks(Context& context) const {
    const Tensor* const given = context.find_input(kSinks);
    require(!given || given->shape == Shape{heads_}, "head_sink has shape ", given ? given->shape.str() : "", "; [",
            heads_, "] is wanted");
    return given ? given->data : zeros_;
  }

  void take_bias(Context& context, const CacheExtension& cache, int64_t total, AttentionMask& mask) const {
    const Tensor* const bias = context.find_input(kBias);
    if (!bias) return;
    const Shape& shape = bias->shape;
    const bool fits = shape.rank() == 4 && (shape[0] == 1 || shape[0] == cache.batch) &&
                      (shape[1] == 1 || shape[1] == heads_) && shape[2] == cache.rows && shape[3] == total;
    require(fits, "attention_bias ", shape.str(), " does not broadcast to [", cache.batch, ",", heads_, ",", cache.rows,
            ",", total, "]");
    mask.data = bias->data;
    mask.keys = shape[3];
    mask.key = 1;
    mask.query = shape[3];
    mask.head = shape[1] == 1 ? 0 : shape.count(2, 4);
    mask.batch = shape[0] == 1 ? 0 : shape.count(1, 4);
  }

  // Outputs that nobody wants are made all the same: attention reads them.
  void take_present(Context& context, CacheExtension& cache) const {
    const Shape shape{cache.batch, kv_heads_, cache.capacity, row_size(cache)};
    const auto make = [&](int output) {
      if (context.wants_output(output)) return context.output(output, shape).data;
      return context.scratch(size_t(checked_product(cache.batch * kv_heads_ * cache.capacity, row_bytes_of(cache))));
    };
    cache.keys = make(1);
    cache.values = make(2);
    const bool shared = shape.count() > 0 && (cache.past_keys == cache.keys || cache.past_values == cache.values);
    require(!shared || cache.past_rows == cache.capacity, "total_sequence_length is ", cache.capacity,
            ", and the past shares its memory with the present, which has room for ", cache.past_rows,
            " keys; give a larger one");
  }

  // Makes room for one row in the present; more of them meet the past on a stage, which then is the cache. Returns
  // which row of the cache the last key is in.
  const int32_t* enter_window(Context& context, CacheExtension& cache, WindowMove& move) const {
    move = {.residents = cache.residents,
            .last_keys = cache.last_keys,
            .rows = cache.rows,
            .from_start = cache.from_start,
            .from = {cache.past_keys, cache.past_values},
            .to = {cache.keys, cache.values},
            .batch = cache.batch,
            .heads = kv_heads_,
            .from_capacity = cache.capacity,
            .to_capacity = cache.capacity,
            .row_bytes = row_bytes_of(cache),
            .last_rows = static_cast<int32_t*>(context.scratch(size_t(cache.batch) * sizeof(int32_t)))};
    int32_t* const last_rows = move.last_rows;
    cache.staged = cache.rows != 1;
    if (cache.staged) {
      move.way = WindowMove::to_stage;
      move.to_capacity = cache.rows + (cache.from_start ? 0 : cache.capacity);
      const int64_t rows = checked_product(checked_product(cache.batch, kv_heads_), move.to_capacity);
      for (void*& to : move.to) to = context.scratch(size_t(checked_product(rows, move.row_bytes)));
    }
    if (!cache.from_start) move_window(context, move);
    if (!cache.staged) return last_rows;
    move.way = WindowMove::from_stage;
    move.last_rows = nullptr;
    move.from[0] = move.to[0], move.from[1] = move.to[1];
    move.to[0] = std::exchange(cache.keys, move.to[0]);
    move.to[1] = std::exchange(cache.values, move.to[1]);
    move.from_capacity = std::exchange(move.to_capacity, cache.capacity);
    cache.capacity = move.from_capacity;
    return cache.from_start ? cache.last_keys : last_rows;
  }
  static void leave_stage(Context& context, const CacheExtension& cache, const WindowMove& move) {
    if (cache.staged) move_window(context, move);
  }

  int64_t heads_, kv_heads_, window_, shown_;  // shown: scores (1), their softmax (2) or none
  bool causal_, rotates_, interleaved_, windowed_, smooth_;
  float scale_, softcap_, q_epsilon_, k_epsilon_;
  Type type_;
  bool tf32_;
  CodeKind code_kind_ = CodeKind::none;
  bool per_channel_[2] = {};  // scales of keys and of values
  void* zeros_ = nullptr;     // sinks of all heads
};

}  // namespace

std::vector<OpRow> group_query_attention_rows() {
  // The present does not reuse the past of another node: it may be larger, which is not known when reuse is planned.
  return {{.domain = kMicrosoft,
           .name = "GroupQueryAttention",
           .since = 1,
           .types = {in(0, kTypes), in(1, kTypes), in(2, kTypes), in(3, kCacheTypes), in(4, kCacheTypes),
                     in(5, {Type::i32}), in(6, {Type::i32}), in(7, kTypes), in(8, kTypes), in(9, {Type::i64}),
                     in(10, kTypes), in(11, kTypes), in(12, {Type::f32}), in(13, {Type::f32}), in(14, kTypes),
                     in(15, kTypes)},
           .make = make<GroupQueryAttention>,
           .host_inputs = {6}}};
}

}  // namespace encore::ops
