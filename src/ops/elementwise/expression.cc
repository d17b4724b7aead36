#include "ops/elementwise/expression.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "device/error.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

using enum ScalarFunction;

struct Row {
  ScalarFunction function;
  const char* name;
  int operands;
  // The operator, from this version on, and its attributes, if it has any.
  const char* op;
  int since = 1;
  const char *p = nullptr, *q = nullptr;
  float p_default = 0, q_default = 0;
};
// Before version 7 operators of two tensors broadcast otherwise.
constexpr Row kRows[] = {
    {add, "add", 2, "Add", 7},
    {sub, "sub", 2, "Sub", 7},
    {mul, "mul", 2, "Mul", 7},
    {quotient, "div", 2, "Div", 7},
    {least, "min", 2, "Min", 8},
    {greatest, "max", 2, "Max", 8},
    {power, "pow", 2, "Pow", 7},
    {same, "equal", 2, "Equal", 7},
    {below, "less", 2, "Less", 7},
    {below_or_same, "less_or_equal", 2, "LessOrEqual", 12},
    {above, "greater", 2, "Greater", 7},
    {above_or_same, "greater_or_equal", 2, "GreaterOrEqual", 12},
    {both, "and", 2, "And", 7},
    {either, "or", 2, "Or", 7},
    {one_only, "xor", 2, "Xor", 7},
    {remainder, "mod", 2, "Mod"},
    {remainder_of_c, "fmod", 2, ""},  // Mod, too
    {select, "where", 3, "Where"},
    {cast, "cast", 1, "Cast"},
    {abs, "abs", 1, "Abs"},
    {neg, "neg", 1, "Neg"},
    {sign, "sign", 1, "Sign"},
    {exp, "exp", 1, "Exp"},
    {log, "log", 1, "Log"},
    {sqrt, "sqrt", 1, "Sqrt"},
    {reciprocal, "reciprocal", 1, "Reciprocal"},
    {erf, "erf", 1, "Erf"},
    {ceil, "ceil", 1, "Ceil"},
    {floor, "floor", 1, "Floor"},
    {round, "round", 1, "Round"},
    {inverted, "not", 1, "Not"},
    {relu, "relu", 1, "Relu"},
    {leaky_relu, "leaky_relu", 1, "LeakyRelu", 1, "alpha", nullptr, 0.01f},
    {elu, "elu", 1, "Elu", 1, "alpha", nullptr, 1},
    {selu, "selu", 1, "Selu", 1, "alpha", "gamma", 1.67326319217681884765625f, 1.05070102214813232421875f},
    {sigmoid, "sigmoid", 1, "Sigmoid"},
    {hard_sigmoid, "hard_sigmoid", 1, "HardSigmoid", 1, "alpha", "beta", 0.2f, 0.5f},
    {hard_swish, "hard_swish", 1, "HardSwish"},
    {softplus, "softplus", 1, "Softplus"},
    {softsign, "softsign", 1, "Softsign"},
    {tanh, "tanh", 1, "Tanh"},
    {celu, "celu", 1, "Celu", 1, "alpha", nullptr, 1},
    {mish, "mish", 1, "Mish"},
    {swish, "swish", 1, "Swish", 1, "alpha", nullptr, 1},
    {gelu, "gelu", 1, "Gelu"},
    {tanh_gelu, "tanh_gelu", 1, ""},  // Gelu, too
    // Of linear quantization, whose operators have these numbers as inputs.
    {to_uint8, "to_uint8", 1, "", 1, "scale", "zero_point"},
    {to_int8, "to_int8", 1, "", 1, "scale", "zero_point"},
    {from_linear, "from_linear", 1, "", 1, "scale", "zero_point"},
};
constexpr ScalarFunction kOfIntegers[] = {add,           sub,      mul,  quotient, remainder,     remainder_of_c,
                                          least,         greatest, same, below,    below_or_same, above,
                                          above_or_same, select,   cast, abs,      neg,           sign};
constexpr Types kComputed = kHalves | kIndices | Types{Type::f32, Type::boolean};

const Row& row_of(ScalarFunction function) { return *std::ranges::find(kRows, function, &Row::function); }

std::optional<ScalarCall> microsoft_call(const NodeInfo& node) {
  if (node.has_input(1)) return std::nullopt;  // a bias
  if (node.op_type() == "QuickGelu") return ScalarCall{swish, node.get_float("alpha", 1.702f)};
  if (node.op_type() == "FastGelu") return ScalarCall{tanh_gelu};
  if (node.op_type() == "Gelu") return ScalarCall{gelu};
  return std::nullopt;
}

