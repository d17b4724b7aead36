// com.microsoft's SparseAttentionIndexer and PackedSparseAttentionIndexer: which keys an attention is to look at.
// Policy qsa makes blocks of tokens and chooses tokens; csa makes entries of windows and chooses entries.
#include <cmath>
#include <string>

#include "device/memory.h"
#include "ops/attention/inputs/heads.h"
#include "ops/attention/sparse/indexer.h"
#include "ops/choice.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

constexpr Types kTypes{Type::f32, Type::f16, Type::bf16};

class Indexer : public Op {
 protected:
  // Inputs of the policies' own, which the other one must not have.
  explicit Indexer(const NodeInfo& node, std::initializer_list<int> of_blocks, std::initializer_list<int> of_windows,
                   std::initializer_list<int> of_type)
      : ratio_(node.get_int("compress_ratio", 0)),
        epsilon_(node.get_float("epsilon", 1e-6f)),
        scale_(node.find_float("scale")),
        head_scale_(node.find_float("head_weight_scale")) {
    windows_ = read_choice<bool>(node, "policy_mode", "", {{"qsa", false}, {"csa", true}});
    const char* const policy = windows_ ? "csa" : "qsa";
    require(ratio_ > 0 && ratio_ < int64_t(1) << 20, "compress_ratio is ", ratio_, "; it must be above zero and below ",
            int64_t(1) << 20);
    const auto budget = node.find_int("token_budget"), top = node.find_int("index_topk");
    require(
        windows_ ? top && !budget : budget && !top && !head_scale_, "policy ", policy, " has ",
        windows_ ? "index_topk, and no token_budget" : "token_budget, and neither index_topk nor head_weight_scale");
    require(windows_ || *budget < kSizeCap, "token_budget is ", budget.value_or(0), "; it must be below ", kSizeCap);
    wanted_ = windows_ ? *top : *budget / ratio_;
    width_ = windows_ ? *top : *budget + ratio_ - 1;
    require(wanted_ > 0 && width_ < kSizeCap && (windows_ || *budget % ratio_ == 0),
            windows_ ? "index_topk" : "token_budget", " is ", windows_ ? *top : *budget, "; it must be above zero",
            windows_ ? "" : " and a multiple of ", windows_ ? "" : std::to_string(ratio_), ", and below ", kSizeCap);
    require(std::isfinite(epsilon_) && std::isfinite(scale_.value_or(1)) && std::isfinite(head_scale_.value_or(1)),
            "epsilon, scale and head_weight_scale must be finite");
    for (const int i : windows_ ? of_blocks : of_windows)
      require(!node.has_input(i), "policy ", policy, " has no input ", i);
    if (windows_)
      for (const int i : of_windows) require(node.has_input(i), "policy csa wants input ", i);
    require(node.has_input(1) || !windows_, "policy csa wants key");
    for (const int i : of_type)
      if (node.has_input(i) && node.input_type(i) != node.input_type(0))
        fail(Code::not_supported, "query is ", device::name(node.input_type(0)), " and input ", i, " is ",
             device::name(node.input_type(i)), "; they must be of one type");
  }

