#include "ops/attention/operators/viewed_attention.h"

#include <algorithm>
#include <array>
#include <initializer_list>

#include "ops/attention/dense/attend_products.h"
#include "ops/attention/dense/attend_tf32.h"
#include "ops/registry.h"
#include "ops/shape/movement.h"
#include "ops/shape/strided_view.h"

namespace encore::ops {
namespace {

constexpr int kRank = 4;  // batch, head, row, size

ViewedTensor heads_of(Context& context, const Tensor& tensor, const std::vector<ViewStep>& steps, const char* what) {
  ViewedTensor seen = viewed(context, tensor, steps);
  if (seen.view.axes().size() == kRank - 1) seen.view.unsqueeze({0});
  require(seen.view.axes().size() == kRank, what, " have shape ", seen.view.shape().str(), "; it must have ", kRank,
          " dimensions");
  return seen;
}

// How many heads of queries have each head of keys and values, which are repeated for them: not from now on.
int64_t share_heads(ViewedTensor& k, ViewedTensor& v) {
  ViewedTensor once_k = k, once_v = v;
  const int64_t group = once_k.view.drop_repeats(1);
  if (once_v.view.drop_repeats(1) != group) return 1;
  k = once_k, v = once_v;
  return group;
}

// [batch, head, row, size], of which the last are neighbours; of floats it may be the rows.
struct Rows {
  const void* data;
  Shape shape;
  std::vector<int64_t> strides;
};

Rows rows_of(Context& context, Type type, ViewedTensor seen) {
  const size_t bytes = device::size_bytes(type);
  if (const Shape shape = seen.view.shape(); shape.count() == 0) return {nullptr, shape, strides_of(shape)};
  auto strides = seen.view.strides();
  const bool is_turned = type == Type::f32 && strides && (*strides)[kRank - 2] == 1;
  if (!strides || (strides->back() != 1 && !is_turned)) {
    make_dense(context, bytes, seen);
    strides = seen.view.strides();
  }
  return {seen.start(bytes), seen.view.shape(), *strides};
}

// What a dimension of several becomes if one of them has more than one of it.
int64_t joint(std::initializer_list<int64_t> dims, const char* what) {
  int64_t all = 1;
  for (int64_t dim : dims)
    if (dim != 1) {
      require(all == 1 || all == dim, "queries, keys, values and the mask have ", all, " and ", dim, " ", what);
      all = dim;
    }
  return all;
}

class Viewed : public Op {
 public:
  explicit Viewed(const NodeInfo& node)
      : how_(viewed_attention(node)), tf32_(node.settings.use_tf32), is_half_(kHalves.has(node.input_type(0))) {}

  size_t cleared_bytes() const override { return is_half_ ? kAttentionClears : 0; }
  void run(Context& context) const override {
    const Type type = context.input(0).type;
    ViewedTensor all_k = heads_of(context, context.input(1), how_.k, "keys"),
                 all_v = heads_of(context, context.input(2), how_.v, "values");
    const int64_t group = share_heads(all_k, all_v);
    const Rows q = rows_of(context, type, heads_of(context, context.input(0), how_.q, "queries")),
               k = rows_of(context, type, all_k), v = rows_of(context, type, all_v);
    const Tensor* const given = context.find_input(3);
    const int64_t batch = joint({q.shape[0], k.shape[0], v.shape[0]}, "batches");
    const std::optional<Tensor> mask = given ? std::optional(of_batch(context, *given, batch)) : std::nullopt;
    const Shape of_mask = mask ? with_all_dims(*mask) : Shape{1, 1, 1, 1};
    require(q.shape[3] == k.shape[3], "queries ", q.shape.str(), " and keys ", k.shape.str(),
            " have heads of different sizes");

    Attend problem;
    problem.type = type, problem.tf32 = tf32_;
    problem.batch = joint({batch, of_mask[0]}, "batches");
    const int64_t of_keys = joint({k.shape[1] * group, v.shape[1] * group}, "heads");
    problem.heads = joint({q.shape[1], of_keys, of_mask[1]}, "heads");
    problem.kv_heads = of_keys / group;
    problem.queries = joint({q.shape[2], of_mask[2]}, "queries");
    problem.keys = joint({k.shape[2], of_mask[3]}, "keys");
    require(v.shape[2] == problem.keys, "there are ", problem.keys, " keys and ", v.shape[2], " values");
    problem.head_size = q.shape[3], problem.value_size = v.shape[3];
    problem.scale = how_.scale;
    problem.visible = {.before = how_.before, .after = how_.after, .offset = problem.keys - problem.queries};
    bool repeats = false;
    const auto rows = [&](const Rows& from, int64_t heads, int64_t count) {
      const std::array wanted{problem.batch, heads, count};
      std::array<int64_t, 3> strides{};
      for (int i = 0; i < 3; ++i) {
        const bool repeated = from.shape[i] != wanted[size_t(i)];
        strides[size_t(i)] = repeated ? 0 : from.strides[size_t(i)];
        repeats |= repeated;
      }
      return HeadRows{from.data, strides[0], strides[1], strides[2]};
    };
    problem.q = rows(q, problem.heads, problem.queries);
    problem.k = rows(k, problem.kv_heads, problem.keys), problem.v = rows(v, problem.kv_heads, problem.keys);
    if (mask && problem.keys > 0) {
      const std::vector<int64_t> strides = strides_of(of_mask);
      const auto stride = [&](int i) { return of_mask[i] == 1 ? 0 : strides[size_t(i)]; };
      problem.mask = {mask->data, false,        stride(0),  stride(1), stride(2),
                      stride(3),  problem.keys, how_.least, how_.sees};
    }
    const Tensor y = output(context, problem);
    if (context.wants_output(1)) {
      problem.bias.shape = y.count() == 0 || repeats ? Shape{0} : bias_shape(context, problem);
      problem.bias.data = context.output(1, problem.bias.shape).data;
      problem.bias.blind = context.output(2, blind_shape(problem.bias.shape)).as<bool>();
    } else if (const Tensor* const bias = context.find_input(4); bias && bias->count() > 0) {
      problem.bias = {bias->shape, bias->data, context.input(5).as<bool>(), true};
    }
    if (y.count() == 0) return;
    if (type == Type::f32) {
      const bool in_rows = std::ranges::all_of(std::array{&q, &k, &v}, [](auto* one) { return one->strides[3] == 1; });
      if (in_rows && beats_products(context, problem))
        attend_tf32(context, problem, how_.zeros ? Blind::zeros_for_no_number : Blind::no_number);
      else
        attend_by_products(context, products_of(problem, {q, k, v}, mask));
      return;
    }
    if (repeats)  // what is there once is there for all, which libraries need not know of
      attend_prefill(context, problem);
    else
      attend(context, problem);
  }

