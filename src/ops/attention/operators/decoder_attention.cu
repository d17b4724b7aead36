// com.microsoft's DecoderAttention, where rows stand before batches. What it is to do it gets as inputs.
#include "device/transform.h"
#include "ops/attention/dense/attend.h"
#include "ops/attention/inputs/heads.h"
#include "ops/registry.h"
#include "ops/shape/strided.h"

namespace encore::ops {
namespace {

enum {
  kQuery,
  kKey,
  kQueryWeight,
  kKeyValueWeight,
  kBias,
  kMask,
  kKeyCache,
  kValueCache,
  kStatic,
  kUsePast,
  kHasState,
  kHasMask
};

struct IsShown {
  DEVICE_FN bool operator()(bool padding) const { return !padding; }
};

class DecoderAttention : public Op {
 public:
  explicit DecoderAttention(const NodeInfo& node)
      : heads_(node.get_int("num_heads", 0)), tf32_(node.settings.use_tf32) {
    require(heads_ > 0, "num_heads is ", heads_, "; it must be above zero");
  }

  void run(Context& context) const override {
    const Tensor &query = context.input(kQuery), &key = context.input(kKey);
    const Shape& shape = query.shape;
    require(shape.rank() == 3 && key.shape.rank() == 3 && shape[1] == key.shape[1] && shape[2] == key.shape[2],
            "query has shape ", shape.str(), " and key ", key.shape.str(), "; [row, batch, width] is wanted of both");
    const int64_t queries = shape[0], batch = shape[1], width = shape[2], size = width / heads_;
    require(width % heads_ == 0 && size > 0, "query ", shape.str(), " cannot be divided into ", heads_, " heads");
    const Tensor& bias = context.input(kBias);
    require(bias.shape == Shape{3 * width}, "bias has shape ", bias.shape.str(), "; [", 3 * width, "] is wanted");
    const bool is_static = flag(context, kStatic), cached = flag(context, kHasState) && flag(context, kUsePast);
    const Tensor *past_k = context.find_input(kKeyCache), *past_v = context.find_input(kValueCache);
    require(!cached || (past_k && past_v), "key_cache and value_cache are wanted where use_past is true");
    if (cached) check_cache(*past_k, *past_v, batch, size);

    const int64_t past = cached ? past_k->shape[2] : 0;
    const int64_t rows = is_static ? (cached ? 0 : key.shape[0]) : queries, keys = past + rows;
    const Tensor y = context.output(0, shape);
    const auto present = [&](int i) {
      return context.wants_output(i) ? context.output(i, {batch, heads_, keys, size}).data : nullptr;
    };
    void *const new_k = present(1), *const new_v = present(2);
    if (batch == 0) return;

    const Type type = query.type;
    const void* const q_rows = project(context, query, context.input(kQueryWeight), bias.data, width);
    Heads q = heads_of(q_rows, batch, queries, size, width), k, v;
    if (cached && is_static) {
      k = heads_of_cache(past_k->data, batch, heads_, past, size, past);
      v = heads_of_cache(past_v->data, batch, heads_, past, size, past);
      if (new_k) copy_bytes(context.stream(), past_k->data, new_k, int64_t(past_k->bytes()));
      if (new_v) copy_bytes(context.stream(), past_v->data, new_v, int64_t(past_v->bytes()));
    } else {
      const void* const both = project(context, is_static ? key : query, context.input(kKeyValueWeight),
                                       offset(bias.data, width, type), 2 * width);
      k = heads_of(both, batch, rows, size, 2 * width);
      v = heads_of(offset(both, width, type), batch, rows, size, 2 * width);
      HeadMoves moves(context, type);
      moves.append(k, nullptr, {cached ? past_k->data : nullptr, past, past, new_k, keys});
      moves.append(v, nullptr, {cached ? past_v->data : nullptr, past, past, new_v, keys});
      moves.run();
    }

    Attend problem;
    problem.type = type, problem.tf32 = tf32_;
    problem.batch = batch, problem.heads = problem.kv_heads = heads_;
    problem.queries = queries, problem.keys = keys, problem.head_size = problem.value_size = size;
    problem.q = q.view, problem.k = k.view, problem.v = v.view;
    problem.y = heads_of(y.data, batch, queries, size, width).view;
    problem.scale = scale_of(0, size);
    if (flag(context, kHasMask)) hide_padding(context, problem);
    if (y.count() > 0) attend(context, problem);
  }

 private:
  static bool flag(Context& context, int i) {
    const Tensor& tensor = context.input(i);
    require(tensor.count() == 1, "input ", i, " has shape ", tensor.shape.str(), "; it must be one boolean");
    return *tensor.as<const bool>();
  }
  // Of [row, batch, width], whose width may be more than that of the heads.
  Heads heads_of(const void* data, int64_t batch, int64_t rows, int64_t size, int64_t width) const {
    return {{data, width, size, batch * width}, batch, heads_, rows, size};
  }
  void check_cache(const Tensor& k, const Tensor& v, int64_t batch, int64_t size) const {
    const Shape& shape = k.shape;
    require(
        shape.rank() == 4 && shape == Shape{batch, heads_, shape.rank() == 4 ? shape[2] : 0, size} && v.shape == shape,
        "key_cache has shape ", shape.str(), " and value_cache ", v.shape.str(), "; [", batch, ",", heads_, ",rows,",
        size, "] is wanted");
  }
  const void* project(Context& context, const Tensor& input, const Tensor& weight, const void* bias,
                      int64_t width) const {
    device::Gemm gemm;
    gemm.type = gemm.output = input.type;
    gemm.m = checked_product(input.shape[0], input.shape[1]), gemm.n = width, gemm.k = input.shape[2];
    require(weight.shape == Shape{gemm.k, width}, "a weight has shape ", weight.shape.str(), "; [", gemm.k, ",", width,
            "] is wanted");
    gemm.lda = gemm.k, gemm.ldb = gemm.ldc = width;
    gemm.has_bias = true;
    gemm.tf32 = tf32_;
    void* const y = context.scratch(device::size_bytes(input.type, checked_product(gemm.m, width)));
    ScratchWorkspace workspace(context);
    if (gemm.m > 0) context.blas().gemm(context.stream(), gemm, input.data, weight.data, y, bias, workspace);
    return y;
  }
  static void hide_padding(Context& context, Attend& p) {
    const Tensor& mask = context.input(kMask);
    require(mask.shape == Shape{p.batch, p.keys}, "key_padding_mask has shape ", mask.shape.str(), "; [", p.batch, ",",
            p.keys, "] is wanted");
    if (mask.count() == 0) return;
    auto* const shown = static_cast<bool*>(context.scratch(size_t(mask.count())));
    device::transform(context.stream(), mask.count(), shown, IsShown{}, mask.as<const bool>());
    p.mask.data = shown;
    p.mask.boolean = true;
    p.mask.batch = p.keys;
    p.mask.key = 1;
    p.mask.keys = p.keys;
  }

  int64_t heads_;
  bool tf32_;
};

}  // namespace

std::vector<OpRow> decoder_attention_rows() {
  const Types types{Type::f32, Type::f16};
  return {{.domain = kMicrosoft,
           .name = "DecoderAttention",
           .since = 1,
           .types = {in(kQuery, types), in(kMask, kBool)},
           .make = make<DecoderAttention>,
           .host_inputs = {kStatic, kUsePast, kHasState, kHasMask}}};
}

}  // namespace encore::ops
