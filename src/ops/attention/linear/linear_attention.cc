// LinearAttention, and GatedDeltaNet of com.microsoft, whose tokens are packed and which prepares its inputs itself.
#include <algorithm>
#include <cmath>

#include "device/memory.h"
#include "ops/attention/linear/linear_state.h"
#include "ops/choice.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

void check_rows(int64_t rows) {
  if (rows > kMostStateRows)
    fail(Code::not_supported, "keys of ", rows, " numbers a head; ", kMostStateRows, " is the most");
}

struct Rule {
  bool gated, corrects;

  static Rule of(const NodeInfo& node) {
    return read_choice<Rule>(node, "update_rule", "gated_delta",
                             {{"linear", {false, false}},
                              {"gated", {true, false}},
                              {"delta", {false, true}},
                              {"gated_delta", {true, true}}});
  }
  // com.microsoft's ignores what a rule has no use for.
  void check(const NodeInfo& node, int decay, int rate) const {
    const bool strict = node.domain() == kOnnx;
    const auto fits = [&](int input, bool wanted) {
      return strict ? node.has_input(input) == wanted : node.has_input(input) || !wanted;
    };
    require(fits(decay, gated), "this update_rule ", gated ? "needs" : "takes no", " decay");
    require(fits(rate, corrects), "this update_rule ", corrects ? "needs" : "takes no", " beta");
  }
};

int sized(int64_t value, const char* what) {
  require(value <= INT32_MAX, what, " ", value, " is too large");
  return int(value);
}

class LinearAttention : public Op {
 public:
  explicit LinearAttention(const NodeInfo& node)
      : heads_(node.get_int("kv_num_heads", 0)),
        query_heads_(node.get_int("q_num_heads", 0)),
        windows_(node.get_int("state_window", 0)),
        scale_(node.get_float("scale", 0)),
        contrib_(node.domain() == kMicrosoft),
        rule_(Rule::of(node)) {
    require(heads_ > 0 && heads_ <= INT32_MAX && query_heads_ > 0 && query_heads_ <= INT32_MAX &&
                (query_heads_ % heads_ == 0 || (contrib_ && heads_ % query_heads_ == 0)),
            "q_num_heads is ", query_heads_, " and kv_num_heads ", heads_,
            "; the first must be a multiple of the second");
    require(windows_ >= 0 && windows_ <= 8, "state_window is ", windows_, "; it must be from 0 to 8");
    rule_.check(node, 4, 5);
    if (const auto dims = node.input_dims(0); dims && dims->size() == 3) check_rows(dims->back() / query_heads_);
  }
  void run(Context& context) const override {
    const Tensor &query = context.input(0), &key = context.input(1), &value = context.input(2);
    const Tensor *past = context.find_input(3), *decay = rule_.gated ? context.find_input(4) : nullptr,
                 *rate = rule_.corrects ? context.find_input(5) : nullptr;
    require(query.shape.rank() == 3, "query has shape ", query.shape.str(), ", not (batch, tokens, heads x size)");
    const int64_t batch = query.shape[0], tokens = query.shape[1], rows = query.shape[2] / query_heads_;
    require(query.shape[2] == rows * query_heads_, "query's ", query.shape[2], " numbers are not divisible by ",
            query_heads_, " heads");
    check_rows(rows);
    // com.microsoft's keys may be shared by several values' heads.
    int64_t key_heads = heads_;
    if (contrib_ && rows > 0 && key.shape.rank() == 3) key_heads = key.shape[2] / rows;
    const Shape keys{batch, tokens, checked_product(heads_, rows)};
    require(key_heads > 0 && heads_ % key_heads == 0 && key.shape == Shape{batch, tokens, key_heads * rows},
            "key has shape ", key.shape.str(), ", not ", keys.str());
    require(
        value.shape.rank() == 3 && value.shape[0] == batch && value.shape[1] == tokens && value.shape[2] % heads_ == 0,
        "value has shape ", value.shape.str(), "; ", batch, " x ", tokens, " x a multiple of ", heads_, " is wanted");
    const int64_t columns = value.shape[2] / heads_;
    const Shape one{batch, heads_, rows, columns};
    const Shape state = windows_ ? Shape{windows_, batch, heads_, rows, columns} : one;
    require(!past || past->shape == state, "past_state has another shape than ", state.str());
    const Shape per_head{batch, tokens, heads_};
    require(!decay || decay->shape == per_head || decay->shape == keys, "decay has another shape than ", per_head.str(),
            " and ", keys.str());
    const bool rate_by_head = rate && rate->shape == per_head;
    require(!rate || rate_by_head || rate->shape == Shape{batch, tokens, 1}, "beta has another shape than ",
            per_head.str(), " and one for each token");
    const Tensor y = context.output(0, Shape{batch, tokens, checked_product(std::max(query_heads_, heads_), columns)});
    const Tensor present = context.wants_output(1) ? context.output(1, state) : Tensor();
    LinearState p;
    p.batches = batch;
    p.tokens = tokens;
    p.heads = int(heads_);
    p.rows = int(rows);
    p.columns = sized(columns, "a value's head of");
    p.key_share = int(heads_ / key_heads);
    p.query_share = int(std::max<int64_t>(heads_ / query_heads_, 1));
    p.queries = int(std::max<int64_t>(query_heads_ / heads_, 1));
    p.query = {AnyNumbers(&query), query.shape[2], 0};
    p.key = {AnyNumbers(&key), key.shape[2], 0};
    p.value = {AnyNumbers(&value), value.shape[2], 0};
    p.decay_by_row = decay && decay->shape == keys && keys != per_head;
    p.decay = {AnyNumbers(decay), decay ? decay->shape[2] : 0, p.decay_by_row ? rows : 1};
    p.rate = {AnyNumbers(rate), rate ? rate->shape[2] : 0, rate_by_head ? 1 : 0};
    p.corrects = rule_.corrects;
    p.scale = scale_ != 0 ? scale_ : 1 / std::sqrt(float(rows));
    p.past = AnyNumbers(past);
    p.present = AnyNumbers(&present);
    p.windows = int(std::max<int64_t>(windows_, 1));
    p.y = AnyNumbers(&y);
    run_linear_state(context, p);
  }

