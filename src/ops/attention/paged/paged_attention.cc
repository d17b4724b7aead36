// com.microsoft's PagedAttention and SparsePagedAttention: sequences without padding, whose keys and values live in
// pages that are shared with other sequences.
//
// Only the device knows how long sequences are: launches are sized by tokens and tables, so that one captured graph
// serves every length. Hints of the host share out work better, and no more.
#include <algorithm>
#include <cmath>
#include <string>

#include "device/memory.h"
#include "ops/attention/inputs/heads.h"
#include "ops/attention/paged/paged_cache.h"
#include "ops/choice.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

// Where the two have their optional inputs.
struct Slots {
  int cos, sin, places, sinks, q_weights, k_weights, k_scale, v_scale, hints;
};
constexpr Slots kDense{8, 9, 10, 11, 12, 13, 14, 15, 16}, kSparse{14, 15, 8, 16, 17, 18, 19, 20, 21};

bool is_aligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }
// What kernels read in packs: itself, or a copy.
void* aligned(Context& context, void* data, size_t bytes) {
  if (is_aligned(data)) return data;
  void* const copy = context.scratch(bytes);
  device::copy(context.stream(), copy, data, bytes);
  return copy;
}

class Paged : public Op {
 protected:
  Paged(const NodeInfo& node, const Slots& slots)
      : slots_(slots),
        heads_(node.get_int("num_heads", 0)),
        kv_heads_(node.get_int("kv_num_heads", 0)),
        window_(node.get_int("local_window_size", -1)),
        rotated_from_(node.get_int("rotary_offset", 0)),
        causal_(node.get_int("is_causal", 1) != 0),
        rotates_(node.get_int("do_rotary", 0) == 1),
        interleaved_(node.get_int("rotary_interleaved", 0) == 1),
        scale_(node.get_float("scale", 0)),
        softcap_(node.get_float("softcap", 0)),
        epsilon_(node.get_float("qk_norm_epsilon", 1e-6f)),
        type_(node.input_type(0)),
        cached_(stored(node, 3, "k_cache_dtype")),
        keys_(read_quantized(node, "k_quant_type")),
        values_(read_quantized(node, "v_quant_type")),
        latent_(is_latent(node)),
        value_size_(node.get_int("v_head_size", 0)) {
    require(heads_ > 0 && kv_heads_ > 0 && heads_ % kv_heads_ == 0 && heads_ < kSizeCap / 4, "num_heads is ", heads_,
            " and kv_num_heads is ", kv_heads_, "; the former must be a multiple of the latter");
    require(window_ >= -1, "local_window_size is ", window_, "; it must be -1, or not negative");
    require(rotated_from_ >= 0 && rotated_from_ % 8 == 0, "rotary_offset is ", rotated_from_,
            "; it must be a multiple of 8, and not negative");
    require(std::isfinite(scale_) && std::isfinite(softcap_) && softcap_ >= 0, "scale is ", scale_, " and softcap is ",
            softcap_, "; they must be finite, and the latter not negative");
    require(std::isfinite(epsilon_) && epsilon_ > 0, "qk_norm_epsilon is ", epsilon_,
            "; it must be finite and above zero");
    for (const int i : {1, 2, slots.cos, slots.sin, slots.sinks, slots.q_weights, slots.k_weights})
      if (node.has_input(i) && node.input_type(i) != type_)
        fail(Code::not_supported, "query is ", device::name(type_), " and input ", i, " is ",
             device::name(node.input_type(i)), "; they must be of one type");
    const bool codes = cached_ == Type::i8 || cached_ == Type::i4 || cached_ == Type::f8e4m3;
    if (!codes && cached_ != type_)
      fail(Code::not_supported, "query is ", device::name(type_), " and key_cache ", device::name(cached_),
           "; that cache is not supported");
    if (!latent_ && stored(node, 4, "v_cache_dtype") != cached_)
      fail(Code::not_supported, "key_cache and value_cache are of different types, which is not supported");
    for (const auto& [coded, kind, scale, which] :
         {std::tuple{codes, keys_, slots.k_scale, "k"}, std::tuple{codes && !latent_, values_, slots.v_scale, "v"}}) {
      require(coded == (kind != Quantized::none), which, "_quant_type must be NONE unless the cache is int8, int4 or ",
              "float8e4m3fn, and then PER_TENSOR or PER_CHANNEL");
      require(coded == node.has_input(scale), which, "_scale is wanted for a cache of codes, and for no other");
    }
    if (latent_)
      require_latent(node);
    else
      require(value_size_ == 0, "v_head_size is only for kv_cache_layout LATENT");
    require(latent_ || node.has_input(1) == node.has_input(2),
            "key and value are wanted together, or packed with query");
    require(!rotates_ || (node.has_input(slots.cos) && node.has_input(slots.sin)),
            "do_rotary wants cos_cache and sin_cache");
    require(node.has_input(slots.q_weights) == node.has_input(slots.k_weights),
            "q_norm_weight and k_norm_weight are wanted together");
  }

