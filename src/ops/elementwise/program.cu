#include "ops/elementwise/program.h"

#include <algorithm>
#include <bit>
#include <compare>
#include <numeric>

#include "ops/elementwise/index_space.h"
#include "ops/elementwise/interpreter.h"
#include "ops/overlap.h"
#include "ops/shape/strided.h"

namespace encore::ops {
namespace {

constexpr int kPacked = 4;

// What makes all outputs; none if that is too much for a kernel.
std::optional<std::vector<Instruction>> whole_program(const Expression& expression, int inputs) {
  if (inputs > kMostProgramInputs || int(expression.outputs.size()) > kMostProgramOutputs) return std::nullopt;
  std::vector<int> all(expression.outputs.size());
  std::iota(all.begin(), all.end(), 0);
  return instructions_for(expression, all);
}

class ElementwiseOp : public Op {
 public:
  ElementwiseOp(const NodeInfo& node, Expression expression) : expression_(std::move(expression)) {
    auto all = whole_program(expression_, node.input_count());
    require(all.has_value(), "the expression does not fit in a program");
    all_ = std::move(*all);
    for (const Expression::Value& value : expression_.values)
      for (const Expression::Operand& operand : value.operands)
        require(operand.kind != Expression::Operand::Kind::input || operand.index < node.input_count(),
                "the expression reads input ", operand.index, " of ", node.input_count());
    for (const Expression::Part& part : expression_.parts)
      require(part.input < node.input_count(), "the expression reads a part of input ", part.input, " of ",
              node.input_count());
    for (const Expression::Roll& roll : expression_.rolls)
      require(roll.input < node.input_count(), "the expression rolls input ", roll.input, " of ", node.input_count());
  }

  void run(Context& context) const override {
    std::vector<Source> sources;
    for (int k = 0; k < context.input_count(); ++k) sources.emplace_back(context.input(k).shape, k, expression_.parts);
    const std::vector<Shape> shapes = shapes_of_values(sources);
    std::vector<Tensor> outputs;
    for (size_t i = 0; i < expression_.outputs.size(); ++i)
      outputs.push_back(context.output(int(i), shapes[size_t(expression_.outputs[i])]));
    // All outputs have one shape, unless a model's symbols promise more than its tensors keep.
    std::vector<bool> done(outputs.size());
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (done[i]) continue;
      std::vector<int> alike;
      for (size_t other = i; other < outputs.size(); ++other)
        if (outputs[other].shape == outputs[i].shape) {
          alike.push_back(int(other));
          done[other] = true;
        }
      launch(context, alike.size() == outputs.size() ? all_ : *instructions_for(expression_, alike), sources, outputs,
             alike);
    }
  }

 private:
  std::vector<Shape> shapes_of_values(const std::vector<Source>& sources) const {
    std::vector<Shape> shapes;
    for (const Expression::Value& value : expression_.values) {
      Shape shape;
      for (const Expression::Operand& operand : value.operands)
        if (operand.kind == Expression::Operand::Kind::input)
          shape = broadcast(shape, sources[size_t(operand.index)].shape);
        else if (operand.kind == Expression::Operand::Kind::value)
          shape = broadcast(shape, shapes[size_t(operand.index)]);
      shapes.push_back(std::move(shape));
    }
    return shapes;
  }

  void launch(Context& context, const std::vector<Instruction>& instructions, const std::vector<Source>& sources,
              std::vector<Tensor> outputs, const std::vector<int>& made) const {
    const Shape shape = outputs[size_t(made[0])].shape;
    if (shape.count() == 0) return;
    std::vector<bool> reads(size_t(context.input_count()));
    for (const Instruction& one : instructions)
      for (const Instruction::Operand& operand : {one.a, one.b})
        if (operand.from == Instruction::From::input) reads[operand.index] = true;
    std::vector<Source> inputs(reads.size());
    for (size_t k = 0; k < inputs.size(); ++k)
      if (reads[k]) inputs[k] = sources[k];
    std::vector<Expression::Roll> rolls;
    for (const Expression::Roll& roll : expression_.rolls) {
      if (!reads[size_t(roll.input)]) continue;
      const Shape& input = inputs[size_t(roll.input)].shape;
      require(-roll.axis <= input.rank() && roll.shift < input[input.rank() + roll.axis], "input ", roll.input, " ",
              input.str(), " cannot be rolled along axis ", roll.axis, " by ", roll.shift);
      if (input[input.rank() + roll.axis] > 1) rolls.push_back(roll);
    }
    const IndexSpace space(shape, inputs, rolls);
    // An application may have bound one buffer as an input and an output, of which all is read before any is written.
    const std::vector<Tensor> wanted = outputs;
    for (const int i : made) {
      Tensor& output = outputs[size_t(i)];
      const auto is_in_the_way = [&](size_t k) {
        if (!reads[k] || !overlap(context.input(int(k)), output)) return false;
        const Tensor& input = context.input(int(k));
        return made.size() > 1 || !space.is_flat(k) || inputs[k].first != 0 || input.data != output.data ||
               device::size_bytes(input.type) != device::size_bytes(output.type);
      };
      for (size_t k = 0; k < reads.size(); ++k)
        if (output.data == wanted[size_t(i)].data && is_in_the_way(k)) output.data = context.scratch(output.bytes());
    }
    require(int(space.sizes.size()) <= kMostProgramDims, "inputs are broadcast along more than ", kMostProgramDims,
            " dimensions");
    if (space.packs(kPacked) && are_aligned(outputs) && are_small(context, reads, space.count))
      interpret<kPacked>(context, space, instructions, inputs, reads, outputs);
    else
      interpret<1>(context, space, instructions, inputs, reads, outputs);
    for (const int i : made)
      copy_bytes(context.stream(), outputs[size_t(i)].data, wanted[size_t(i)].data, int64_t(wanted[size_t(i)].bytes()));
  }

