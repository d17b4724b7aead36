#include "ops/attention/operators/viewed_attention.h"

#include <algorithm>
#include <array>
#include <initializer_list>

#include "ops/attention/dense/attend_products.h"
#include "ops/attention/dense/attend_tf32.h"
#include "ops/latest.h"
#include "ops/registry.h"
#include "ops/shape/movement.h"
#include "ops/shape/strided_view.h"

namespace encore::ops {
namespace {

constexpr int kRank = 4;  // batch, head, row, size

ViewedTensor heads_of(Context& context, const Tensor& tensor, const std::vector<ViewStep>& steps, const char* what) {
  ViewedTensor seen = viewed(context, tensor, steps);
  if (seen.view.rank() == kRank - 1) seen.view.unsqueeze({0});
  if (seen.view.rank() != kRank)
    fail(Code::invalid_input, what, " have shape ", seen.view.shape().str(), "; it must have ", kRank, " dimensions");
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
  int64_t offset;  // in bytes, from the tensor's begin; -1 if they have been moved
  Shape shape;
  StridedView::Numbers strides;
};

Rows rows_of(Context& context, const Tensor& tensor, ViewedTensor seen) {
  const size_t bytes = device::size_bytes(tensor.type);
  const Shape shape = seen.view.shape();
  if (shape.count() == 0) return {nullptr, -1, shape, {0, 0, 0, 0}};
  auto strides = seen.view.strides();
  const bool is_turned = tensor.type == Type::f32 && strides && (*strides)[kRank - 2] == 1;
  if (!strides || (strides->back() != 1 && !is_turned)) {
    make_dense(context, bytes, seen);
    strides = seen.view.strides();
  }
  return {seen.start(bytes), seen.data == tensor.data ? seen.view.offset() * int64_t(bytes) : -1, shape, *strides};
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
    const auto [rows_of_all, group] = read(context);
    const auto& [q, k, v] = rows_of_all;
    const Tensor* const given = context.find_input(3);
    const int64_t batch = joint({q.shape[0], k.shape[0], v.shape[0]}, "batches");
    const std::optional<Tensor> mask = given ? std::optional(of_batch(context, *given, batch)) : std::nullopt;
    const Shape of_mask = mask ? with_all_dims(*mask) : Shape{1, 1, 1, 1};
    if (q.shape[3] != k.shape[3])
      fail(Code::invalid_input, "queries ", q.shape.str(), " and keys ", k.shape.str(),
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
      const StridedView::Numbers strides = *StridedView(of_mask).strides();
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
        attend_by_products(context, products_of(problem, rows_of_all, mask));
      return;
    }
    if (repeats)  // what is there once is there for all, which libraries need not know of
      attend_prefill(context, problem);
    else
      attend(context, problem);
  }

 private:
  // Queries, keys and values, and how many heads of the first have each of the others.
  struct Inputs {
    std::array<Rows, 3> rows;
    int64_t group;
  };
  using Shapes = std::array<Shape, 3>;

  Inputs read(Context& context) const {
    const std::array<const Tensor*, 3> tensors{&context.input(0), &context.input(1), &context.input(2)};
    const Shapes shapes{tensors[0]->shape, tensors[1]->shape, tensors[2]->shape};
    if (auto known = latest_.find(shapes)) {
      for (size_t i = 0; i < 3; ++i)
        known->rows[i].data = static_cast<const char*>(tensors[i]->data) + known->rows[i].offset;
      return *known;
    }
    ViewedTensor k = heads_of(context, *tensors[1], how_.k, "keys"),
                 v = heads_of(context, *tensors[2], how_.v, "values");
    const int64_t group = share_heads(k, v);
    const Rows q = rows_of(context, *tensors[0], heads_of(context, *tensors[0], how_.q, "queries"));
    const Inputs made{{q, rows_of(context, *tensors[1], k), rows_of(context, *tensors[2], v)}, group};
    if (std::ranges::all_of(made.rows, [](const Rows& rows) { return rows.offset >= 0; })) latest_.keep(shapes, made);
    return made;
  }

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
    if (mask.shape.rank() > kRank)
      fail(Code::invalid_input, "the mask has shape ", mask.shape.str(), "; it can have ", kRank,
           " dimensions at most");
    std::array<int64_t, kRank> dims{1, 1, 1, 1};
    std::ranges::copy(mask.shape.dims(), dims.end() - mask.shape.rank());
    return Shape(dims);
  }
  // Takes it, and has the problem write there.
  Tensor output(Context& context, Attend& problem) const {
    const std::array<int64_t, kRank> dims{problem.batch, problem.heads, problem.queries, problem.value_size};
    const size_t first = kRank - how_.y_order.size();
    if (first > 0 && problem.batch != 1)
      fail(Code::invalid_input, "axis 0 of ", Shape(dims).str(), " is not 1 and cannot be squeezed");
    StridedView::Numbers made;
    for (const int64_t axis : how_.y_order) made.push_back(dims[first + size_t(axis)]);
    const Tensor y = context.output(0, Shape(made));
    std::array<int64_t, kRank> strides{};
    int64_t stride = 1, extent = 1;
    for (size_t i = made.size(); i-- > 0; stride *= made[i]) strides[first + size_t(how_.y_order[i])] = stride;
    for (size_t i = kRank; i-- > 0; extent = strides[i] * dims[i])
      if (dims[i] == 1) strides[i] = extent;  // as views have it
    problem.y = {y.data, strides[0], strides[1], strides[2]};
    return y;
  }

  ViewedAttention how_;
  bool tf32_, is_half_;
  mutable Latest<Shapes, Inputs> latest_;  // of what is read in its place
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
