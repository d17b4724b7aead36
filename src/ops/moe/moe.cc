// MoE and QMoE: each token goes through the k experts that its logits choose, and what they make of it is summed up.
#include <algorithm>
#include <array>
#include <limits>

#include "ops/choice.h"
#include "ops/moe/experts.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

using device::size_bytes;

MoeActivation activation_of(const NodeInfo& node) {
  return read_choice<MoeActivation>(node, "activation_type", "relu",
                                    {{"relu", MoeActivation::relu},
                                     {"relu2", MoeActivation::relu2},
                                     {"gelu", MoeActivation::gelu},
                                     {"geglu", MoeActivation::geglu},
                                     {"silu", MoeActivation::silu},
                                     {"swiglu", MoeActivation::swiglu},
                                     {"identity", MoeActivation::identity}});
}

// Which inputs a layer has; -1: none.
struct LayerInputs {
  int weights, scales, bias, zeros;
};

class MoE : public Op {
 public:
  explicit MoE(const NodeInfo& node) : MoE(node, {{{2, -1, 3, -1}, {4, -1, 5, -1}, {6, -1, 7, -1}}}) {}

  void run(Context& context) const override {
    const Tensor &x = context.input(0), &logits = context.input(1);
    require(x.shape.rank() == 2 || x.shape.rank() == 3, "input has shape ", x.shape.str(),
            "; it must be [tokens, hidden] or [batch, tokens, hidden]");
    require(logits.shape.rank() == 2, "router_probs has shape ", logits.shape.str(), "; it must be [tokens, experts]");
    const int64_t tokens = x.shape.count(0, x.shape.rank() - 1), hidden = x.shape.back(), experts = logits.shape[1];
    require(logits.shape[0] == tokens, "router_probs ", logits.shape.str(), " must have a row for each of ", tokens,
            " tokens");
    require(k_ >= 1 && k_ <= experts, "k is ", k_, "; there are ", experts, " experts to choose from");
    require(hidden < kIntCap && experts < kIntCap, "input ", x.shape.str(), " or ", experts, " experts are too many");
    const Tensor* const gates = context.find_input(14);
    require(!gates || gates->shape == logits.shape, "router_weights must have the shape of router_probs, ",
            logits.shape.str());

    const Tensor y = context.output(0, x.shape);
    if (hidden == 0) return;
    const Shape& down_shape = shape_of(context, 1);
    require(down_shape.rank() == 3, "fc2_experts_weights has shape ", down_shape.str(), "; it must have rank 3");
    const int64_t values = checked_product(down_shape.count(1, 3), packed(1));
    require(values % hidden == 0, "fc2_experts_weights ", down_shape.str(), " do not suit input ", x.shape.str());
    const int64_t inter = values / hidden;
    require(inter < kIntCap, "fc2_experts_weights ", down_shape.str(), " are too large");

    Layer up;
    up.type = x.type;
    up.experts = experts;
    up.depth = hidden;
    up.results = inter;
    up.chosen = k_;
    up.x = x.data;
    up.x_of_tokens = true;
    up.activation = activation_;
    up.alpha = alpha_;
    up.beta = beta_;
    up.limit = limit_;
    up.limits_product = limits_product_;
    const bool apart = has_third_;
    const bool paired = activation_ == MoeActivation::swiglu || activation_ == MoeActivation::geglu;
    up.factors = apart          ? Factors::apart
                 : !paired      ? Factors::single
                 : fusion_ == 2 ? Factors::halves
                                : Factors::neighbours;
    Layer down = up;
    down.depth = inter;
    down.results = hidden;
    down.x_of_tokens = false;
    down.y_of_rows = true;
    down.activation = MoeActivation::identity;
    down.factors = Factors::single;

    const int64_t up_rows = paired && !apart ? 2 * inter : inter;
    // An older way of writing shapes has the last dimensions exchanged; what is in memory is the same.
    const Shape& up_shape = shape_of(context, 0);
    const bool exchanged =
        hidden != inter ? down_shape[1] == inter : up_rows != inter && up_shape.rank() == 3 && up_shape[1] == hidden;
    const auto up_matrix = checked(context, 0, experts, up_rows, hidden, exchanged);
    const auto down_matrix = checked(context, 1, experts, hidden, inter, exchanged);
    const auto third_matrix = apart ? checked(context, 2, experts, inter, hidden, exchanged) : Matrix{};
    up.bias = bias(context, 0, experts, up_rows);
    down.bias = bias(context, 1, experts, hidden);
    if (apart) up.second_bias = bias(context, 2, experts, inter);
    if (y.count() == 0) return;

    const int64_t rows = checked_product(tokens, k_);
    void* const between = context.scratch(size_bytes(x.type, checked_product(rows, inter)));
    void* const parts = context.scratch(size_bytes(x.type, checked_product(rows, hidden)));
    up.weights = plain(context, 0, up_matrix, experts, hidden, x.type);
    down.weights = plain(context, 1, down_matrix, experts, inter, x.type);
    if (apart) up.second = plain(context, 2, third_matrix, experts, hidden, x.type);
    up.y = between;
    down.x = between;
    down.y = parts;
    const Arrangement arrangement = arrange(context, {tokens, experts, k_, normalize_, sparse_mixer_, logits, gates},
                                            tile_rows_for(up, down, rows));
    if (inter > 0) multiply_experts(context, up, arrangement);
    multiply_experts(context, down, arrangement);
    combine(context, arrangement, k_, y, parts);
  }