  template <int kPack>
  static void interpret(Context& context, const IndexSpace& space, std::vector<Instruction> instructions,
                        const std::vector<Source>& sources, const std::vector<bool>& reads,
                        const std::vector<Tensor>& outputs) {
    using Program = ElementwiseProgram<kPack>;
    Program program{};
    program.rank = int(space.sizes.size()), program.length = int(instructions.size());
    program.packs = space.count / kPack;
    using Index = typename Program::Index;
    for (size_t d = 0; d < space.sizes.size(); ++d) {
      if constexpr (kPack == 1)
        program.sizes[d] = device::Divider(space.sizes[d], space.count);
      else
        program.sizes[d] = device::SmallDivider(int(space.sizes[d]));
    }
    // Inputs that walk alike come one after the other.
    const auto compare = [&](size_t a, size_t b) {
      for (size_t d = 0; d < space.sizes.size(); ++d) {
        const auto of = [&](size_t k) { return std::pair(space.strides[d][k], space.shifts[d][k]); };
        if (const auto order = of(a) <=> of(b); order != 0) return order;
      }
      return std::strong_ordering::equal;
    };
    std::vector<size_t> order;
    for (size_t k = 0; k < reads.size(); ++k)
      if (reads[k]) order.push_back(k);
    std::ranges::stable_sort(order, [&](size_t a, size_t b) { return compare(a, b) < 0; });
    std::vector<uint8_t> place(reads.size());
    int walks = 0;
    for (size_t i = 0; i < order.size(); ++i) {
      const size_t k = order[i];
      const Tensor& tensor = context.input(int(k));
      auto& input = program.inputs[i];
      place[k] = uint8_t(i);
      const auto bytes = device::size_bytes(tensor.type);
      input.data = static_cast<const char*>(tensor.data) + sources[k].first * int64_t(bytes);
      input.type = tensor.type, input.log_bytes = uint8_t(std::countr_zero(bytes));
      input.repeats = space.strides[0][k] == 0;
      input.is_whole = !input.repeats && kPack * bytes >= 4 && space.are_rows_aligned(k, kPack) &&
                       reinterpret_cast<uintptr_t>(input.data) % (kPack * bytes) == 0;
      if (space.is_flat(k) || space.is_single(k)) {
        input.way = space.is_flat(k) ? Program::kFlat : Program::kSingle;
        continue;
      }
      if (i == 0 || compare(k, order[i - 1]) != 0) {
        auto& walk = program.walks[walks++];
        for (size_t d = 0; d < space.sizes.size(); ++d)
          walk.strides[d] = Index(space.strides[d][k]), walk.shifts[d] = Index(space.shifts[d][k]);
        walk.is_rolled = space.is_rolled(k);
      }
      input.way = uint8_t(Program::kWalks + walks - 1);
    }
    program.read = int(order.size());
    for (Instruction& one : instructions)
      for (Instruction::Operand* operand : {&one.a, &one.b}) {
        if (operand->from == Instruction::From::input) operand->index = place[operand->index];
        if (operand->from == Instruction::From::slot)
          *operand = {Instruction::From::input, uint8_t(program.read + operand->index)};
      }
    std::ranges::copy(instructions, program.instructions);
    for (size_t i = 0; i < outputs.size(); ++i) program.outputs[i] = outputs[i].data;
    device::block_kernel<typename Program::Shared>(context.stream(),
                                                   {(program.packs + Program::kThreads - 1) / Program::kThreads,
                                                    Program::kThreads, Program::file_bytes(program.read + kMostSlots)},
                                                   program);
  }

  // Whether 31 bits count the elements of each.
  static bool are_small(Context& context, const std::vector<bool>& reads, int64_t count) {
    for (size_t k = 0; k < reads.size(); ++k)
      if (reads[k]) count = std::max(count, context.input(int(k)).count());
    return count <= INT32_MAX;
  }
  static bool are_aligned(const std::vector<Tensor>& outputs) {
    return std::ranges::all_of(outputs, [](const Tensor& tensor) {
      return reinterpret_cast<uintptr_t>(tensor.data) % (kPacked * device::size_bytes(tensor.type)) == 0;
    });
  }

  Expression expression_;
  std::vector<Instruction> all_;
};

}  // namespace

bool fits_in_a_program(const Expression& expression, int inputs) {
  return whole_program(expression, inputs).has_value();
}

std::unique_ptr<Op> make_elementwise_program(const NodeInfo& node) {
  return std::make_unique<ElementwiseOp>(node, expression_from(node.get_string(kExpression, "")));
}

std::unique_ptr<Op> make_roll(const NodeInfo& node) {
  const auto axes = node.find_ints("axes").value_or(std::vector<int64_t>()),
             shifts = node.find_ints("shifts").value_or(std::vector<int64_t>());
  require(axes.size() == shifts.size(), "there are ", axes.size(), " axes and ", shifts.size(), " shifts");
  Expression rolled{{}, {}, {}, {0}};
  for (size_t i = 0; i < axes.size(); ++i) rolled.rolls.push_back({0, int(axes[i]), shifts[i]});
  rolled.values.push_back({{ScalarFunction::cast}, node.output_type(0), {{Expression::Operand::Kind::input}}});
  return std::make_unique<ElementwiseOp>(node, std::move(rolled));
}

}  // namespace encore::ops