 private:
  // A mask [image, window, head, row, key] is that of a batch: one for all of it, or each window's again for all
  // images.
  static Tensor of_batch(Context& context, Tensor mask, int64_t batch) {
    if (mask.shape.rank() != kRank + 1) return mask;
    const auto dims = mask.shape.dims();
    const int64_t windows = dims[1], there = checked_product(dims[0], windows);
    if (there != 1 && there != batch && there != 0) {
      require(dims[0] == 1 && batch % windows == 0, "the mask ", mask.shape.str(), " does not fit a batch of ", batch);
      const Shape all{batch / windows, windows, dims[2], dims[3], dims[4]};
      void* const repeated = context.scratch(size_t(all.count()) * device::size_bytes(mask.type));
      expand(context.stream(), mask, all, repeated);
      mask.data = repeated;
    }
    mask.shape = Shape{there == 1 ? 1 : batch, dims[2], dims[3], dims[4]};
    return mask;
  }
  ProductAttention products_of(const Attend& p, const std::array<Rows, 3>& rows,
                               const std::optional<Tensor>& mask) const {
    const auto matrices = [](const HeadRows& all, int64_t column) {
      return HeadMatrices{all.data, all.batch, all.head, all.row, column};
    };
    const bool is_of_all = p.kv_heads == 1;  // heads, which read it in place
    const auto of_keys = [&](HeadRows all, int64_t column) {
      if (is_of_all) all.head = 0;
      return matrices(all, column);
    };
    return {p.batch,
            p.heads,
            is_of_all ? p.heads : p.kv_heads,
            p.queries,
            p.keys,
            p.head_size,
            p.value_size,
            matrices(p.q, rows[0].strides[3]),
            of_keys(p.k, rows[1].strides[3]),
            of_keys(p.v, rows[2].strides[3]),
            matrices(p.y, 1),
            p.scale,
            mask,
            how_.zeros,
            tf32_};
  }
  // With ones for what it lacks.
  static Shape with_all_dims(const Tensor& mask) {
    require(mask.shape.rank() <= kRank, "the mask has shape ", mask.shape.str(), "; it can have ", kRank,
            " dimensions at most");
    std::vector<int64_t> dims(size_t(kRank - mask.shape.rank()), 1);
    dims.insert(dims.end(), mask.shape.dims().begin(), mask.shape.dims().end());
    return Shape(dims);
  }
  // Takes it, and has the problem write there.
  Tensor output(Context& context, Attend& problem) const {
    const bool has_batch = how_.y_order.size() == kRank;
    StridedView view(Shape{problem.batch, problem.heads, problem.queries, problem.value_size});
    if (!has_batch) view.squeeze({0});
    view.transpose(how_.y_order);
    const Tensor y = context.output(0, view.shape());
    view = StridedView(y.shape);
    std::vector<int64_t> back(how_.y_order.size());
    for (size_t i = 0; i < back.size(); ++i) back[size_t(how_.y_order[i])] = int64_t(i);
    view.transpose(back);
    if (!has_batch) view.unsqueeze({0});
    const std::vector<int64_t> strides = *view.strides();
    problem.y = {y.data, strides[0], strides[1], strides[2]};
    return y;
  }

  ViewedAttention how_;
  bool tf32_, is_half_;
};

}  // namespace

Attributes attributes_of(const ViewedAttention& how) {
  Attributes attributes{{"scale", float(how.scale)},
                        {"q", text_of(how.q)},
                        {"k", text_of(how.k)},
                        {"v", text_of(how.v)},
                        {"y", how.y_order}};
  if (how.least > kAnyNumber) attributes["least"] = float(how.least);
  if (how.sees) attributes["sees"] = int64_t(1);
  if (how.before >= 0) attributes["before"] = how.before;
  if (how.after >= 0) attributes["after"] = how.after;
  if (how.zeros) attributes["zeros"] = int64_t(1);
  return attributes;
}

ViewedAttention viewed_attention(const NodeInfo& node) {
  const auto steps = [&](const char* of) { return view_steps(node.get_string(of, "")); };
  return {steps("q"),
          steps("k"),
          steps("v"),
          node.find_ints("y").value(),
          node.get_float("scale", 1),
          node.get_float("least", float(kAnyNumber)),
          node.get_int("sees", 0) != 0,
          node.get_int("before", -1),
          node.get_int("after", -1),
          node.get_int("zeros", 0) != 0};
}

std::unique_ptr<Op> make_viewed_attention(const NodeInfo& node) { return std::make_unique<Viewed>(node); }

}  // namespace encore::ops
