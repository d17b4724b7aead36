// ai.onnx's Attention. The KV cache of the past is joined with the new keys and values first, since models want the
// whole as an output; after that there is one attention over strided heads.
#include <cmath>
#include <optional>

#include "ops/attention/dense/attend.h"
#include "ops/attention/inputs/past.h"
#include "ops/choice.h"
#include "ops/registry.h"
#include "ops/shape/strided.h"

namespace encore::ops {
namespace {

// A tensor of heads: [batch, head, row, size], or [batch, row, head * size].
struct Heads {
  int64_t batch, heads, rows, size;
  HeadRows view;

  Heads(const Tensor& tensor, int64_t heads_if_flat, const char* what) {
    const Shape& shape = tensor.shape;
    batch = shape[0];
    view.data = tensor.data;
    if (shape.rank() == 4) {
      heads = shape[1], rows = shape[2], size = shape[3];
      view.row = size, view.head = rows * size;
    } else {
      heads = heads_if_flat, rows = shape[1];
      require(shape[2] % heads == 0, what, " ", shape.str(), " cannot be divided into ", heads, " heads");
      size = shape[2] / heads;
      view.head = size, view.row = heads * size;
    }
    view.batch = heads * rows * size;
  }
  Shape shape() const { return {batch, heads, rows, size}; }
};

class Attention : public Op {
 public:
  explicit Attention(const NodeInfo& node)
      : version_(node.since_version()),
        q_heads_(node.get_int("q_num_heads", 0)),
        kv_heads_(node.get_int("kv_num_heads", 0)),
        scale_(node.find_float("scale")),
        softcap_(node.get_float("softcap", 0)),
        causal_(node.get_int("is_causal", 0) == 1),
        left_(node.get_int("left_window_size", -1)),
        right_(node.get_int("right_window_size", -1)),
        tf32_(node.settings.use_tf32),
        stage_(read_choice<ScoresOutput::Stage>(node, "qk_matmul_output_mode", 0,
                                                {{0, ScoresOutput::scaled},
                                                 {1, ScoresOutput::capped},
                                                 {2, ScoresOutput::masked},
                                                 {3, ScoresOutput::softmax}})) {
    require(q_heads_ >= 0 && kv_heads_ >= 0, "q_num_heads is ", q_heads_, " and kv_num_heads is ", kv_heads_,
            "; neither may be negative");
    require(!scale_ || (*scale_ > 0 && std::isfinite(*scale_)), "scale is ", scale_.value_or(0),
            "; it must be above zero and finite");
    if (!(softcap_ >= 0 && std::isfinite(softcap_)))  // of which onnx caps nothing, and other providers do
      fail(Code::not_supported, "softcap is ", softcap_, "; it must be finite and not negative");
    require(left_ >= -1 && right_ >= -1, "left_window_size is ", left_, " and right_window_size is ", right_,
            "; they must be at least -1");
    // Softmax is computed in float, or double if the inputs are; that is as precise as what it is made from.
    if (const auto precision = node.find_int("softmax_precision"))
      if (*precision != 1 && *precision != 10 && *precision != 11 && *precision != 16)
        fail(Code::not_supported, "softmax_precision ", *precision, " is not float, float16, double or bfloat16");
    for (const int i : {1, 2, 4, 5})
      if (node.has_input(i) && node.input_type(i) != node.input_type(0))
        fail(Code::not_supported, "Q is ", device::name(node.input_type(0)), " and input ", i, " is ",
             device::name(node.input_type(i)), "; they must be of one type");
    if (node.has_input(3) && node.input_type(3) != Type::boolean && node.input_type(3) != node.input_type(0))
      fail(Code::not_supported, "a mask of ", device::name(node.input_type(3)), " with a Q of ",
           device::name(node.input_type(0)), " is not supported; it must be bool or of Q's type");
    const auto q = node.input_dims(0);
    require(!q || q->size() == 3 || q->size() == 4, "Q has rank ", q ? q->size() : 0, "; it must be 3 or 4");
    require(!q || q->size() == 4 || (q_heads_ > 0 && kv_heads_ > 0),
            "q_num_heads and kv_num_heads are wanted for a Q of rank 3");
  }