  // Puts new keys and values into the pages; what is left is the attention itself.
  AttendPaged extend(Context& context) const {
    PagedCacheExtension e;
    take_new(context, e);
    take_pages(context, e);
    take_rotation(context, e);
    AttendPaged problem;
    const Tensor* const sinks = context.find_input(slots_.sinks);
    require(!sinks || sinks->shape == Shape{heads_}, "head_sink has shape ", sinks ? sinks->shape.str() : "", "; [",
            heads_, "] is wanted");
    take_hints(context, e, problem);
    const int64_t tokens = e.sequences.tokens, width = heads_ * e.pages.size;
    problem.value_size = latent_ && value_size_ ? value_size_ : e.pages.size;
    require(problem.value_size <= e.pages.size, "v_head_size is ", value_size_, " in rows of ", e.pages.size);
    require(problem.value_size == e.pages.size || scale_ != 0, "scale is wanted where v_head_size is ", value_size_,
            " in rows of ", e.pages.size, ", since these do not tell how large heads were");
    const Tensor y = context.output(0, {tokens, heads_ * problem.value_size});
    e.pages.keys = take_cache(context, 3, 1);
    if (!latent_) e.pages.values = take_cache(context, 4, 2);

    problem.type = type_;
    problem.q = e.q;
    problem.q_token = e.q_token;
    if ((e.cos || e.q_weights || !is_aligned(e.q)) && y.count() > 0) {
      problem.q = e.rotated_q = context.scratch(device::size_bytes(type_, checked_product(tokens, width)));
      problem.q_token = width;
    }
    if (tokens > 0) extend_paged_cache(context, e);
    problem.sequences = e.sequences;
    problem.pages = e.pages;
    const size_t bytes = context.input(3).bytes();
    problem.pages.keys = aligned(context, e.pages.keys, bytes);
    if (!latent_) problem.pages.values = aligned(context, e.pages.values, bytes);
    problem.heads = heads_;
    problem.y = y.data;
    problem.scale = scale_of(scale_, e.pages.size);
    problem.softcap = softcap_;
    problem.before = window_ > 0 ? window_ - 1 : -1;
    problem.causal = causal_;
    problem.sinks = sinks ? sinks->data : nullptr;
    return problem;
  }

  int64_t heads() const { return heads_; }
  int64_t kv_heads() const { return kv_heads_; }
  Type type() const { return type_; }

 private:
  // What a cache has: its type, or two codes of int4 in a byte, which only an attribute tells.
  static Type stored(const NodeInfo& node, int input, const char* attribute) {
    const Type type = node.input_type(input);
    const std::string named = node.get_string(attribute, "");
    if (type == Type::u8 && named == "int4") return Type::i4;
    if (type == Type::u8 || (!named.empty() && named != device::name(type)))
      fail(Code::not_supported, attribute, " is '", named, "' in a cache of ", device::name(type),
           ", which is not supported");
    return type;
  }
  static bool is_latent(const NodeInfo& node) {
    return read_choice<bool>(node, "kv_cache_layout", "SEPARATE", {{"SEPARATE", false}, {"LATENT", true}});
  }
  // One cache of rows that all heads share, of which the first channels are values.
  void require_latent(const NodeInfo& node) const {
    require(kv_heads_ == 1, "kv_num_heads is ", kv_heads_, "; it must be 1 where kv_cache_layout is LATENT");
    require(value_size_ >= 0, "v_head_size is ", value_size_, "; it cannot be negative");
    require(node.has_input(1) && !node.has_input(2) && !node.has_input(4) && !node.has_output(2),
            "kv_cache_layout LATENT wants key, and no value, value_cache or value_cache_out");
    require(node.get_string("v_cache_dtype", "").empty(), "kv_cache_layout LATENT has no v_cache_dtype");
    if (node.has_input(slots_.sinks) || node.has_input(slots_.q_weights))
      fail(Code::not_supported, "head_sink, q_norm_weight and k_norm_weight are not supported where kv_cache_layout ",
           "is LATENT");
  }
  int64_t size_of(const Tensor& cache) const { return (cached_ == Type::i4 ? 2 : 1) * cache.shape[3]; }