  // Queries, keys and what is done to both; `rank` is that of the inputs. Leaves it to the caller to say which requests
  // there are.
  Indexing take(Context& context, int rank) const {
    const Tensor &query = context.input(0), &weights = context.input(2);
    const Tensor* const key = context.find_input(1);
    require(query.shape.rank() == rank, "query has shape ", query.shape.str(), "; it must have rank ", rank);
    require(weights.shape.rank() == 1 && weights.shape[0] > 0 && weights.shape[0] <= 512,
            "query_norm_weight has shape ", weights.shape.str(), "; it must have one dimension, of 1 to 512");
    const int64_t size = weights.shape[0], width = query.shape[rank - 1];
    const int64_t heads = width / size - (key ? 0 : 1);
    require(width % size == 0 && heads > 0 && width < kSizeCap, "query ", query.shape.str(),
            " cannot be divided into heads of ", size, key ? "" : " and a key");
    require(context.input(3).shape == weights.shape, "key_norm_weight has shape ", context.input(3).shape.str(), "; ",
            weights.shape.str(), " is wanted");
    Indexing p;
    p.type = query.type;
    p.heads = int(heads), p.size = int(size), p.wanted = int(wanted_), p.width = int(width_);
    p.epsilon = epsilon_;
    p.scale = scale_.value_or(float(1 / std::sqrt(double(size))));
    if (windows_) p.scale *= head_scale_.value_or(float(1 / std::sqrt(double(heads))));
    p.query = query.data;
    p.query_token = width;
    p.query_weights = weights.data, p.key_weights = context.input(3).data;
    p.keys.width = p.gates.width = int(windows_ ? 2 * size : size);
    p.keys.fresh = key ? key->data : offset(query.data, heads * size, query.type);
    p.keys.fresh_token = key ? p.keys.width : width;
    if (key) expect(*key, "key", query.shape.with(rank - 1, p.keys.width));
    p.requests.ratio = int(ratio_);
    p.requests.windows = windows_;
    return p;
  }
  void take_angles(Context& context, Indexing& p) const {
    const Tensor &cos = context.input(4), &sin = context.input(5);
    const Shape& shape = cos.shape;
    const int rank = shape.rank();
    require((rank == 2 || (rank == 3 && shape[0] == p.requests.count)) && shape[rank - 2] > 0 &&
                shape[rank - 2] < kSizeCap && sin.shape == shape,
            "cos_cache ", shape.str(), " and sin_cache ", sin.shape.str(), " must be [positions,width] or [",
            p.requests.count, ",positions,width]");
    const int64_t width = shape[rank - 1];
    require(windows_ ? 2 * width <= p.size : width <= p.size && width % 2 == 0, "cos_cache ", shape.str(),
            " does not fit heads of ", p.size);
    p.angles = {cos.data, sin.data, int(shape[rank - 2]), int(width), rank == 3};
  }
  // Of policy csa; the bias is input `bias`, and weights of heads and positions are the next ones.
  void take_windows(Context& context, Indexing& p, int gate, int bias) const {
    const Shape tokens = context.input(0).shape;
    const int rank = tokens.rank();
    expect(context.input(gate), "gate", tokens.with(rank - 1, 2 * p.size));
    expect(context.input(bias), "position_bias", {ratio_, 2 * p.size});
    expect(context.input(bias + 1), "head_weights", tokens.with(rank - 1, p.heads));
    expect(context.input(bias + 2), "position_ids", rank == 3 ? Shape{tokens[0], tokens[1]} : Shape{tokens[0]});
    p.gates.fresh = context.input(gate).data;
    p.gates.fresh_token = 2 * p.size;
    p.gate_bias = context.input(bias).data;
    p.head_weights = context.input(bias + 1).data;
    p.position_ids = context.input(bias + 2).as<const int64_t>();
  }
  static void expect(const Tensor& tensor, const char* name, const Shape& shape) {
    require(tensor.shape == shape, name, " has shape ", tensor.shape.str(), "; ", shape.str(), " is wanted");
  }

  int64_t ratio_, wanted_, width_;
  float epsilon_;
  std::optional<float> scale_, head_scale_;
  bool windows_;
};

class SparseAttentionIndexer : public Indexer {
 public:
  explicit SparseAttentionIndexer(const NodeInfo& node)
      : Indexer(node, {kMask}, {kGate, kBias, kHeadWeights, kIds, kPastBuffer},
                {1, 2, 3, 4, 5, kPast, kGate, kBias, kHeadWeights, kPastBuffer}) {}