  size_t cleared_bytes() const override { return kAttentionClears; }
  void run(Context& context) const override {
    const Tensor &q_in = context.input(0), &k_in = context.input(1), &v_in = context.input(2);
    const int rank = q_in.shape.rank();
    require((rank == 3 || rank == 4) && k_in.shape.rank() == rank && v_in.shape.rank() == rank, "Q ", q_in.shape.str(),
            ", K ", k_in.shape.str(), " and V ", v_in.shape.str(), " must all have rank 3 or 4");
    require(rank == 4 || (q_heads_ > 0 && kv_heads_ > 0),
            "q_num_heads and kv_num_heads are wanted for inputs of rank 3");
    const Heads q(q_in, q_heads_, "Q");
    Heads k(k_in, kv_heads_, "K"), v(v_in, kv_heads_, "V");
    check(q, k, v);

    const int64_t past = join(context, k, v);
    Attend problem;
    problem.type = q_in.type, problem.tf32 = tf32_;
    problem.batch = q.batch, problem.heads = q.heads, problem.kv_heads = k.heads;
    problem.queries = q.rows, problem.keys = k.rows, problem.head_size = q.size, problem.value_size = v.size;
    problem.q = q.view, problem.k = k.view, problem.v = v.view;
    problem.scale = scale_ ? double(*scale_) : 1 / std::sqrt(double(q.size));
    problem.softcap = softcap_;
    look(context, problem, past);

    const bool flat = rank == 3;
    const Tensor y = context.output(
        0, flat ? Shape{q.batch, q.rows, checked_product(q.heads, v.size)} : Shape{q.batch, q.heads, q.rows, v.size});
    problem.y = Heads(y, q.heads, "Y").view;
    if (context.wants_output(3)) {
      const Tensor scores = context.output(3, {q.batch, q.heads, q.rows, k.rows});
      if (scores.count() > 0) problem.scores = {scores.data, stage_};
    }
    if (y.count() > 0 || problem.scores.data) attend(context, problem);
  }

 private:
  void check(const Heads& q, const Heads& k, const Heads& v) const {
    require((q_heads_ == 0 || q.heads == q_heads_) && (kv_heads_ == 0 || k.heads == kv_heads_), "Q has ", q.heads,
            " heads and K ", k.heads, "; q_num_heads and kv_num_heads say ", q_heads_, " and ", kv_heads_);
    require(k.batch == q.batch && v.batch == q.batch && v.heads == k.heads && v.rows == k.rows && k.size == q.size,
            "Q ", q.shape().str(), ", K ", k.shape().str(), " and V ", v.shape().str(),
            " don't fit together, as batch, heads, rows and size");
    require(k.heads > 0 && q.heads % k.heads == 0, "the ", q.heads, " heads of Q cannot be shared out to ", k.heads,
            " of K and V");
    require(q.size > 0, "Q ", q.shape().str(), " has heads of no size");
  }

