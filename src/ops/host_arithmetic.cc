#include "ops/host_arithmetic.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <string_view>

#include "ops/elementwise/scalar_functions.h"
#include "ops/range_count.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

constexpr Types kServed = kFloats | Types{Type::i64, Type::i32, Type::boolean};

bool is_real(Type type) { return kFloats.has(type); }

// Calls f with a value of the type that `type` names.
template <class F>
auto with_type(Type type, F f) {
  switch (type) {
    case Type::i64: return f(int64_t());
    case Type::i32: return f(int32_t());
    case Type::boolean: return f(bool());
    case Type::f32: return f(float());
    case Type::f64: return f(double());
    case Type::f16: return f(device::Half());
    case Type::bf16: return f(device::BFloat16());
    default: fail(Code::internal, device::name(type), " is not computed with on the host");
  }
}

// int64 for whole numbers, and double for others: sums, products, quotients and roots of floats are right once they are
// rounded to float.
template <class V>
std::vector<V> values_of(const Tensor& tensor) {
  require(tensor.where == Where::host, "a tensor of ", tensor.shape.str(), " is not in host memory");
  return with_type(tensor.type, [&]<class T>(T) {
    const T* const at = tensor.as<const T>();
    return std::vector<V>(at, at + tensor.count());
  });
}
template <class V>
void store(const Tensor& tensor, const std::vector<V>& values) {
  with_type(tensor.type, [&]<class T>(T) {
    for (size_t i = 0; i < values.size(); ++i)
      if constexpr (std::is_same_v<T, bool>)
        tensor.as<T>()[i] = values[i] != V(0);
      else
        tensor.as<T>()[i] = static_cast<T>(values[i]);
  });
}

// Where each element of `to` is in what is broadcast to it.
std::vector<size_t> places(const Shape& from, const Shape& to) {
  if (to.count() == 0) return {};
  const std::vector<int64_t> strides = strides_of(from);
  std::vector<size_t> found{0};
  for (int i = 0; i < to.rank(); ++i) {
    const int axis = i - (to.rank() - from.rank());
    const int64_t stride = axis < 0 || from[axis] == 1 ? 0 : strides[size_t(axis)];
    std::vector<size_t> next;
    for (size_t place : found)
      for (int64_t at = 0; at < to[i]; ++at) next.push_back(place + size_t(at * stride));
    found = std::move(next);
  }
  return found;
}

// ---- element by element

struct Function {
  const char* name;
  int inputs;  // 0: any number
  int64_t (*of_whole)(int64_t, int64_t);
  double (*of_reals)(double, double);
};

