// Einsum. Operands are views with labelled dimensions: a diagonal is a stride, an ellipsis a few labels more, and a
// dimension of one element is left out. They are joined two at a time, by a matrix product where there is one in it.
#include <algorithm>
#include <map>

#include "device/memory.h"
#include "ops/matmul/contract.h"
#include "ops/matmul/equation.h"
#include "ops/matmul/operand.h"
#include "ops/matmul/product.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

// Products of matrices that one call of the library does not do together; with more, operands are copied first.
constexpr int64_t kMostCalls = 16;
// Of more operands than these the order is not chosen: the choice takes time, too.
constexpr size_t kMostChosen = 12;

bool contains(const Labels& labels, int label) { return std::count(labels.begin(), labels.end(), label) > 0; }
Labels operator+(Labels a, const Labels& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// What the labels of two operands are to their product.
struct Roles {
  Labels batch, rows, columns, summed;  // in both and kept; of one alone; in both and added up
};

// An operand as a matrix of a product: [rows, columns], or [columns, rows] if transposed.
struct Matrix {
  bool transposed;
  int64_t leading;
};
std::optional<Matrix> as_matrix(const Operand& x, const Labels& rows, const Labels& columns) {
  const auto row = x.stride(rows), column = x.stride(columns);
  if (!row || !column) return std::nullopt;
  const int64_t height = count_of(x, rows), width = count_of(x, columns);
  if ((width == 1 || *column == 1) && (height == 1 || *row >= width)) return Matrix{false, height == 1 ? width : *row};
  if ((height == 1 || *row == 1) && (width == 1 || *column >= height))
    return Matrix{true, width == 1 ? height : *column};
  return std::nullopt;
}

class Einsum : public Op {
 public:
  explicit Einsum(const NodeInfo& node)
      : equation_(parse_equation(node.get_string("equation", ""), node.input_count())), tf32_(node.settings.use_tf32) {}

  void run(Context& context) const override {
    const Type type = context.input(0).type;
    std::vector<Labels> terms;
    std::map<int, int64_t> sizes;
    for (int i = 0; i < int(equation_.inputs.size()); ++i) {
      const Tensor& input = context.input(i);
      require(input.type == type, "inputs have types ", device::name(type), " and ", device::name(input.type));
      terms.push_back(labels_of(equation_.inputs[size_t(i)], input.shape.rank(), text("input ", i)));
      note_sizes(terms.back(), input.shape, sizes);
    }
    const Labels output = output_labels(sizes);
    std::vector<int64_t> dims;
    for (int label : output) dims.push_back(sizes[label]);
    const Tensor y = context.output(0, Shape(dims));
    if (y.count() == 0) return;
    if (std::any_of(sizes.begin(), sizes.end(), [](const auto& size) { return size.second == 0; }))
      return device::fill(context.stream(), y.data, 0, y.bytes());  // sums of nothing

    std::vector<Operand> operands;
    for (size_t i = 0; i < terms.size(); ++i) operands.push_back(view_of(context.input(int(i)), terms[i]));
    const Operand result = view_of(y, output);
    while (operands.size() > 1) {
      const auto [i, j] = next_pair(operands, output);
      Operand a = operands[i], b = operands[j];
      operands.erase(operands.begin() + ptrdiff_t(j));
      operands.erase(operands.begin() + ptrdiff_t(i));
      operands.push_back(product(context, type, a, b, result, operands));
    }
    Labels rest;
    for (const Operand::Dim& dim : operands[0].dims)
      if (!result.has(dim.label)) rest.push_back(dim.label);
    const Operand last = summed(context, type, operands[0], rest);
    if (last.data != result.data) copy(context, type, last, result);
  }

 private:
  static void note_sizes(const Labels& term, const Shape& shape, std::map<int, int64_t>& sizes) {
    std::map<int, int64_t> own;
    for (int i = 0; i < shape.rank(); ++i) {
      const int label = term[size_t(i)];
      if (const auto [at, is_new] = own.emplace(label, shape[i]); !is_new)
        require(at->second == shape[i], "a diagonal of dimensions ", at->second, " and ", shape[i], ", of shape ",
                shape.str());
      int64_t& size = sizes.emplace(label, 1).first->second;
      require(size == 1 || shape[i] == 1 || size == shape[i], "a label stands for dimensions of ", size, " and ",
              shape[i]);
      if (size == 1) size = shape[i];
    }
  }

  Labels output_labels(const std::map<int, int64_t>& sizes) const {
    Labels labels;
    for (int label : equation_.output) {
      if (label != kEllipsis)
        labels.push_back(label);
      else
        for (auto size = sizes.rbegin(); size != sizes.rend() && size->first >= kFirstUnnamed; ++size)
          labels.push_back(size->first);
    }
    return labels;
  }

  static Operand view_of(const Tensor& tensor, const Labels& labels) {
    Operand view{tensor.data, {}};
    const auto strides = strides_of(tensor.shape);
    for (size_t i = 0; i < labels.size(); ++i) {
      if (tensor.shape[int(i)] == 1) continue;
      const auto same = std::find_if(view.dims.begin(), view.dims.end(),
                                     [&](const Operand::Dim& dim) { return dim.label == labels[i]; });
      if (same == view.dims.end())
        view.dims.push_back({labels[i], tensor.shape[int(i)], strides[i]});
      else
        same->stride += strides[i];
    }
    return view;
  }

  // The pair with the fewest products and, among these, the smallest result.
  static std::pair<size_t, size_t> next_pair(const std::vector<Operand>& operands, const Labels& output) {
    if (operands.size() > kMostChosen) return {0, 1};
    std::pair<size_t, size_t> best{0, 1};
    std::pair<double, double> least{};
    for (size_t i = 0; i < operands.size(); ++i)
      for (size_t j = i + 1; j < operands.size(); ++j) {
        double products = 1, made = 1;
        const auto count = [&](const Operand& x, const Operand* seen) {
          for (const Operand::Dim& dim : x.dims) {
            if (seen && seen->has(dim.label)) continue;
            bool kept = contains(output, dim.label);
            for (size_t k = 0; k < operands.size(); ++k) kept |= k != i && k != j && operands[k].has(dim.label);
            products *= double(dim.size);
            made *= kept ? double(dim.size) : 1;
          }
        };
        count(operands[i], nullptr);
        count(operands[j], &operands[i]);
        if (j == 1 || std::pair(products, made) < least) best = {i, j}, least = {products, made};
      }
    return best;
  }

  // The product of a and b, without the labels that neither the result nor `others` have. Written to the result if
  // these two are the last and it can be.
  Operand product(Context& context, Type type, Operand a, Operand b, const Operand& result,
                  const std::vector<Operand>& others) const {
    const auto kept = [&](int label) {
      return result.has(label) ||
             std::any_of(others.begin(), others.end(), [&](const Operand& other) { return other.has(label); });
    };
    const auto alone = [&](const Operand& x, const Operand& other) {
      Labels labels;
      for (const Operand::Dim& dim : x.dims)
        if (!kept(dim.label) && !other.has(dim.label)) labels.push_back(dim.label);
      return labels;
    };
    a = summed(context, type, a, alone(a, b));
    b = summed(context, type, b, alone(b, a));
    const bool last = others.empty();
    Roles roles = roles_of(a, b, kept, last ? &result : nullptr);
    const bool is_dot = roles.rows.empty() && roles.columns.empty() && !roles.batch.empty();
    if (roles.summed.empty() || is_dot || !kFloats.has(type))
      return plain_product(context, type, a, b, roles, last ? &result : nullptr);
    // Rows of the result are contiguous: they are the columns of b.
    if (last && !result.dims.empty() && contains(roles.rows, result.dims.back().label)) {
      std::swap(a, b);
      std::swap(roles.rows, roles.columns);
    }
    return matrix_product(context, type, a, b, roles, last ? &result : nullptr);
  }

  template <class Kept>
  static Roles roles_of(const Operand& a, const Operand& b, const Kept& kept, const Operand* result) {
    Roles roles;
    const Labels all = a.by_stride() + b.by_stride();
    const auto sort = [&](int label) {
      Labels& into = !kept(label)                   ? roles.summed
                     : a.has(label) && b.has(label) ? roles.batch
                     : a.has(label)                 ? roles.rows
                                                    : roles.columns;
      if (!contains(into, label)) into.push_back(label);
    };
    // In the order of the result, so that it needs no turning.
    if (result)
      for (const Operand::Dim& dim : result->dims) sort(dim.label);
    for (int label : all) sort(label);
    return roles;
  }

  static Operand plain_product(Context& context, Type type, Operand a, Operand b, const Roles& roles,
                               const Operand* result) {
    if (roles.summed.size() > size_t(kMostSummedDims)) {
      a = packed(context, type, a, roles.batch + roles.rows + roles.summed);
      b = packed(context, type, b, roles.batch + roles.columns + roles.summed);
    }
    Operand made = result ? *result : fresh(context, type, roles, a, b);
    std::vector<ContractDim> kept, added;
    for (const Operand::Dim& dim : made.dims) kept.push_back({dim.size, a.stride(dim.label), b.stride(dim.label)});
    for (int label : roles.summed) added.push_back({a.find(label)->size, a.stride(label), b.stride(label)});
    contract(context.stream(), type, a.data, b.data, const_cast<void*>(made.data), kept, added);
    return made;
  }

  static Operand fresh(Context& context, Type type, const Roles& roles, const Operand& a, const Operand& b) {
    Operand made = laid_out(nullptr, roles.batch + roles.rows + roles.columns, {&a, &b});
    made.data = context.scratch(size_t(checked_product(count_of(made), int64_t(device::size_bytes(type)))));
    return made;
  }

  struct Axis {
    int64_t size, a, b, c;  // strides
  };
  static std::vector<Axis> batch_axes(const Labels& batch, const Operand& a, const Operand& b, const Operand& c) {
    std::vector<Axis> axes;
    for (int label : batch) {
      const Axis inner{c.find(label)->size, a.stride(label), b.stride(label), c.stride(label)};
      if (!axes.empty()) {
        Axis& outer = axes.back();
        if (outer.a == inner.a * inner.size && outer.b == inner.b * inner.size && outer.c == inner.c * inner.size) {
          outer = {outer.size * inner.size, inner.a, inner.b, inner.c};
          continue;
        }
      }
      axes.push_back(inner);
    }
    // The longest one is the library's.
    if (axes.empty()) axes.push_back({1, 0, 0, 0});
    std::stable_sort(axes.begin(), axes.end(), [](const Axis& x, const Axis& y) { return x.size > y.size; });
    return axes;
  }

  Operand matrix_product(Context& context, Type type, Operand a, Operand b, const Roles& roles,
                         const Operand* result) const {
    if (!as_matrix(a, roles.rows, roles.summed)) a = packed(context, type, a, roles.batch + roles.rows + roles.summed);
    if (!as_matrix(b, roles.summed, roles.columns))
      b = packed(context, type, b, roles.batch + roles.summed + roles.columns);
    const auto fits = [&](const Operand& c) {
      const auto matrix = as_matrix(c, roles.rows, roles.columns);
      return matrix && !matrix->transposed;
    };
    Operand c = result && fits(*result) ? *result : fresh(context, type, roles, a, b);
    std::vector<Axis> axes = batch_axes(roles.batch, a, b, c);
    const auto calls = [&] {
      int64_t count = 1;
      for (size_t i = 1; i < axes.size(); ++i) count = checked_product(count, axes[i].size);
      return count;
    };
    if (calls() > kMostCalls) {
      if (!a.stride(roles.batch)) a = packed(context, type, a, roles.batch + roles.rows + roles.summed);
      if (!b.stride(roles.batch)) b = packed(context, type, b, roles.batch + roles.summed + roles.columns);
      if (!c.stride(roles.batch)) c = fresh(context, type, roles, a, b);
      axes = batch_axes(roles.batch, a, b, c);
    }
    const Matrix left = *as_matrix(a, roles.rows, roles.summed), right = *as_matrix(b, roles.summed, roles.columns);
    device::Gemm gemm;
    gemm.type = gemm.output = type;
    gemm.m = count_of(a, roles.rows), gemm.k = count_of(a, roles.summed), gemm.n = count_of(b, roles.columns);
    gemm.transpose_a = left.transposed, gemm.transpose_b = right.transposed;
    gemm.lda = left.leading, gemm.ldb = right.leading;
    gemm.ldc = as_matrix(c, roles.rows, roles.columns)->leading;
    gemm.batch = axes[0].size;
    gemm.stride_a = axes[0].a, gemm.stride_b = axes[0].b, gemm.stride_c = axes[0].c;
    gemm.tf32 = tf32_;
    ScratchWorkspace workspace(context);
    const auto bytes = int64_t(device::size_bytes(type));
    const int64_t count = calls();
    for (int64_t call = 0; call < count; ++call) {
      int64_t rest = call, a_at = 0, b_at = 0, c_at = 0;
      for (size_t i = 1; i < axes.size(); ++i) {
        const int64_t at = rest % axes[i].size;
        rest /= axes[i].size;
        a_at += at * axes[i].a, b_at += at * axes[i].b, c_at += at * axes[i].c;
      }
      context.blas().gemm(context.stream(), gemm, static_cast<const char*>(a.data) + a_at * bytes,
                          static_cast<const char*>(b.data) + b_at * bytes,
                          static_cast<char*>(const_cast<void*>(c.data)) + c_at * bytes, nullptr, workspace);
    }
    return c;
  }

  Equation equation_;
  bool tf32_;
};

}  // namespace

std::vector<OpRow> einsum_rows() {
  constexpr Types kBefore{Type::f32, Type::f64, Type::f16};
  return {
      {.name = "Einsum", .since = 12, .until = 27, .types = {in_all(0, kBefore | kWholeNumbers)}, .make = make<Einsum>},
      {.name = "Einsum", .since = 28, .types = {in_all(0, kFloats | kWholeNumbers)}, .make = make<Einsum>},
  };
}

}  // namespace encore::ops