  // Puts what is past before the new keys and values, in the outputs for it if they are wanted. How much is past.
  int64_t join(Context& context, Heads& k, Heads& v) const {
    const Tensor *past_k = context.find_input(4), *past_v = context.find_input(5);
    require(!past_k == !past_v, "past_key and past_value are wanted together");
    const auto fits = [](const Tensor& past, const Heads& now) {
      const Shape& shape = past.shape;
      return shape.rank() == 4 && shape[0] == now.batch && shape[1] == now.heads && shape[3] == now.size;
    };
    require(!past_k || (fits(*past_k, k) && fits(*past_v, v) && past_k->shape[2] == past_v->shape[2]), "past_key ",
            past_k ? past_k->shape.str() : "", " and past_value ", past_v ? past_v->shape.str() : "", " don't fit K ",
            k.shape().str(), " and V ", v.shape().str());
    const int64_t past = past_k ? past_k->shape[2] : 0;
    join_one(context, 1, past_k, k);
    join_one(context, 2, past_v, v);
    return past;
  }
  static void join_one(Context& context, int output, const Tensor* past, Heads& now) {
    const bool wanted = context.wants_output(output);
    if (!wanted && !past) return;
    const int64_t before = past ? past->shape[2] : 0;
    const Shape shape{now.batch, now.heads, before + now.rows, now.size};
    const Type type = context.input(output).type;
    const size_t bytes = device::size_bytes(type);
    void* const all = wanted ? context.output(output, shape).data : context.scratch(size_t(shape.count()) * bytes);
    if (past) check_past(now.batch * now.heads, past->data, before, all, shape[2]);
    const HeadRows joined{all, shape.count(1, 4), shape.count(2, 4), now.size};
    const auto copy = [&](const HeadRows& from, int64_t rows, int64_t at) {
      StridedCopy copy;
      copy.add(now.batch, from.batch, joined.batch);
      copy.add(now.heads, from.head, joined.head);
      copy.add(rows, from.row, joined.row);
      copy.add(now.size, 1, 1);
      copy.run(context.stream(), from.data, static_cast<char*>(all) + size_t(at * now.size) * bytes, bytes);
    };
    if (past) copy(Heads(*past, 0, "past").view, before, 0);
    copy(now.view, now.rows, before);
    now.rows = before + now.rows;
    now.view = joined;
  }

  // Which keys are seen, and the mask.
  void look(Context& context, Attend& p, int64_t past) const {
    VisibleKeys& visible = p.visible;
    visible.before = left_;
    visible.after = causal_ ? 0 : right_;
    visible.offset = past;
    if (const Tensor* lengths = context.find_input(6)) {
      require(!context.find_input(4), "nonpad_kv_seqlen cannot be had together with past_key and past_value");
      require(lengths->shape == Shape{p.batch}, "nonpad_kv_seqlen has shape ", lengths->shape.str(), "; [", p.batch,
              "] is wanted");
      visible.lengths = lengths->as<const int64_t>();
      visible.from_end = true;
    }
    const Tensor* given = context.find_input(3);
    if (!given) return;
    // Of ranks below four the first dimensions are missing. Since version 24 the last one may end early.
    const Shape& shape = given->shape;
    const int64_t full[] = {p.batch, p.heads, p.queries, p.keys};
    const int lead = 4 - shape.rank();
    require(lead >= 0, "attn_mask has shape ", shape.str(), "; it can have four dimensions at most");
    AttentionMask& mask = p.mask;
    mask.boolean = given->type == Type::boolean;
    mask.keys = p.keys;
    int64_t* const strides[] = {&mask.batch, &mask.head, &mask.query, &mask.key};
    int64_t stride = 1;
    for (int i = 3; i >= lead; --i) {
      const int64_t dim = shape[i - lead];
      const bool short_ = i == 3 && version_ >= 24 && dim < full[i];
      require(dim == full[i] || dim == 1 || short_, "attn_mask ", shape.str(), " does not broadcast to ",
              Shape(full).str());
      if (short_) mask.keys = dim;
      *strides[i] = dim == full[i] || short_ ? stride : 0;
      stride *= dim;
    }
    mask.data = given->data;
    if (mask.keys == 0 || given->count() == 0) {  // then nothing is seen, and there may be no address
      mask = {};
      visible.after = visible.before = 0;
      visible.from_end = false;
      visible.lengths = nullptr;
      visible.offset = p.keys;
    }
  }

  int version_;
  int64_t q_heads_, kv_heads_;
  std::optional<float> scale_;
  float softcap_;
  bool causal_;
  int64_t left_, right_;
  bool tf32_;
  ScoresOutput::Stage stage_;
};

}  // namespace

std::vector<OpRow> attention_rows() {
  return {{.name = "Attention",
           .since = 23,
           .types = {in(0, kFloats), in(1, kFloats), in(2, kFloats), in(3, kFloats | kBool), in(4, kFloats),
                     in(5, kFloats), in(6, {Type::i64})},
           .make = make<Attention>}};
}

}  // namespace encore::ops