// The shortest text that reads as the same number.
std::string text_of(float number) {
  std::array<char, 32> text;
  return {text.data(), std::to_chars(text.begin(), text.end(), number).ptr};
}

class Reader {
 public:
  explicit Reader(std::string_view text) : rest_(text) {}

  Expression run() {
    while (takes("join x")) read_join();
    while (takes("part x")) read_part();
    while (takes("roll x")) read_roll();
    while (!takes("out ")) read_value();
    do made_.outputs.push_back(value());
    while (takes(", "));
    check(rest_.empty() && !made_.values.empty());
    return std::move(made_);
  }

 private:
  void check(bool is_well) const {
    if (!is_well) fail(Code::invalid_input, "an expression cannot be read from '", rest_, "' on");
  }
  bool takes(std::string_view what) {
    if (!rest_.starts_with(what)) return false;
    rest_.remove_prefix(what.size());
    return true;
  }
  std::string_view word() {
    const size_t end = std::min(rest_.find_first_of(":=[(),; "), rest_.size());
    const std::string_view word = rest_.substr(0, end);
    rest_.remove_prefix(end);
    return word;
  }
  template <class Number>
  Number number() {
    Number read{};
    const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), read);
    check(error == std::errc());
    rest_.remove_prefix(size_t(end - rest_.data()));
    return read;
  }
  int value() {
    check(takes("v"));
    const int index = number<int>();
    check(index >= 0 && index < int(made_.values.size()));
    return index;
  }

  void read_join() {
    Expression::Join join{number<int>()};
    check(join.input >= 0 && takes(" to x"));
    join.last = number<int>();
    check(join.last >= join.input && takes(" along "));
    join.axis = number<int>();
    check(join.axis < 0 && takes("; "));
    made_.joins.push_back(join);
  }

  void read_part() {
    Expression::Part part{number<int>()};
    check(part.input >= 0 && takes(" along "));
    part.axis = number<int>();
    check(part.axis < 0 && takes(" from "));
    part.begin = number<int64_t>();
    check(part.begin >= 0 && takes(" to "));
    part.end = number<int64_t>();
    check(part.end >= part.begin && takes("; "));
    made_.parts.push_back(part);
  }

  void read_roll() {
    Expression::Roll roll{number<int>()};
    check(roll.input >= 0 && takes(" along "));
    roll.axis = number<int>();
    check(roll.axis < 0 && takes(" by "));
    roll.shift = number<int64_t>();
    check(roll.shift >= 0 && takes("; "));
    made_.rolls.push_back(roll);
  }

  void read_value() {
    check(takes("v") && number<int>() == int(made_.values.size()) && takes(": "));
    Expression::Value made{{}, type(), {}};
    check(takes(" = "));
    const std::string_view called = word();
    const Row* const row = std::ranges::find_if(kRows, [&](const Row& one) { return one.name == called; });
    check(row != std::end(kRows));
    made.call.function = row->function;
    check((made.type == Type::u8) == (row->function == to_uint8));
    check((made.type == Type::i8) == (row->function == to_int8));
    if (takes("[")) {
      made.call.p = number<float>();
      if (takes(", ")) made.call.q = number<float>();
      check(takes("]"));
    }
    check(takes("("));
    do made.operands.push_back(operand());
    while (takes(", "));
    check(int(made.operands.size()) == row->operands && takes("); "));
    made_.values.push_back(std::move(made));
  }
  Type type() {
    const std::string_view name = word();
    for (const Type type : {Type::f32, Type::f16, Type::bf16, Type::boolean, Type::i32, Type::i64, Type::u8, Type::i8})
      if (name == device::name(type)) return type;
    check(false);
    return {};
  }
  Expression::Operand operand() {
    using Kind = Expression::Operand::Kind;
    if (takes("x")) {
      const int index = number<int>();
      check(index >= 0);
      return {Kind::input, index};
    }
    if (rest_.starts_with("v")) return {Kind::value, value()};
    if (takes("int ")) return {Kind::integer, number<int32_t>()};
    return {Kind::number, 0, number<float>()};
  }

  std::string_view rest_;
  Expression made_;
};

}  // namespace

const char* name(ScalarFunction function) { return row_of(function).name; }
int operands_of(ScalarFunction function) { return row_of(function).operands; }
bool is_of_integers(ScalarFunction function) {
  return std::ranges::find(kOfIntegers, function) != std::end(kOfIntegers);
}
bool is_division(ScalarFunction function) {
  return function == quotient || function == remainder || function == remainder_of_c;
}