 private:
  int64_t heads_, query_heads_, windows_;
  float scale_;
  bool contrib_;
  Rule rule_;
};

class GatedDeltaNet : public Op {
 public:
  explicit GatedDeltaNet(const NodeInfo& node)
      : rule_(Rule::of(node)),
        scale_(node.get_float("scale", 0)),
        unit_keys_(node.get_int("qk_l2_norm", 0) != 0),
        gate_(read_choice<Gate>(node, "gate_activation", "none",
                                {{"none", Gate::none},
                                 {"softplus", Gate::softplus},
                                 {"qwen", Gate::softplus},  // what it was called once
                                 {"sigmoid", Gate::sigmoid},
                                 {"kda", Gate::sigmoid}})),
        floor_(node.get_float("gate_lower_bound", -5)),
        squash_(read_choice<bool>(node, "beta_activation", "none", {{"none", false}, {"sigmoid", true}})),
        most_(node.get_int("state_update_capacity", 0)) {
    rule_.check(node, kDecay, kRate);
    require(most_ >= 0 && most_ <= 8, "state_update_capacity is ", most_, "; it must be from 0 to 8");
    require(node.has_input(kKey) == node.has_input(kValue), "key and value must both be given, or neither");
    require(node.has_input(kKey) || node.has_input(kPast), "a packed query needs initial_state");
    require(node.has_input(kEnds) || node.has_input(kPast), "without cu_seqlens initial_state is needed");
    const bool gated = gate_ != Gate::none;
    require(gated == node.has_input(kGateScale), "gate_activation ", gated ? "needs" : "none takes no", " a_log");
    require(gated || !node.has_input(kGateBias), "gate_activation none takes no dt_bias");
    require(gate_ != Gate::sigmoid || (floor_ < 0 && std::isfinite(floor_)), "gate_lower_bound is ", floor_,
            "; a negative number is wanted");
    require((most_ > 0) == node.has_input(kCounts), "state_update_capacity ", most_, most_ > 0 ? " needs" : " takes no",
            " capture_count");
    require(most_ > 0 || !node.has_output(2), "state_update is asked for, and state_update_capacity is 0");
  }
  void run(Context& context) const override {
    const Tensor& query = context.input(kQuery);
    const Tensor *key = context.find_input(kKey), *value = context.find_input(kValue),
                 *ends = context.find_input(kEnds), *past = context.find_input(kPast);
    const Tensor *decay = rule_.gated ? context.find_input(kDecay) : nullptr,
                 *rate = rule_.corrects ? context.find_input(kRate) : nullptr;
    LinearState p;
    int64_t batch = 0, heads = 0, key_heads = 0, rows = 0, columns = 0;
    // The dimensions of the tokens: one, or those of batch and sequence.
    const int rank = query.shape.rank(), lead = key ? rank - 2 : rank - 1;
    require(lead == 1 || (lead == 2 && !ends), "query has shape ", query.shape.str(),
            key ? "; (tokens, heads, size) is wanted" : "; (tokens, numbers) is wanted");
    const int64_t tokens = query.shape.count(0, lead);
    require(!past || past->shape.rank() == 4, "initial_state has rank ", past ? past->shape.rank() : 0, ", not 4");
    if (past) batch = past->shape[0], heads = past->shape[1], columns = past->shape[2], rows = past->shape[3];
    if (ends) {
      require(ends->shape.rank() == 1 && ends->shape[0] >= 1 && (!past || ends->shape[0] == batch + 1),
              "cu_seqlens has shape ", ends->shape.str(), "; one more than the requests is wanted");
      batch = ends->shape[0] - 1;
    }
    if (key) {
      rows = query.shape[rank - 1], key_heads = query.shape[rank - 2];
      require(key->shape == query.shape, "key has shape ", key->shape.str(), ", query ", query.shape.str());
      require(value->shape.rank() == rank && value->shape.count(0, lead) == tokens && value->shape[0] == query.shape[0],
              "value has shape ", value->shape.str(), ", query ", query.shape.str());
      heads = value->shape[rank - 2], columns = value->shape[rank - 1];
      p.query = {AnyNumbers(&query), key_heads * rows, 0};
      p.key = {AnyNumbers(key), key_heads * rows, 0};
      p.value = {AnyNumbers(value), heads * columns, 0};
    } else {
      const int64_t all = query.shape.back(), values = heads * columns;
      key_heads = rows > 0 && all > values ? (all - values) / (2 * rows) : 0;
      require(key_heads * rows * 2 + values == all, "query packs ", all, " numbers a token, which initial_state ",
              past->shape.str(), " does not explain");
      p.query = {AnyNumbers(&query), all, 0};
      p.key = {AnyNumbers(&query), all, key_heads * rows};
      p.value = {AnyNumbers(&query), all, 2 * key_heads * rows};
    }
    check_rows(rows);
    require(key_heads > 0 && heads > 0 && heads % key_heads == 0, "there are ", heads, " heads of values for ",
            key_heads, " of keys; a multiple is wanted");
    const Shape state{batch, heads, columns, rows};
    require(!past || past->shape == state, "initial_state has another shape than ", state.str());
    require(batch == 0 ? tokens == 0 : ends || (tokens % batch == 0 && (lead == 1 || query.shape[0] == batch)), tokens,
            " tokens of ", batch, " requests");
    const auto leads = [&](std::initializer_list<int64_t> more) {
      std::vector<int64_t> dims(query.shape.dims().begin(), query.shape.dims().begin() + lead);
      dims.insert(dims.end(), more);
      return Shape(dims);
    };
    const Shape by_head = leads({heads}), by_row = leads({heads, rows});
    require(!decay || decay->shape == by_head || decay->shape == by_row, "decay has another shape than ", by_head.str(),
            " and ", by_row.str());
    require(!rate || rate->shape == by_head, "beta has another shape than ", by_head.str());
    p.decay_by_row = decay && decay->shape == by_row;
    p.decay = {AnyNumbers(decay), p.decay_by_row ? heads * rows : heads, p.decay_by_row ? rows : 1};
    p.rate = {AnyNumbers(rate), heads, 1};
    const Tensor *gate_scale = context.find_input(kGateScale), *gate_bias = context.find_input(kGateBias);
    const Shape one_each{heads}, one_a_row{heads, rows};
    require(!gate_scale || gate_scale->shape == one_each, "a_log has another shape than ", one_each.str());
    p.bias_by_row =
        gate_bias && p.decay_by_row && (gate_bias->shape == one_a_row || gate_bias->shape == Shape{one_a_row.count()});
    require(!gate_bias || p.bias_by_row || gate_bias->shape == one_each, "dt_bias has another shape than ",
            one_each.str(), p.decay_by_row ? text(" and ", one_a_row.str()) : std::string());
    p.gate_scale = gate_scale ? gate_scale->as<const float>() : nullptr;
    p.gate_bias = gate_bias ? gate_bias->as<const float>() : nullptr;
    if (gate_ == Gate::sigmoid) p.gate_floor = floor_, p.least_squares = 1e-6f;  // as Kimi Delta Attention has it
    p.batches = batch;
    p.tokens = ends ? tokens : batch ? tokens / batch : 0;
    p.ends = ends ? ends->as<const int32_t>() : nullptr;
    p.heads = sized(heads, "a number of heads of");
    p.rows = int(rows);
    p.columns = sized(columns, "a value's head of");
    p.key_share = p.query_share = int(heads / key_heads);
    p.corrects = rule_.corrects;
    p.unit_keys = unit_keys_;
    p.squash_rate = squash_;
    p.scale = scale_ != 0 ? scale_ : 1 / std::sqrt(float(rows));
    p.transposed = true;
    const Tensor y = context.output(0, leads({heads, columns}));
    const Tensor present = context.wants_output(1) ? context.output(1, state) : Tensor();
    p.past = AnyNumbers(past);
    p.present = AnyNumbers(&present);
    p.y = AnyNumbers(&y);
    if (most_ > 0 && context.wants_output(2)) keep_changes(context, p, key_heads);
    run_linear_state(context, p);
  }