  // Queries, keys and values, in one tensor or three, and the sequences in them.
  void take_new(Context& context, PagedCacheExtension& e) const {
    const Tensor &query = context.input(0), *key = context.find_input(1), *value = context.find_input(2);
    const Tensor& cache = context.input(3);
    require(query.shape.rank() == 2, "query has shape ", query.shape.str(), "; it must have rank 2");
    require(cache.shape.rank() == 4 && cache.shape[2] == kv_heads_ && cache.shape[1] > 0, "key_cache has shape ",
            cache.shape.str(), "; [pages, slots, ", kv_heads_, ", size] is wanted");
    require(cache.shape[3] < kSizeCap, "key_cache has shape ", cache.shape.str(), ", and its heads are too large");
    const int64_t tokens = query.shape[0], width = query.shape[1], size = size_of(cache);
    const int64_t most = latent_ ? 576 : 256;
    require(size > 0 && size % 8 == 0 && size <= most, "heads are of ", size, " values; up to ", most,
            " are supported, and a multiple of 8");
    const int64_t all = key ? heads_ : heads_ + 2 * kv_heads_;
    require(width == all * size, "query ", query.shape.str(), " must have ", all, " heads of ", size, " values");
    e.type = type_;
    e.heads = heads_;
    e.q = query.data;
    e.q_token = width;
    if (key) {
      require(value || latent_, "value is wanted with key");
      if (!value) value = key;
      const Shape wanted{tokens, kv_heads_ * size};
      require(key->shape == wanted && value->shape == wanted, "key ", key->shape.str(), " and value ",
              value->shape.str(), " must be ", wanted.str(), " beside query ", query.shape.str());
      e.k = key->data, e.v = value->data;
      e.kv_token = wanted[1];
    } else {
      e.k = offset(query.data, heads_ * size, type_);
      e.v = offset(query.data, (heads_ + kv_heads_) * size, type_);
      e.kv_token = width;
    }
    const Tensor &starts = context.input(5), &pasts = context.input(6);
    require(pasts.shape.rank() == 1 && starts.shape == Shape{pasts.shape[0] + 1}, "cumulative_sequence_length ",
            starts.shape.str(), " and past_seqlens ", pasts.shape.str(), " must be [sequences + 1] and [sequences]");
    e.sequences = {starts.as<const int32_t>(), pasts.as<const int32_t>(), pasts.shape[0], tokens};
    require(tokens < kSizeCap / heads_ && pasts.shape[0] < kSizeCap / kv_heads_, tokens, " tokens in ", pasts.shape[0],
            " sequences are more than there are kernels for");
  }

  void take_pages(Context& context, PagedCacheExtension& e) const {
    const Tensor &keys = context.input(3), &values = latent_ ? keys : context.input(4), &table = context.input(7);
    const int64_t sequences = e.sequences.count;
    require(values.shape == keys.shape, "key_cache ", keys.shape.str(), " and value_cache ", values.shape.str(),
            " must be alike");
    require(table.shape.rank() == 2 && table.shape[0] == sequences, "block_table has shape ", table.shape.str(), "; [",
            sequences, ",pages] is wanted");
    e.pages.type = cached_;
    e.pages.latent = latent_;
    e.pages.count = keys.shape[0], e.pages.slots = keys.shape[1];
    e.pages.kv_heads = kv_heads_, e.pages.size = size_of(keys);
    e.pages.table = table.as<const int32_t>();
    e.pages.width = table.shape[1];
    require(e.pages.count < kSizeCap && e.pages.slots < kSizeCap &&
                checked_product(e.pages.width, e.pages.slots) < kSizeCap,
            "block_table ", table.shape.str(), " of pages of ", e.pages.slots,
            " keys is more than there are kernels for");
    e.pages.key_scales = scales(context, keys_, slots_.k_scale, e.pages.size);
    e.pages.value_scales = scales(context, values_, slots_.v_scale, e.pages.size);
    e.pages.keys_by_channel = keys_ == Quantized::by_channel;
    e.pages.values_by_channel = values_ == Quantized::by_channel;
    if (const Tensor* const places = context.find_input(slots_.places)) {
      require(places->shape == Shape{e.sequences.tokens}, "slot_mapping has shape ", places->shape.str(), "; [",
              e.sequences.tokens, "] is wanted");
      e.places = places->as<const int32_t>();
    }
  }
  const float* scales(Context& context, Quantized kind, int input, int64_t size) const {
    if (kind == Quantized::none) return nullptr;
    const Tensor& given = context.input(input);
    const int64_t wanted = kind == Quantized::by_channel ? kv_heads_ * size : 1;
    require(given.count() == wanted, "a scale of the caches has shape ", given.shape.str(), "; ", wanted,
            " numbers are wanted");
    return given.as<const float>();
  }

