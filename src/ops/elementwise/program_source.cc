#include "ops/elementwise/program_source.h"

#include <algorithm>
#include <bit>
#include <ranges>

#include "device/error.h"

namespace encore::ops {
namespace {

using Operand = Expression::Operand;
using Way = ProgramLayout::Way;

const char* type_name(Type type) {
  switch (type) {
    case Type::f16: return "Half";
    case Type::bf16: return "BFloat16";
    case Type::boolean: return "bool";
    case Type::u8: return "uint8_t";
    case Type::i8: return "int8_t";
    case Type::i32: return "int32_t";
    case Type::i64: return "int64_t";
    default: return "float";
  }
}

std::string bits_of(float number) { return text(std::bit_cast<uint32_t>(number), 'u'); }

std::string operand_text(const Operand& operand) {
  switch (operand.kind) {
    case Operand::Kind::input: return text('x', operand.index);
    case Operand::Kind::value: return text('v', operand.index);
    case Operand::Kind::integer: return text("integer<kPack>(", operand.index, ')');
    default: return text("number<kPack>(", bits_of(operand.number), ')');
  }
}

// Where a walk is at the indices of the output's pack.
std::string walk_text(const ProgramLayout& layout, size_t walk) {
  const ProgramLayout::Walk& by = layout.walks[walk];
  std::string place;
  for (size_t d = 0; d < layout.sizes.size(); ++d) {
    if (by.strides[d] == 0) continue;
    std::string index = text('i', d);
    if (by.shifts[d])
      index = text("rolled(i", d, ", at.walks[", walk, "].shifts[", d, "], at.sizes[", d, "].divisor())");
    if (by.strides[d] != 1) index = text(index, " * at.walks[", walk, "].strides[", d, ']');
    place += place.empty() ? index : text(" + ", index);
  }
  return place;
}

std::string place_text(const ProgramLayout::Input& input) {
  return input.way == Way::flat ? "first" : input.way == Way::single ? "0" : text('w', input.walk);
}

std::string load_text(const ProgramLayout& layout, size_t i) {
  const ProgramLayout::Input& input = layout.inputs[i];
  const char* const how = input.repeats ? "one" : input.is_whole ? "pack" : "each";
  const std::string from =
      input.join < 0 ? text("at.inputs[", i, "], ", place_text(input)) : text('p', input.index, ", 0");
  return text("  const auto x", input.index, " = ", how, '<', type_name(input.type), ", kPack>(", from, ");\n");
}

// All addresses first, and what nobody writes; then the rest.
std::string loads_text(const ProgramLayout& layout, const std::vector<bool>& constant) {
  std::string early, late = "  wait();\n";
  for (size_t i = 0; i < layout.inputs.size(); ++i) {
    const ProgramLayout::Input& input = layout.inputs[i];
    if (input.join >= 0) {
      const ProgramLayout::Join& join = layout.joins[size_t(input.join)];
      early += text("  const char* const p", input.index, " = at.joined.find(", input.join, ", ", join.begin, ", ",
                    join.end, ", ", place_text(input), ", ", std::countr_zero(device::size_bytes(input.type)), ");\n");
    }
    (input.join < 0 && constant[size_t(input.index)] ? early : late) += load_text(layout, i);
  }
  return early + late;
}

std::string call_text(const Expression::Value& value) {
  const auto operand = [&](size_t i) { return operand_text(value.operands[std::min(i, value.operands.size() - 1)]); };
  return text("call<ScalarFunction(", int(value.call.function), "), ", type_name(value.type), ">(",
              bits_of(value.call.p), ", ", bits_of(value.call.q), ", ", operand(0), ", ", operand(1), ", ", operand(2),
              ')');
}

std::vector<bool> wanted_values(const Expression& expression, const std::vector<int>& outputs) {
  std::vector<bool> wanted(expression.values.size());
  for (const int output : outputs) wanted[size_t(expression.outputs[size_t(output)])] = true;
  for (size_t v = wanted.size(); v-- > 0;)
    for (const Operand& operand : expression.values[v].operands)
      if (wanted[v] && operand.kind == Operand::Kind::value) wanted[size_t(operand.index)] = true;
  return wanted;
}

}  // namespace

std::string source_of(const Expression& expression, const std::vector<int>& outputs, const ProgramLayout& layout,
                      const std::vector<bool>& constant) {
  std::string source = text(
      "#include \"ops/elementwise/compiled_program.h\"\n\n"
      "namespace encore::compiled {\n\n"
      "using Arguments = ops::",
      layout.joins.empty() ? "" : "Joining",
      "ProgramArguments;\n"
      "template <class Wait>\nDEVICE_FN void body(const Arguments& at, int64_t index, Wait wait) {\n"
      "  constexpr int kPack = ",
      layout.pack, ";\n  const int first = int(index) * kPack;\n");
  if (!layout.walks.empty()) {
    source += "  int rest = first;\n";
    for (size_t d = 0; d + 1 < layout.sizes.size(); ++d)
      source += text("  int i", d, ";\n  rest = at.sizes[", d, "](rest, i", d, ");\n");
    source += text("  const int i", layout.sizes.size() - 1, " = rest;\n");
    for (size_t walk = 0; walk < layout.walks.size(); ++walk)
      source += text("  const int w", walk, " = ", walk_text(layout, walk), ";\n");
  }
  source += loads_text(layout, constant);
  const std::vector<bool> wanted = wanted_values(expression, outputs);
  for (size_t v = 0; v < wanted.size(); ++v)
    if (wanted[v])
      source += text("  const auto v", v, " = ", call_text(expression.values[v]), ";  // ",
                     name(expression.values[v].call.function), '\n');
  for (const int output : outputs) {
    const int value = expression.outputs[size_t(output)];
    source += text("  store<", type_name(expression.values[size_t(value)].type), ">(at.outputs[", output, "], first, v",
                   value, ");\n");
  }
  return source + "}\n\n}  // namespace encore::compiled\n";
}

}  // namespace encore::ops