 protected:
  using Inputs = std::array<LayerInputs, 3>;

  MoE(const NodeInfo& node, const Inputs& inputs)
      : inputs_(inputs),
        activation_(activation_of(node)),
        k_(node.get_int("k", 1)),
        fusion_(node.get_int("swiglu_fusion", 0)),
        normalize_(node.get_int("normalize_routing_weights", 0) == 1),
        sparse_mixer_(node.get_int("use_sparse_mixer", 0) == 1),
        has_third_(node.has_input(inputs[2].weights)),
        alpha_(node.get_float("activation_alpha", 1)),
        beta_(node.get_float("activation_beta", 0)),
        limit_(node.get_float("swiglu_limit", std::numeric_limits<float>::infinity())),
        limits_product_(node.get_int("swiglu_limit_after_activation", 0) != 0) {
    require(!limits_product_ || activation_ == MoeActivation::swiglu,
            "swiglu_limit_after_activation wants activation_type swiglu");
    require(activation_ != MoeActivation::geglu || (fusion_ != 0 && !has_third_),
            "activation_type geglu wants both factors in fc1, as swiglu_fusion 1 or 2 has them");
    require(k_ >= 1, "k is ", k_, "; at least one expert must be chosen");
    require(!sparse_mixer_ || k_ == 2, "use_sparse_mixer wants k = 2, not ", k_);
    require(fusion_ >= 0 && fusion_ <= 2, "swiglu_fusion is ", fusion_, "; it must be 0, 1 or 2");
    require(!has_third_ || fusion_ == 0, "fc3_experts_weights are there, and swiglu_fusion says that fc1 has them");
    const auto there = [&](int i) { return i >= 0 && node.has_input(i); };
    require(has_third_ || !(there(inputs[2].bias) || there(inputs[2].scales) || there(inputs[2].zeros)),
            "what belongs to fc3 is there without fc3_experts_weights");
  }

  // Weights that are packed for kernels of others, and so must be brought back to rows, whether in advance or not.
  struct Kept {
    const void* values = nullptr;
    Shape shape;
    int64_t rows = 0;
  };
  const Shape& shape_of(Context& context, int layer) const {
    const Kept& kept = kept_[size_t(layer)];
    return kept.values ? kept.shape : context.input(inputs_[size_t(layer)].weights).shape;
  }
  int64_t packed(int layer) const { return bits_[size_t(layer)] ? 8 / bits_[size_t(layer)] : 1; }