  void take_rotation(Context& context, PagedCacheExtension& e) const {
    const int64_t size = e.pages.size;
    const Tensor *q_weights = context.find_input(slots_.q_weights), *k_weights = context.find_input(slots_.k_weights);
    for (const Tensor* weights : {q_weights, k_weights})
      require(!weights || weights->shape == Shape{size}, "q_norm_weight or k_norm_weight has shape ",
              weights ? weights->shape.str() : "", "; [", size, "] is wanted");
    if (q_weights && k_weights) {
      e.q_weights = q_weights->data, e.k_weights = k_weights->data;
      e.epsilon = epsilon_;
    }
    if (!rotates_) return;
    const Tensor &cos = context.input(slots_.cos), &sin = context.input(slots_.sin);
    require(cos.shape.rank() == 2 && sin.shape == cos.shape && 2 * cos.shape[1] <= size - rotated_from_, "cos_cache ",
            cos.shape.str(), " and sin_cache ", sin.shape.str(), " must be [positions, at most ",
            std::max<int64_t>(size - rotated_from_, 0) / 2, "]");
    if (cos.shape[1] == 0) return;  // nothing is rotated
    require(cos.shape[0] > 0, "cos_cache ", cos.shape.str(), " has no positions");
    e.cos = cos.data, e.sin = sin.data;
    e.positions = cos.shape[0];
    e.rotated = 2 * cos.shape[1];
    e.rotated_from = rotated_from_;
    e.interleaved = interleaved_;
  }

  // Without hints, sequences are as long as the table lets them be, and of the same number of new tokens.
  void take_hints(Context& context, const PagedCacheExtension& e, AttendPaged& problem) const {
    problem.most_keys = e.pages.width * e.pages.slots;
    const int64_t sequences = std::max<int64_t>(e.sequences.count, 1);
    problem.most_queries = (e.sequences.tokens + sequences - 1) / sequences;
    const Tensor* const hints = context.find_input(slots_.hints);
    if (!hints || hints->where != Where::host || hints->count() < 2) return;
    const int32_t* const bounds = hints->as<const int32_t>();
    require(bounds[0] >= 0 && bounds[1] >= 0, "attention_metadata begins with ", bounds[0], " and ", bounds[1],
            "; they cannot be negative");
    if (bounds[0] > 0) problem.most_queries = std::min<int64_t>(bounds[0], e.sequences.tokens);
    if (bounds[1] > 0) problem.most_keys = std::min<int64_t>(bounds[1], problem.most_keys);
  }

  // The input's own memory, or that of an output which is a copy of it.
  void* take_cache(Context& context, int input, int output) const {
    const Tensor& cache = context.input(input);
    if (!context.wants_output(output)) return cache.data;
    const Tensor out = context.output(output, cache.shape);
    if (out.data != cache.data) device::copy(context.stream(), out.data, cache.data, cache.bytes());
    return out.data;
  }

  Slots slots_;
  int64_t heads_, kv_heads_, window_, rotated_from_;
  bool causal_, rotates_, interleaved_;
  float scale_, softcap_, epsilon_;
  Type type_, cached_;
  Quantized keys_, values_;
  bool latent_;
  int64_t value_size_;
};

class PagedAttention final : public Paged {
 public:
  explicit PagedAttention(const NodeInfo& node) : Paged(node, kDense) {}

  void run(Context& context) const override {
    const AttendPaged problem = extend(context);
    if (problem.sequences.tokens > 0) attend_paged(context, problem);
  }
};