int64_t wrapped(uint64_t value) { return static_cast<int64_t>(value); }
int64_t quotient(int64_t a, int64_t b) {
  require(b != 0, "a shape is divided by zero");
  return b == -1 ? wrapped(0 - uint64_t(a)) : a / b;
}
int64_t remainder(int64_t a, int64_t b) {
  require(b != 0, "a shape is divided by zero");
  const int64_t rest = b == -1 ? 0 : a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

// Comparisons and logic give zero or one.
constexpr Function kFunctions[] = {
    {"Add", 2, [](int64_t a, int64_t b) { return wrapped(uint64_t(a) + uint64_t(b)); },
     [](double a, double b) { return a + b; }},
    {"Sub", 2, [](int64_t a, int64_t b) { return wrapped(uint64_t(a) - uint64_t(b)); },
     [](double a, double b) { return a - b; }},
    {"Mul", 2, [](int64_t a, int64_t b) { return wrapped(uint64_t(a) * uint64_t(b)); },
     [](double a, double b) { return a * b; }},
    {"Div", 2, quotient, [](double a, double b) { return a / b; }},
    {"Mod", 2, remainder, nullptr},
    {"Min", 0, [](int64_t a, int64_t b) { return std::min(a, b); },
     [](double a, double b) { return std::isnan(a) || a < b ? a : b; }},
    {"Max", 0, [](int64_t a, int64_t b) { return std::max(a, b); },
     [](double a, double b) { return std::isnan(a) || a > b ? a : b; }},
    {"Equal", 2, [](int64_t a, int64_t b) { return int64_t(a == b); },
     [](double a, double b) { return double(a == b); }},
    {"Less", 2, [](int64_t a, int64_t b) { return int64_t(a < b); }, [](double a, double b) { return double(a < b); }},
    {"LessOrEqual", 2, [](int64_t a, int64_t b) { return int64_t(a <= b); },
     [](double a, double b) { return double(a <= b); }},
    {"Greater", 2, [](int64_t a, int64_t b) { return int64_t(a > b); },
     [](double a, double b) { return double(a > b); }},
    {"GreaterOrEqual", 2, [](int64_t a, int64_t b) { return int64_t(a >= b); },
     [](double a, double b) { return double(a >= b); }},
    {"And", 2, [](int64_t a, int64_t b) { return a & b; }, nullptr},
    {"Or", 2, [](int64_t a, int64_t b) { return a | b; }, nullptr},
    {"Xor", 2, [](int64_t a, int64_t b) { return a ^ b; }, nullptr},
    {"Not", 1, [](int64_t a, int64_t) { return int64_t(a == 0); }, nullptr},
    {"Neg", 1, [](int64_t a, int64_t) { return wrapped(0 - uint64_t(a)); }, [](double a, double) { return -a; }},
    {"Abs", 1, [](int64_t a, int64_t) { return a < 0 ? wrapped(0 - uint64_t(a)) : a; },
     [](double a, double) { return std::abs(a); }},
    {"Floor", 1, nullptr, [](double a, double) { return std::floor(a); }},
    {"Ceil", 1, nullptr, [](double a, double) { return std::ceil(a); }},
    {"Sqrt", 1, nullptr, [](double a, double) { return std::sqrt(a); }},
    {"Reciprocal", 1, nullptr, [](double a, double) { return 1 / a; }},
    {"Pow", 2, [](int64_t a, int64_t b) { return scalar::integer_power(a, b); },
     [](double a, double b) { return std::pow(a, b); }},
};

class Elementwise : public Op {
 public:
  explicit Elementwise(const Function& function) : function_(function) {}
  void run(Context& context) const override {
    Shape shape = context.input(0).shape;
    for (int i = 1; i < context.input_count(); ++i) shape = broadcast(shape, context.input(i).shape);
    const Tensor y = context.output(0, shape);
    if (is_real(context.input(0).type))
      fold(context, y, function_.of_reals);
    else
      fold(context, y, function_.of_whole);
  }

 private:
  template <class V>
  static void fold(Context& context, const Tensor& y, V (*function)(V, V)) {
    const auto spread = [&](int i) {
      const std::vector<V> values = values_of<V>(context.input(i));
      std::vector<V> all;
      for (size_t place : places(context.input(i).shape, y.shape)) all.push_back(values[place]);
      return all;
    };
    std::vector<V> made = spread(0);
    if (context.input_count() == 1)
      for (V& value : made) value = function(value, value);
    for (int i = 1; i < context.input_count(); ++i) {
      const std::vector<V> other = spread(i);
      for (size_t e = 0; e < made.size(); ++e) made[e] = function(made[e], other[e]);
    }
    store(y, made);
  }

  const Function& function_;
};

std::unique_ptr<Op> make_elementwise(const NodeInfo& node) {
  const auto found = std::ranges::find(kFunctions, std::string_view(node.op_type()), &Function::name);
  // Version 7 is the first that broadcasts as today.
  if (found == std::end(kFunctions) || node.since_version() < (found->inputs == 0 ? 8 : found->inputs == 2 ? 7 : 1))
    return nullptr;
  if (node.get_int("fmod", 0) != 0) return nullptr;
  // Pow alone takes two types, and a whole number to a broken power.
  if (found->inputs == 2 && !is_real(node.input_type(0)) && is_real(node.input_type(1))) return nullptr;
  return is_real(node.input_type(0)) ? (found->of_reals ? std::make_unique<Elementwise>(*found) : nullptr)
                                     : (found->of_whole ? std::make_unique<Elementwise>(*found) : nullptr);
}

// Fractions are cut off, and what a whole number cannot hold becomes the nearest that it can.
class Cast : public Op {
 public:
  explicit Cast(const NodeInfo& node) : to_(node.output_type(0)) {}
  void run(Context& context) const override {
    const Tensor& x = context.input(0);
    const Tensor y = context.output(0, x.shape);
    if (!is_real(x.type)) return store(y, values_of<int64_t>(x));
    std::vector<double> values = values_of<double>(x);
    if (is_real(to_) || to_ == Type::boolean) return store(y, values);
    const double low = to_ == Type::i64 ? -0x1p63 : -0x1p31;
    std::vector<int64_t> whole;
    for (double value : values)
      whole.push_back(std::isnan(value) ? 0
                      : value >= -low   ? (to_ == Type::i64 ? std::numeric_limits<int64_t>::max() : int64_t(-low) - 1)
                                        : int64_t(std::max(value, low)));
    store(y, whole);
  }

 private:
  Type to_;
};

// ---- choosing and moving

class Choose : public Op {
 public:
  void run(Context& context) const override {
    const Tensor &test = context.input(0), &yes = context.input(1), &no = context.input(2);
    const Tensor y = context.output(0, broadcast(broadcast(test.shape, yes.shape), no.shape));
    const std::array from{places(test.shape, y.shape), places(yes.shape, y.shape), places(no.shape, y.shape)};
    const size_t bytes = device::size_bytes(y.type);
    for (size_t i = 0; i < size_t(y.count()); ++i) {
      const bool takes = test.as<const bool>()[from[0][i]];
      std::memcpy(y.as<char>() + i * bytes, (takes ? yes : no).as<const char>() + from[takes ? 1 : 2][i] * bytes,
                  bytes);
    }
  }
};

class Gather : public Op {
 public:
  explicit Gather(const NodeInfo& node) : axis_(node.get_int("axis", 0)) {}
  void run(Context& context) const override {
    const Tensor &x = context.input(0), &indices = context.input(1);
    const int axis = checked_axis(axis_, x.shape.rank());
    std::vector<int64_t> dims(x.shape.dims().begin(), x.shape.dims().end());
    dims.erase(dims.begin() + axis);
    dims.insert(dims.begin() + axis, indices.shape.dims().begin(), indices.shape.dims().end());
    const Tensor y = context.output(0, Shape(dims));
    if (y.count() == 0) return;
    const size_t bytes = size_t(x.shape.count(axis + 1, x.shape.rank())) * device::size_bytes(x.type);
    const int64_t dim = x.shape[axis];
    char* to = y.as<char>();
    for (int64_t outer = 0; outer < x.shape.count(0, axis); ++outer)
      for (int64_t index : values_of<int64_t>(indices)) {
        require(index >= -dim && index < dim, "index ", index, " is outside [", -dim, ", ", dim, ")");
        std::memcpy(to, x.as<const char>() + size_t(outer * dim + (index < 0 ? index + dim : index)) * bytes, bytes);
        to += bytes;
      }
  }

 private:
  int64_t axis_;
};

// ---- making

class Range : public Op {
 public:
  void run(Context& context) const override {
    if (is_real(context.input(0).type))
      fill<double>(context);
    else
      fill<int64_t>(context);
  }

 private:
  template <class V>
  static void fill(Context& context) {
    std::array<V, 3> given;
    for (int i = 0; i < 3; ++i) {
      require(context.input(i).count() == 1, "input ", i, " has shape ", context.input(i).shape.str(),
              "; it must be a scalar");
      given[size_t(i)] = values_of<V>(context.input(i))[0];
    }
    const auto [first, limit, step] = given;
    require(step != V(0), "the step is zero");
    const int64_t count = range_count(first, limit, step);
    require(count < 1'000'000'000, "a range from ", first, " to ", limit, " by ", step, " is too long");
    const Tensor y = context.output(0, Shape{count});
    std::vector<V> values;
    for (int64_t i = 0; i < y.count(); ++i) values.push_back(first + V(i) * step);
    store(y, values);
  }
};

class ConstantOfShape : public Op {
 public:
  explicit ConstantOfShape(const NodeInfo& node) {
    if (const Tensor* const given = node.find_tensor("value")) {
      require(given->count() == 1, "value has shape ", given->shape.str(), "; one element is wanted");
      bytes_.assign(given->as<const char>(), given->as<const char>() + given->bytes());
    } else {
      bytes_.assign(sizeof(float), 0);
    }
  }
  void run(Context& context) const override {
    const Tensor y = context.output(0, Shape(host_ints(context.input(0), "shape")));
    for (size_t i = 0; i < size_t(y.count()); ++i)
      std::memcpy(y.as<char>() + i * bytes_.size(), bytes_.data(), bytes_.size());
  }

 private:
  std::vector<char> bytes_;
};

// Exporters count with it how often a tensor is repeated.
class OneHot : public Op {
 public:
  explicit OneHot(const NodeInfo& node) : axis_(node.get_int("axis", -1)) {}
  void run(Context& context) const override {
    const Tensor &indices = context.input(0), &values = context.input(2);
    const int axis = checked_axis(axis_, indices.shape.rank() + 1);
    const std::vector<int64_t> told = values_of<int64_t>(context.input(1));
    require(told.size() == 1 && told[0] > 0, "depth must be one positive number");
    require(values.count() == 2, "values has shape ", values.shape.str(), "; it must be two, off and on");
    std::vector<int64_t> dims(indices.shape.dims().begin(), indices.shape.dims().end());
    dims.insert(dims.begin() + axis, told[0]);
    const Tensor y = context.output(0, Shape(dims));
    const std::vector<int64_t> on = values_of<int64_t>(indices);
    const int64_t inner = y.shape.count(axis + 1, y.shape.rank()), depth = told[0];
    const size_t bytes = device::size_bytes(y.type);
    for (int64_t i = 0; i < y.count(); ++i) {
      const int64_t index = on[size_t(i / (inner * depth) * inner + i % inner)];
      const bool is_on = i / inner % depth == (index < 0 ? index + depth : index);
      std::memcpy(y.as<char>() + size_t(i) * bytes, values.as<const char>() + (is_on ? bytes : 0), bytes);
    }
  }
  static std::unique_ptr<Op> make(const NodeInfo& node) {
    const bool is_whole = !is_real(node.input_type(0)) && !is_real(node.input_type(1));
    return is_whole ? std::make_unique<OneHot>(node) : nullptr;
  }

 private:
  int64_t axis_;
};

// Of all elements, to a scalar or to as many dimensions of one.
class Reduce : public Op {
 public:
  explicit Reduce(const NodeInfo& node, const Function& function)
      : function_(function), keeps_(node.get_int("keepdims", 1) == 1) {}
  static std::unique_ptr<Op> make(const NodeInfo& node) {
    constexpr std::pair<std::string_view, std::string_view> kReductions[] = {
        {"ReduceProd", "Mul"}, {"ReduceSum", "Add"}, {"ReduceMax", "Max"}, {"ReduceMin", "Min"}};
    const auto dims = node.input_dims(0);
    const auto axes = node.find_ints("axes");
    // Reductions over all axes alone. A vector is always reduced so, unless an empty list of axes asks for no
    // reduction.
    if (!dims || dims->size() > 1 || node.get_int("noop_with_empty_axes", 0) != 0 || (axes && axes->size() > 1))
      return nullptr;
    for (const auto& [name, function] : kReductions)
      if (node.op_type() == name)
        return std::make_unique<Reduce>(node, *std::ranges::find(kFunctions, function, &Function::name));
    return nullptr;
  }
  void run(Context& context) const override {
    if (const Tensor* const axes = context.find_input(1))
      for (const int64_t axis : values_of<int64_t>(*axes)) checked_axis(axis, context.input(0).shape.rank());
    if (is_real(context.input(0).type))
      reduce(context, function_.of_reals);
    else
      reduce(context, function_.of_whole);
  }

 private:
  template <class V>
  void reduce(Context& context, V (*function)(V, V)) const {
    const std::vector<V> values = values_of<V>(context.input(0));
    V all = values.empty() ? of_nothing<V>(context.input(0).type) : values[0];
    for (size_t i = 1; i < values.size(); ++i) all = function(all, values[i]);
    const std::vector<int64_t> ones(keeps_ ? size_t(context.input(0).shape.rank()) : 0, 1);
    store(context.output(0, Shape(ones)), std::vector<V>{all});
  }
  // The value that changes no other, as the kernels have it: of infinities, or of the type's range.
  template <class V>
  V of_nothing(Type type) const {
    const std::string_view name = function_.name;
    if (name == "Add" || name == "Mul") return V(name == "Mul");
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    if constexpr (std::is_same_v<V, double>) return name == "Min" ? kInfinity : -kInfinity;
    return with_type(type, [&]<class T>(T) {
      using Limits = std::numeric_limits<T>;
      return V(name == "Min" ? Limits::max() : Limits::lowest());
    });
  }

  const Function& function_;
  bool keeps_;
};

bool has_served_types(const NodeInfo& node) {
  for (int i = 0; i < node.input_count(); ++i)
    if (node.has_input(i) && !kServed.has(node.input_type(i))) return false;
  for (int i = 0; i < node.output_count(); ++i)
    if (node.has_output(i) && !kServed.has(node.output_type(i))) return false;
  return true;
}

}  // namespace

std::unique_ptr<Op> make_host_op(const NodeInfo& node) {
  if (!node.domain().empty() || !has_served_types(node)) return nullptr;
  const std::string& op = node.op_type();
  if (const OpRow* const row = find_row(node.domain(), op, node.since_version()); row && row->anywhere)
    return why_declined(*row, node).empty() ? row->make(node) : nullptr;
  if (op == "Cast" && node.since_version() >= 6) return std::make_unique<Cast>(node);
  if (op == "Where") return std::make_unique<Choose>();
  if (op == "Gather") return std::make_unique<Gather>(node);
  if (op == "Range") return std::make_unique<Range>();
  if (op == "ConstantOfShape") return std::make_unique<ConstantOfShape>(node);
  if (op == "OneHot") return OneHot::make(node);
  if (op.starts_with("Reduce")) return Reduce::make(node);
  return make_elementwise(node);
}

}  // namespace encore::ops