  // A layer's matrices after their shapes have been looked at, with the values as they are given.
  Matrix checked(Context& context, int layer, int64_t experts, int64_t rows, int64_t depth, bool exchanged) const {
    const LayerInputs& in = inputs_[size_t(layer)];
    const Kept& kept = kept_[size_t(layer)];
    const int64_t in_byte = packed(layer);
    const Shape& shape = shape_of(context, layer);
    const auto name = [&](const char* what) { return text("fc", layer == 1 ? 2 : layer == 0 ? 1 : 3, "_", what); };
    require(depth % in_byte == 0 && rows < kIntCap, name("experts_weights"), " of ", depth,
            " values along the depth do not fill whole bytes");
    const Shape wanted = exchanged ? Shape{experts, depth, rows / in_byte} : Shape{experts, rows, depth / in_byte};
    require(shape == wanted && rows * depth / in_byte == wanted.count(1, 3), name("experts_weights"), " has shape ",
            shape.str(), "; ", wanted.str(), " is wanted");
    Matrix m;
    m.bits = bits_[size_t(layer)];
    m.rows = rows;
    m.values = kept.values ? kept.values : context.input(in.weights).data;
    require(!kept.values || kept.rows == rows, name("experts_weights"), " were packed as ", kept.rows, " rows, not ",
            rows);
    if (m.bits == 0) return m;
    require(!interleaved_ || (depth % 64 == 0 && rows % 4 == 0), name("experts_weights"), " of ", rows, " x ", depth,
            " cannot be packed for a GPU; if they are not, say so with weights_prepacked = 0");
    const Tensor* const scales = context.find_input(in.scales);
    require(scales != nullptr, name("scales"), " are missing");
    const int64_t blocks = block_ ? (depth + block_ - 1) / block_ : 1;
    const Shape scale_shape = block_ ? Shape{experts, rows, blocks} : Shape{experts, rows};
    require(scales->shape == scale_shape, name("scales"), " has shape ", scales->shape.str(), "; ", scale_shape.str(),
            " is wanted");
    m.scales = scales->data;
    m.block = block_;
    if (const Tensor* const zeros = context.find_input(in.zeros)) {
      const Shape zero_shape = block_ ? Shape{experts, rows, (blocks + in_byte - 1) / in_byte}
                                      : Shape{experts, (rows + in_byte - 1) / in_byte};
      require(zeros->shape == zero_shape, name("zero_points"), " has shape ", zeros->shape.str(), "; ",
              zero_shape.str(), " is wanted");
      m.zeros = zeros->as<const uint8_t>();
    }
    return m;
  }
  const void* bias(Context& context, int layer, int64_t experts, int64_t rows) const {
    const Tensor* const bias = context.find_input(inputs_[size_t(layer)].bias);
    if (!bias) return nullptr;
    require(bias->shape == Shape{experts, rows}, "fc",
            layer == 1   ? 2
            : layer == 0 ? 1
                         : 3,
            "_experts_bias has shape ", bias->shape.str(), "; [", experts, ",", rows, "] is wanted");
    return bias->data;
  }
  // The matrix with its values in rows, and scales of the type of the products.
  Matrix plain(Context& context, int layer, Matrix m, int64_t experts, int64_t depth, Type type) const {
    if (m.bits == 0 || m.rows == 0) return m;
    const Tensor& scales = context.input(inputs_[size_t(layer)].scales);
    if (scales.type != type) {
      void* const own = context.scratch(size_bytes(type, scales.count()));
      convert_scales(context.stream(), scales, type, own);
      m.scales = own;
    }
    if (!interleaved_ || kept_[size_t(layer)].values) return m;
    void* const rows = context.scratch(size_t(experts * m.rows * depth * m.bits / 8));
    unpack_interleaved(context.stream(), static_cast<const uint8_t*>(m.values), static_cast<uint8_t*>(rows), m.bits,
                       experts, m.rows, depth);
    m.values = rows;
    return m;
  }

  Inputs inputs_;
  std::array<int, 3> bits_{};  // of weights that are integers
  int64_t block_ = 0;
  bool interleaved_ = false;
  std::array<Kept, 3> kept_;
  MoeActivation activation_;
  int64_t k_, fusion_;
  bool normalize_, sparse_mixer_, has_third_;
  float alpha_, beta_, limit_;
  bool limits_product_;
};