class SparsePagedAttention final : public Paged {
 public:
  explicit SparsePagedAttention(const NodeInfo& node)
      : Paged(node, kSparse),
        local_(read_choice<bool>(node, "attention_mode", "selected_only",
                                 {{"selected_only", false}, {"local_plus_selected", true}})),
        auxiliary_(read_choice<bool>(node, "selected_kv_source", "main", {{"main", false}, {"auxiliary", true}})),
        shared_(node.get_int("auxiliary_kv_shared", 0) == 1) {
    read_choice<bool>(node, "auxiliary_cache_layout", "contiguous", {{"contiguous", true}});
    if (!auxiliary_) return;
    require(node.has_input(kKeys) && node.has_input(kLengths), "auxiliary_key and auxiliary_lengths are wanted");
    require(node.has_input(kValues) != shared_, "auxiliary_value is wanted unless auxiliary_kv_shared is 1");
    for (const int i : {int(kKeys), int(kValues)})
      if (node.has_input(i) && node.input_type(i) != type())
        fail(Code::not_supported, "query is ", device::name(type()), " and input ", i, " is ",
             device::name(node.input_type(i)), "; they must be of one type");
  }

  void run(Context& context) const override {
    const int64_t tokens = context.input(0).shape[0];
    SelectedKeys selected;
    const Tensor &indices = context.input(9), &counts = context.input(10);
    require(indices.shape.rank() == 2 && indices.shape[0] == tokens && counts.shape == Shape{tokens} &&
                indices.shape[1] < kSizeCap,
            "selected_indices ", indices.shape.str(), " and selected_counts ", counts.shape.str(), " must be [", tokens,
            ",entries] and [", tokens, "]");
    selected.indices = indices.as<const int32_t>();
    selected.counts = counts.as<const int32_t>();
    selected.most = indices.shape[1];
    selected.local = local_;
    if (auxiliary_) take_auxiliary(context, selected);
    const AttendPaged problem = extend(context);
    if (tokens > 0) attend_paged_selected(context, problem, selected);
  }

 private:
  enum Input { kKeys = 11, kValues, kLengths };

  void take_auxiliary(Context& context, SelectedKeys& selected) const {
    const Tensor& keys = context.input(kKeys);
    const Tensor &values = shared_ ? keys : context.input(kValues), &lengths = context.input(kLengths);
    const int64_t sequences = context.input(6).count(), size = context.input(3).shape.back();
    const Shape& shape = keys.shape;
    require(shape.rank() == 4 && shape[0] == sequences && (shape[2] == 1 || shape[2] == kv_heads()) &&
                shape[3] == size && values.shape == shape && lengths.shape == Shape{sequences},
            "auxiliary_key ", shape.str(), ", auxiliary_value ", values.shape.str(), " and auxiliary_lengths ",
            lengths.shape.str(), " must be [", sequences, ",rows,1 or ", kv_heads(), ",", size, "], the same, and [",
            sequences, "]");
    selected.keys = aligned(context, keys.data, keys.bytes());
    selected.values = shared_ ? selected.keys : aligned(context, values.data, values.bytes());
    selected.lengths = lengths.as<const int32_t>();
    selected.capacity = shape[1], selected.kv_heads = shape[2];
  }

  bool local_, auxiliary_, shared_;
};

}  // namespace

std::vector<OpRow> paged_attention_rows() {
  const Types whole{Type::i32}, scale{Type::f32}, selectable = kHalves | Types{Type::i8},
                                                  cached = selectable | Types{Type::f8e4m3, Type::u8};
  return {{.domain = kMicrosoft,
           .name = "PagedAttention",
           .since = 1,
           .types = {in(0, kHalves), in(1, kHalves), in(2, kHalves), in(3, cached), in(4, cached), in(5, whole),
                     in(6, whole), in(7, whole), in(8, kHalves), in(9, kHalves), in(10, whole), in(11, kHalves),
                     in(12, kHalves), in(13, kHalves), in(14, scale), in(15, scale), in(16, whole)},
           .make = make<PagedAttention>,
           .host_inputs = {16},
           .alias = {{3, 1}, {4, 2}}},
          {.domain = kMicrosoft,
           .name = "SparsePagedAttention",
           .since = 1,
           .types = {in(0, kHalves),  in(1, kHalves),  in(2, kHalves),  in(3, selectable), in(4, selectable),
                     in(5, whole),    in(6, whole),    in(7, whole),    in(8, whole),      in(9, whole),
                     in(10, whole),   in(11, kHalves), in(12, kHalves), in(13, whole),     in(14, kHalves),
                     in(15, kHalves), in(16, kHalves), in(17, kHalves), in(18, kHalves),   in(19, scale),
                     in(20, scale),   in(21, whole)},
           .make = make<SparsePagedAttention>,
           .host_inputs = {21},
           .alias = {{3, 1}, {4, 2}}}};
}

}  // namespace encore::ops
