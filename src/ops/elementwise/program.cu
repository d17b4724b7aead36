#include "ops/elementwise/program.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "device/compiler.h"
#include "ops/elementwise/index_space.h"
#include "ops/elementwise/interpreter.h"
#include "ops/elementwise/program_layout.h"
#include "ops/elementwise/program_source.h"
#include "ops/overlap.h"
#include "ops/shape/strided.h"

namespace encore::ops {
namespace {

constexpr int kPacked = 4;

using Way = ProgramLayout::Way;

// What makes all outputs; none if that is too much for a kernel.
std::optional<std::vector<Instruction>> whole_program(const Expression& expression, int inputs) {
  if (inputs > kMostProgramInputs || int(expression.outputs.size()) > kMostProgramOutputs) return std::nullopt;
  std::vector<int> all(expression.outputs.size());
  std::iota(all.begin(), all.end(), 0);
  return instructions_for(expression, all);
}

class ElementwiseOp : public Op {
 public:
  ElementwiseOp(const NodeInfo& node, Expression expression)
      : expression_(std::move(expression)), compiler_(node.settings.compiler) {
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
    const bool is_packed = space.packs(kPacked) && are_aligned(outputs),
               is_small = are_small(context, reads, space.count);
    std::vector<const Tensor*> tensors(reads.size());
    for (size_t k = 0; k < reads.size(); ++k)
      if (reads[k]) tensors[k] = &context.input(int(k));
    const ProgramLayout layout(is_packed && is_small ? kPacked : 1, space, tensors, inputs);
    const auto captured = is_small ? compiled(context.stream(), layout, outputs, made) : std::nullopt;
    if (captured && captured->kernel->is_ready()) {
      device::launch(context.stream(), *captured);
    } else {
      layout.pack > 1 ? interpret<kPacked>(context.stream(), layout, instructions, outputs)
                      : interpret<1>(context.stream(), layout, instructions, outputs);
      if (captured) device::exchange_latest(context.stream(), *captured);
    }
    for (const int i : made)
      copy_bytes(context.stream(), outputs[size_t(i)].data, wanted[size_t(i)].data, int64_t(wanted[size_t(i)].bytes()));
  }

  // The compiled kernel that is captured for it, if there is one; it may not be ready yet.
  std::optional<device::CompiledLaunch> compiled(StreamRef stream, const ProgramLayout& layout,
                                                 const std::vector<Tensor>& outputs,
                                                 const std::vector<int>& made) const {
    if (!compiler_ || stream.capture_status() == device::CaptureStatus::none) return std::nullopt;
    auto kernel = compiler_->find(source_of(expression_, made, layout));
    if (!kernel) return std::nullopt;
    ProgramArguments arguments{};
    const auto to_int = [](int64_t value) { return int(value); };
    for (size_t i = 0; i < layout.inputs.size(); ++i) arguments.inputs[i] = layout.inputs[i].data;
    for (size_t i = 0; i < outputs.size(); ++i) arguments.outputs[i] = outputs[i].data;
    for (size_t d = 0; d < layout.sizes.size(); ++d) arguments.sizes[d] = device::SmallDivider(int(layout.sizes[d]));
    for (size_t w = 0; w < layout.walks.size(); ++w) {
      std::ranges::transform(layout.walks[w].strides, arguments.walks[w].strides, to_int);
      std::ranges::transform(layout.walks[w].shifts, arguments.walks[w].shifts, to_int);
    }
    return device::CompiledLaunch(std::move(kernel), layout.packs, arguments);
  }

  template <int kPack>
  static void interpret(StreamRef stream, const ProgramLayout& layout, std::vector<Instruction> instructions,
                        const std::vector<Tensor>& outputs) {
    using Program = ElementwiseProgram<kPack>;
    using Index = typename Program::Index;
    Program program{};
    program.rank = int(layout.sizes.size()), program.length = int(instructions.size());
    program.packs = layout.packs;
    program.read = int(layout.inputs.size());
    for (size_t d = 0; d < layout.sizes.size(); ++d) {
      if constexpr (kPack == 1)
        program.sizes[d] = device::Divider(layout.sizes[d], layout.packs);
      else
        program.sizes[d] = device::SmallDivider(int(layout.sizes[d]));
    }
    for (size_t w = 0; w < layout.walks.size(); ++w) {
      const auto to_index = [](int64_t value) { return Index(value); };
      std::ranges::transform(layout.walks[w].strides, program.walks[w].strides, to_index);
      std::ranges::transform(layout.walks[w].shifts, program.walks[w].shifts, to_index);
      program.walks[w].is_rolled = layout.walks[w].is_rolled;
    }
    uint8_t place[kMostProgramInputs] = {};  // of the node's inputs among those that are read
    for (size_t i = 0; i < layout.inputs.size(); ++i) {
      const ProgramLayout::Input& input = layout.inputs[i];
      place[input.index] = uint8_t(i);
      program.inputs[i] = {.data = input.data,
                           .type = input.type,
                           .way = uint8_t(input.way == Way::flat     ? Program::kFlat
                                          : input.way == Way::single ? Program::kSingle
                                                                     : Program::kWalks + input.walk),
                           .log_bytes = uint8_t(std::countr_zero(device::size_bytes(input.type))),
                           .repeats = input.repeats,
                           .is_whole = input.is_whole};
    }
    for (Instruction& one : instructions)
      for (Instruction::Operand* operand : {&one.a, &one.b}) {
        if (operand->from == Instruction::From::input) operand->index = place[operand->index];
        if (operand->from == Instruction::From::slot)
          *operand = {Instruction::From::input, uint8_t(program.read + operand->index)};
      }
    std::ranges::copy(instructions, program.instructions);
    for (size_t i = 0; i < outputs.size(); ++i) program.outputs[i] = outputs[i].data;
    device::block_kernel<typename Program::Shared>(stream,
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
  const std::shared_ptr<device::Compiler> compiler_;
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