  void run(Context& context) const override {
    Indexing p = take(context, 3);
    const Shape& shape = context.input(0).shape;
    const int64_t batch = shape[0], rows = shape[1];
    require(batch < kSizeCap && rows < kSizeCap && batch * rows < kSizeCap, "query ", shape.str(),
            " is more than there are kernels for");
    Requests& requests = p.requests;
    requests.count = int(batch), requests.each = int(rows), requests.tokens = int(batch * rows);
    take_angles(context, p);

    const Tensor& past = context.input(kPast);
    require(past.shape.rank() == 3 && past.shape == Shape{batch, past.shape[1], p.size} && past.shape[1] < kSizeCap,
            "past_key has shape ", past.shape.str(), "; [", batch, ",keys,", p.size, "] is wanted");
    const Tensor* const told = context.find_input(kPastLength);
    const int64_t had = told ? past_length(*told, past.shape[1]) : past.shape[1];
    int64_t more = rows;
    Tensor buffer;
    if (windows_) {
      take_windows(context, p, kGate, kBias);
      const Tensor& kept = context.input(kPastBuffer);
      require(kept.shape.rank() == 4 && kept.shape == Shape{2, batch, kept.shape[2], 2 * p.size} &&
                  kept.shape[2] < 2 * ratio_,
              "past_proj_buffer has shape ", kept.shape.str(), "; [2,", batch, ",fewer than ", 2 * ratio_, ",",
              2 * p.size, "] is wanted");
      requests.entries = int(had), requests.buffered = int(kept.shape[2]);
      requests.capacity = int(2 * kSizeCap);
      p.keys.buffer = kept.data;
      p.gates.buffer = offset(kept.data, kept.shape.count(1, 4), kept.type);
      p.keys.buffer_rows = p.gates.buffer_rows = requests.buffered;
      more = requests.at(0).made;
      buffer = context.output(2, {2, batch, requests.at(0).left, 2 * p.size});
    }
    require(!told || had + more <= past.shape[1], "past_sequence_length is ", had, ", and past_key ", past.shape.str(),
            " has no room for ", more, " more");
    const int64_t room = told ? past.shape[1] : had + more;
    require(room < kSizeCap, room, " keys are more than there are kernels for");
    const Tensor present = context.output(1, {batch, room, p.size});
    p.chosen = context.output(0, {batch, rows, width_}).as<int32_t>();
    if (windows_) {
      requests.capacity = int(room);
      p.entries = present.data;
    } else {
      take_blocks(context, p, had);
      p.raw_keys = present.data, p.raw_rows = room;
    }
    if (batch == 0) return;
    HeadMoves moves(context, p.type);
    Heads fresh = heads_in_rows(p.keys.fresh, batch, windows_ ? 0 : rows, 1, p.size, p.keys.fresh_token);
    moves.append(fresh, nullptr, {past.data, had, past.shape[1], present.data, room});
    moves.run();
    index_keys(context, p);
    if (windows_ && buffer.count() > 0) {
      const int kept = requests.at(0).left;
      keep_pending(context, p.type, requests, p.keys, buffer.data, kept);
      keep_pending(context, p.type, requests, p.gates, offset(buffer.data, buffer.shape.count(1, 4), p.type), kept);
    }
  }

 private:
  enum Input { kMask = 6, kPast, kGate, kBias, kHeadWeights, kIds, kPastLength, kPastBuffer };

  static int64_t past_length(const Tensor& told, int64_t room) {
    require(told.shape.count() == 1, "past_sequence_length has shape ", told.shape.str(), "; it must be one number");
    const int64_t past = *told.as<const int32_t>();
    require(past >= 0 && past <= room, "past_sequence_length is ", past, "; past_key has ", room, " rows");
    return past;
  }
  void take_blocks(Context& context, Indexing& p, int64_t had) const {
    Requests& requests = p.requests;
    const int64_t all = had + requests.each;
    requests.past_tokens = int(had);
    requests.entries = int(all / ratio_), requests.capacity = int(2 * kSizeCap);
    const Tensor* const mask = context.find_input(kMask);
    if (!mask) return;
    expect(*mask, "mask", {requests.count, all});
    p.mask = mask->as<const int64_t>();
  }
};

class PackedSparseAttentionIndexer : public Indexer {
 public:
  explicit PackedSparseAttentionIndexer(const NodeInfo& node)
      : Indexer(node, {kCaptureCount, kCaptureActive}, {kGate, kBias, kHeadWeights, kIds, kPastGates},
                {1, 2, 3, 4, 5, kGate, kBias, kHeadWeights, kPastEntries, kPastKeys, kPastGates}),
        capacity_(node.get_int("state_capacity", 0)),
        captured_(node.get_int("state_update_capacity", 0)) {
    require(capacity_ > 0 && capacity_ < kSizeCap, "state_capacity is ", capacity_,
            "; it must be above zero and below ", kSizeCap);
    require(captured_ >= 0 && captured_ <= 8 && (captured_ == 0 || !windows_), "state_update_capacity is ", captured_,
            "; it must be 0 to 8, and zero with policy csa");
    require(captured_ == 0 || node.has_input(kCaptureCount), "state_update_capacity wants state_update_capture_count");
  }