std::optional<ScalarCall> scalar_call(const NodeInfo& node) {
  const bool is_cast = node.domain().empty() && node.op_type() == "Cast";
  bool has_integers = kIndices.has(node.output_type(0));
  for (int i = 0; i < node.input_count(); ++i) {
    if (!node.has_input(i)) continue;
    const Type type = node.input_type(i);
    if (!kComputed.has(type) && !(is_cast && type == Type::u8)) return std::nullopt;
    has_integers = has_integers || kIndices.has(type);
  }
  if (!kComputed.has(node.output_type(0))) return std::nullopt;
  if (node.domain() == kMicrosoft) return has_integers ? std::nullopt : microsoft_call(node);
  if (!node.domain().empty()) return std::nullopt;
  const Row* const row = std::ranges::find_if(kRows, [&](const Row& one) { return node.op_type() == one.op; });
  if (row == std::end(kRows) || node.since_version() < row->since) return std::nullopt;
  if (node.input_count() != row->operands) return std::nullopt;
  ScalarCall call{row->function};
  if (row->p) call.p = node.get_float(row->p, row->p_default);
  if (row->q) call.q = node.get_float(row->q, row->q_default);
  if (call.function == gelu && node.get_string("approximate", "none") == "tanh") call.function = tanh_gelu;
  if (call.function == remainder && node.get_int("fmod", 0) != 0) call.function = remainder_of_c;
  const bool is_remainder = call.function == remainder || call.function == remainder_of_c;
  if (has_integers ? !is_of_integers(call.function) : is_remainder) return std::nullopt;
  if (!std::isfinite(call.p) || !std::isfinite(call.q)) return std::nullopt;
  // An exponent of another type is converted, and bools are compared as bytes.
  if (call.function == power && node.input_type(0) != node.input_type(1)) return std::nullopt;
  return call;
}

std::string text_of(const Expression& expression) {
  std::string text;
  for (const Expression::Join& join : expression.joins)
    text += encore::text("join x", join.input, " to x", join.last, " along ", join.axis, "; ");
  for (const Expression::Part& part : expression.parts)
    text += encore::text("part x", part.input, " along ", part.axis, " from ", part.begin, " to ", part.end, "; ");
  for (const Expression::Roll& roll : expression.rolls)
    text += encore::text("roll x", roll.input, " along ", roll.axis, " by ", roll.shift, "; ");
  for (size_t v = 0; v < expression.values.size(); ++v) {
    const Expression::Value& value = expression.values[v];
    const Row& row = row_of(value.call.function);
    text += encore::text("v", v, ": ", device::name(value.type), " = ", row.name);
    if (row.p) text += "[" + text_of(value.call.p) + (row.q ? ", " + text_of(value.call.q) : "") + "]";
    for (size_t i = 0; i < value.operands.size(); ++i) {
      const Expression::Operand& operand = value.operands[i];
      using enum Expression::Operand::Kind;
      text += i == 0 ? "(" : ", ";
      text += operand.kind == number ? text_of(operand.number)
                                     : (operand.kind == input   ? "x"
                                        : operand.kind == value ? "v"
                                                                : "int ") +
                                           std::to_string(operand.index);
    }
    text += "); ";
  }
  for (size_t i = 0; i < expression.outputs.size(); ++i)
    text += (i == 0 ? "out v" : ", v") + std::to_string(expression.outputs[i]);
  return text;
}

Expression expression_from(std::string_view text) { return Reader(text).run(); }

void tell_integers(Expression& expression, const std::vector<Type>& inputs) {
  using Kind = Expression::Operand::Kind;
  for (Expression::Value& value : expression.values) {
    const Expression::Operand& operand = value.operands[value.call.function == select ? 1 : 0];
    const Type type = operand.kind == Kind::input   ? inputs[size_t(operand.index)]
                      : operand.kind == Kind::value ? expression.values[size_t(operand.index)].type
                                                    : Type::undefined;
    value.of_integers = operand.kind == Kind::integer || kIndices.has(type);
  }
  const bool has_any = std::ranges::any_of(expression.values, [](const Expression::Value& value) {
    return kIndices.has(value.type) || (value.of_integers && value.call.function != cast);
  });
  if (!has_any)
    for (Expression::Value& value : expression.values) value.of_integers = false;
}

bool has_integers(const Expression& expression) {
  return std::ranges::any_of(
      expression.values, [](const Expression::Value& value) { return value.of_integers || kIndices.has(value.type); });
}

}  // namespace encore::ops
