#include "ops/elementwise/instructions.h"

#include <algorithm>
#include <array>
#include <bit>

namespace encore::ops {
namespace {

using Kind = Instruction::Kind;
using From = Instruction::From;
using Operand = Expression::Operand;

class Compiler {
 public:
  Compiler(const Expression& expression, const std::vector<int>& outputs)
      : expression_(expression), outputs_(outputs), uses_(expression.values.size()), slot_of_(uses_.size(), -1) {
    slots_.fill(-1);
  }

  std::optional<std::vector<Instruction>> run() {
    count_uses();
    for (const int output : outputs_) {
      const int value = expression_.outputs[size_t(output)];
      if (!is_stored(value)) make(value, 0, 0);
      if (has_failed_) return std::nullopt;
    }
    return std::move(made_);
  }

 private:
  static constexpr int kDeepest = 2 * kMostInstructions;

  // Of what is wanted alone.
  void count_uses() {
    std::vector<bool> wanted(uses_.size());
    for (const int output : outputs_) wanted[size_t(expression_.outputs[size_t(output)])] = true;
    for (size_t v = uses_.size(); v-- > 0;) {
      if (!wanted[v]) continue;
      for (const Operand& operand : expression_.values[v].operands)
        if (operand.kind == Operand::Kind::value) {
          wanted[size_t(operand.index)] = true;
          ++uses_[size_t(operand.index)];
        }
    }
  }

  bool is_stored(int value) const { return std::ranges::find(stored_, value) != stored_.end(); }
  bool is_at_hand(const Operand& operand) const {
    return operand.kind != Operand::Kind::value || slot_of_[size_t(operand.index)] >= 0;
  }

  void emit(Instruction instruction) {
    if (int(made_.size()) == kMostInstructions) has_failed_ = true;
    if (!has_failed_) made_.push_back(instruction);
  }

  // How an instruction reads what is at hand; numbers are p or q.
  Instruction::Operand read(const Operand& operand, float& number) {
    switch (operand.kind) {
      case Operand::Kind::input: return {From::input, uint8_t(operand.index)};
      case Operand::Kind::number: number = operand.number; return {From::number, 0};
      case Operand::Kind::integer: number = std::bit_cast<float>(int32_t(operand.index)); return {From::integer, 0};
      default: break;
    }
    const int slot = slot_of_[size_t(operand.index)];
    used(operand.index);
    return {From::slot, uint8_t(slot)};
  }
  // A slot is free once nobody reads it any more.
  void used(int value) {
    if (--uses_[size_t(value)] > 0) return;
    if (const int slot = slot_of_[size_t(value)]; slot >= 0) slots_[size_t(slot)] = -1;
    slot_of_[size_t(value)] = -1;
  }
  void save(int value) {
    const auto free = std::ranges::find(slots_, -1);
    if (free == slots_.end()) {
      has_failed_ = true;
      return;
    }
    *free = value;
    slot_of_[size_t(value)] = int(free - slots_.begin());
    emit({.kind = Kind::save, .a = {From::slot, uint8_t(free - slots_.begin())}});
  }

  // Brings the operand to the accumulator.
  void load(const Operand& operand, int depth) {
    if (!is_at_hand(operand)) make(operand.index, depth, 1);
    if (has_failed_) return;
    if (operand.kind == Operand::Kind::value && operand.index == accumulated_) return used(operand.index);
    Instruction instruction{.kind = Kind::load};
    instruction.a = read(operand, instruction.p);
    emit(instruction);
    accumulated_ = -1;
  }

  // Makes a value, which is in the accumulator then, and in a slot if more than so many will read it.
  void make(int v, int depth, int readers) {
    if (depth > kDeepest) has_failed_ = true;
    if (has_failed_) return;
    const Expression::Value& value = expression_.values[size_t(v)];
    const std::vector<Operand>& operands = value.operands;
    // One goes through the accumulator, and the others are at hand then.
    const size_t through = value.call.function != ScalarFunction::select && operands.size() > 1 &&
                           is_at_hand(operands[0]) && !is_at_hand(operands[1]);
    for (size_t i = 0; i < operands.size(); ++i)
      if (i != through && !is_at_hand(operands[i])) make(operands[i].index, depth + 1, 0);
    load(operands[through], depth + 1);
    if (has_failed_) return;
    const bool is_swapped = through == 1;
    Instruction call{.kind = value.of_integers ? is_swapped ? Kind::swapped_integer_call : Kind::integer_call
                             : is_swapped      ? Kind::swapped_call
                                               : Kind::call,
                     .function = value.call.function,
                     .type = uint8_t(value.type),
                     .p = value.call.p,
                     .q = value.call.q};
    if (operands.size() > 1) call.a = read(operands[is_swapped ? 0 : 1], call.p);
    if (operands.size() > 2) call.b = read(operands[2], call.q);
    emit(call);
    accumulated_ = v;
    for (const int output : outputs_)
      if (expression_.outputs[size_t(output)] == v) {
        emit({.kind = Kind::store, .type = uint8_t(value.type), .a = {From::nowhere, uint8_t(output)}});
        stored_.push_back(v);
      }
    if (uses_[size_t(v)] > readers) save(v);
  }

  const Expression& expression_;
  const std::vector<int>& outputs_;
  std::vector<int> uses_, slot_of_;    // by value: who will still read it, and its slot or -1
  std::array<int, kMostSlots> slots_;  // the values in them, or -1
  std::vector<int> stored_;
  int accumulated_ = -1;  // the value in the accumulator
  std::vector<Instruction> made_;
  bool has_failed_ = false;
};

}  // namespace

std::optional<std::vector<Instruction>> instructions_for(const Expression& expression,
                                                         const std::vector<int>& outputs) {
  return Compiler(expression, outputs).run();
}

}  // namespace encore::ops