  void run(Context& context) const override {
    Indexing p = take(context, 2);
    const int64_t tokens = context.input(0).shape[0];
    const Tensor &starts = context.input(kStarts), &past = context.input(kPast);
    require(starts.shape.rank() == 1 && starts.shape[0] > 1 && starts.shape[0] < kSizeCap && tokens < kSizeCap,
            "cumulative_sequence_lengths has shape ", starts.shape.str(), "; one number more than requests is wanted");
    const int64_t batch = starts.shape[0] - 1;
    expect(past, "past_sequence_lengths", {batch});
    const Tensor &lengths = context.input(kLengths), &entries = context.input(kPastEntries),
                 &keys = context.input(kPastKeys);
    expect(lengths, "past_state_lengths", {batch, 2});
    expect(entries, "past_key_state", {batch, capacity_, p.size});
    expect(keys, "past_kv_buffer", {batch, 2 * ratio_ - 1, p.keys.width});
    Requests& requests = p.requests;
    requests.starts = starts.as<const int32_t>();
    requests.past = past.as<const int32_t>();
    requests.lengths = lengths.as<const int32_t>();
    requests.count = int(batch), requests.tokens = int(tokens), requests.capacity = int(capacity_);
    p.keys.buffer = keys.data;
    p.keys.buffer_rows = p.gates.buffer_rows = int(2 * ratio_ - 1);
    take_angles(context, p);
    if (windows_) {
      take_windows(context, p, kGate, kBias);
      expect(context.input(kPastGates), "past_gate_buffer", keys.shape);
      p.gates.buffer = context.input(kPastGates).data;
    }
    p.chosen = context.output(0, {tokens, width_}).as<int32_t>();
    p.counts = context.output(1, {tokens}).as<int32_t>();
    const Tensor state = context.output(2, entries.shape), kept = context.output(3, keys.shape);
    const Tensor gates = windows_ ? context.output(4, keys.shape) : Tensor{};
    const Tensor left = context.output(5, lengths.shape);
    Updates updates;
    if (captured_ > 0 && context.wants_output(6)) {
      expect(context.input(kCaptureCount), "state_update_capture_count", {batch});
      updates.wanted = context.input(kCaptureCount).as<const int32_t>();
      if (const Tensor* const active = context.find_input(kCaptureActive)) {
        expect(*active, "state_update_active", {1});
        updates.active = active->as<const int32_t>();
      }
      updates.slots = int(captured_);
      updates.to = context.output(6, {batch, captured_, p.size}).data;
    }
    p.entries = state.data;
    if (state.data != entries.data) device::copy(context.stream(), state.data, entries.data, state.bytes());
    index_keys(context, p);
    const int rows = p.keys.buffer_rows;
    keep_pending(context, p.type, requests, p.keys, kept.data, rows);
    if (windows_) keep_pending(context, p.type, requests, p.gates, gates.data, rows);
    if (updates.to) capture_updates(context, p, updates);
    // The last: they may be where the old ones are.
    write_lengths(context, requests, left.as<int32_t>());
  }

 private:
  enum Input {
    kStarts = 6,
    kPast,
    kGate,
    kBias,
    kHeadWeights,
    kIds,
    kPastEntries,
    kPastKeys,
    kPastGates,
    kLengths,
    kCaptureCount,
    kCaptureActive
  };
  int64_t capacity_, captured_;
};

}  // namespace

std::vector<OpRow> sparse_attention_indexer_rows() {
  constexpr Types kInts{Type::i32}, kLongs{Type::i64};
  return {{.domain = kMicrosoft,
           .name = "SparseAttentionIndexer",
           .since = 1,
           .types = {in(0, kTypes), in(1, kTypes), in(2, kTypes), in(3, kTypes), in(4, kTypes), in(5, kTypes),
                     in(6, kLongs), in(7, kTypes), in(8, kTypes), in(9, kTypes), in(10, kTypes), in(11, kLongs),
                     in(12, kInts), in(13, kTypes)},
           .make = make<SparseAttentionIndexer>,
           .host_inputs = {12}},
          {.domain = kMicrosoft,
           .name = "PackedSparseAttentionIndexer",
           .since = 1,
           .types = {in(0, kTypes), in(1, kTypes), in(2, kTypes), in(3, kTypes), in(4, kTypes), in(5, kTypes),
                     in(6, kInts), in(7, kInts), in(8, kTypes), in(9, kTypes), in(10, kTypes), in(11, kLongs),
                     in(12, kTypes), in(13, kTypes), in(14, kTypes), in(15, kInts), in(16, kInts), in(17, kInts)},
           .make = make<PackedSparseAttentionIndexer>,
           .may_reuse = {{12, 2}}}};
}

}  // namespace encore::ops