 private:
  enum class Gate { none, softplus, sigmoid };
  enum Input { kQuery, kKey, kValue, kEnds, kDecay, kRate, kPast, kGateScale, kGateBias, kCounts, kActive };

  void keep_changes(Context& context, LinearState& p, int64_t key_heads) const {
    const Tensor& counts = context.input(kCounts);
    const Tensor* const active = context.find_input(kActive);
    require(counts.shape == Shape{p.batches}, "capture_count has another shape than ", Shape{p.batches}.str());
    const int64_t each = checked_product(most_, key_heads * p.rows + p.heads * (p.decays() + p.columns));
    const Tensor changes = context.output(2, Shape{p.batches, each});
    // What no token wrote is zero.
    device::fill(context.stream(), changes.data, 0, changes.bytes());
    if (active && host_ints(*active, "state_update_active") == std::vector<int64_t>{0}) return;
    p.changes = changes.as<float>();
    p.change_counts = counts.as<const int32_t>();
    p.most_changes = int(most_);
  }

  Rule rule_;
  float scale_;
  bool unit_keys_;
  Gate gate_;
  float floor_;
  bool squash_;
  int64_t most_;
};

}  // namespace

std::vector<OpRow> linear_attention_rows() {
  const Types types = kHalves | Types{Type::f32}, wide{Type::f32}, whole{Type::i32};
  return {{.name = "LinearAttention",
           .since = 27,
           .types = {in(0, types), in(3, types), in(4, types), in(5, types), out(1, types)},
           .make = make<LinearAttention>},
          {.domain = kMicrosoft,
           .name = "LinearAttention",
           .since = 1,
           .types = {in(0, types), in(3, types), in(4, types), in(5, types), out(1, types)},
           .make = make<LinearAttention>},
          {.domain = kMicrosoft,
           .name = "GatedDeltaNet",
           .since = 1,
           .types = {in(0, types), in(3, whole), in(4, types), in(5, types), in(6, wide), in(9, whole), in(10, whole)},
           .make = make<GatedDeltaNet>,
           .host_inputs = {10}}};
}

}  // namespace encore::ops