class QMoE final : public MoE {
 public:
  explicit QMoE(const NodeInfo& node) : MoE(node, {{{2, 3, 4, 11}, {5, 6, 7, 12}, {8, 9, 10, 13}}}) {
    read_choice<bool>(node, "quant_type", "int", {{"int", true}});
    for (int i = 15; i < node.input_count(); ++i)
      if (node.has_input(i)) fail(Code::not_supported, "input ", i, " belongs to weights which are not integers");
    const int64_t bits = node.get_int("expert_weight_bits", 4);
    const char* const overrides[] = {"fc1_expert_weight_bits", "fc2_expert_weight_bits", "fc3_expert_weight_bits"};
    for (size_t i = 0; i < 3; ++i) {
      bits_[i] = read_choice<int>(node, overrides[i], bits, {{4, 4}, {8, 8}});
    }
    if (has_third_ && bits_[2] != bits_[0])
      fail(Code::not_supported, "fc3 has weights of ", bits_[2], " bits, and fc1 of ", bits_[0],
           "; they must be as wide");
    block_ = std::max<int64_t>(0, node.get_int("block_size", 0));
    require(block_ == 0 || (block_ >= 16 && (block_ & (block_ - 1)) == 0 && block_ < kIntCap), "block_size is ", block_,
            "; it must be a power of two and at least 16");
    // Models for GPUs have packed weights unless they say otherwise; of floats there is no such packing.
    const bool usual = node.input_type(0) != Type::f32;
    interleaved_ = read_choice<bool>(node, "weights_prepacked", -1, {{-1, usual}, {0, false}, {1, true}});
    for (size_t i = 0; i < 3; ++i) {
      const auto dims = node.has_input(inputs_[i].scales) ? node.input_dims(inputs_[i].scales) : std::nullopt;
      if (dims && dims->size() >= 2) kept_[i].rows = (*dims)[1];
    }
  }

  bool prepack(int input, const Tensor& constant, Prepack& prepack) override {
    if (!interleaved_ || constant.shape.rank() != 3 || constant.count() == 0) return false;
    for (size_t i = 0; i < 3; ++i) {
      if (inputs_[i].weights != input) continue;
      const int64_t experts = constant.shape[0], values = constant.shape.count(1, 3) * (8 / bits_[i]),
                    rows = kept_[i].rows;
      if (rows <= 0 || values % rows != 0 || values / rows % 64 != 0 || rows % 4 != 0) return false;
      auto* const plain = static_cast<uint8_t*>(prepack.keep(constant.bytes()));
      unpack_interleaved(prepack.stream(), constant.as<const uint8_t>(), plain, bits_[i], experts, rows, values / rows);
      kept_[i].values = plain;
      kept_[i].shape = constant.shape;
      return true;
    }
    return false;
  }
};

}  // namespace

std::vector<OpRow> moe_rows() {
  constexpr Types kTypes{Type::f32, Type::f16, Type::bf16}, kWeights{Type::u8};
  const auto of = [](std::initializer_list<int> inputs, Types types) {
    std::vector<TypeRule> rules;
    for (const int i : inputs) rules.push_back(in(i, types));
    return rules;
  };
  const auto all = [](std::vector<TypeRule> rules, const std::vector<TypeRule>& others) {
    rules.insert(rules.end(), others.begin(), others.end());
    return rules;
  };
  return {{.domain = kMicrosoft,
           .name = "MoE",
           .since = 1,
           .types = of({0, 1, 2, 3, 4, 5, 6, 7}, kTypes),
           .make = make<MoE>},
          {.domain = kMicrosoft,
           .name = "QMoE",
           .since = 1,
           .types = all(of({0, 1, 3, 4, 6, 7, 9, 10, 14}, kTypes), of({2, 5, 8, 11, 12, 13}, kWeights)),
           .make = make<QMoE>}};
}

}  // namespace encore::ops
