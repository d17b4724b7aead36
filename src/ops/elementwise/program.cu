#include "ops/elementwise/program.h"

#include <algorithm>
#include <bit>
#include <deque>
#include <numeric>

#include "device/compiler.h"
#include "device/device.h"
#include "ops/elementwise/index_space.h"
#include "ops/elementwise/interpreter.h"
#include "ops/elementwise/program_layout.h"
#include "ops/elementwise/program_source.h"
#include "ops/overlap.h"
#include "ops/registry.h"
#include "ops/shape/movement.h"
#include "ops/shape/strided.h"

namespace encore::ops {
namespace {

constexpr int kPacked = 4, kWide = 8;
constexpr int kWords = 2;  // of programs that have integers

using Way = ProgramLayout::Way;

// A node's inputs, and what is read of them. The first of those that are read as one stands for all, and has no memory
// unless they have been copied.
struct Inputs {
  std::vector<Tensor> tensors;
  std::vector<Source> sources;
};

int pieces_of(const Expression::Join& join) { return join.last - join.input + 1; }

// What makes all outputs; none if that is too much for a kernel.
std::optional<std::vector<Instruction>> whole_program(const Expression& expression, int inputs) {
  int pieces = 0;
  for (const Expression::Join& join : expression.joins) {
    inputs -= pieces_of(join) - 1;
    pieces += (pieces_of(join) + kPiecesAtATime - 1) / kPiecesAtATime * kPiecesAtATime;
  }
  if (inputs > kMostProgramInputs || pieces > kMostProgramPieces ||
      int(expression.outputs.size()) > kMostProgramOutputs)
    return std::nullopt;
  std::vector<int> all(expression.outputs.size());
  std::iota(all.begin(), all.end(), 0);
  return instructions_for(expression, all);
}

class ElementwiseOp : public Op {
 public:
  ElementwiseOp(const NodeInfo& node, Expression expression)
      : expression_(std::move(expression)), compiler_(node.settings.compiler) {
    for (int k = 0; k < node.input_count(); ++k) constant_.push_back(node.constant_input(k));
    joined_in_.resize(size_t(node.input_count()), -1);
    for (const Expression::Join& join : expression_.joins) {
      require(join.last < node.input_count(), "the expression joins input ", join.last, " of ", node.input_count());
      for (int k = join.input; k <= join.last; ++k) {
        require(joined_in_[size_t(k)] < 0, "the expression joins input ", k, " twice");
        joined_in_[size_t(k)] = join.input;
        constant_[size_t(k)] = false;  // what is joined is perhaps made by the launch before
      }
    }
    require(fits_in_a_program(expression_, node.input_count()), "the expression does not fit in a program");
    for (const Expression::Value& value : expression_.values)
      for (const Expression::Operand& operand : value.operands)
        require(operand.kind != Expression::Operand::Kind::input || operand.index < node.input_count(),
                "the expression reads input ", operand.index, " of ", node.input_count());
    for (const Expression::Part& part : expression_.parts) {
      require(part.input < node.input_count(), "the expression reads a part of input ", part.input, " of ",
              node.input_count());
      const auto join = std::ranges::find(expression_.joins, joined_in_[size_t(part.input)], &Expression::Join::input);
      require(join == expression_.joins.end() || join->axis == part.axis, "the expression joins input ", part.input,
              " along another axis than that of which it reads a part");
    }
    for (const Expression::Roll& roll : expression_.rolls)
      require(roll.input < node.input_count(), "the expression rolls input ", roll.input, " of ", node.input_count());
    std::vector<Type> types;
    for (int k = 0; k < node.input_count(); ++k) types.push_back(node.input_type(k));
    tell_integers(expression_, types);
    check_integers();
    has_integers_ = has_integers(expression_);
    all_ = *whole_program(expression_, node.input_count());
  }

  void run(Context& context) const override {
    Inputs inputs;
    inputs.tensors.reserve(constant_.size());
    inputs.sources.reserve(constant_.size());
    for (int k = 0; k < context.input_count(); ++k) inputs.tensors.push_back(context.input(k));
    for (const Expression::Join& join : expression_.joins) {
      const Shape shape = joined_shape(pieces_in(context, join), axis_in(context, join));
      inputs.tensors[size_t(join.input)] = {context.input(join.input).type, Where::device, shape, nullptr};
    }
    static const std::vector<Expression::Part> kNone;  // of what is joined pieces are parts
    for (int k = 0; k < context.input_count(); ++k)
      inputs.sources.emplace_back(inputs.tensors[size_t(k)].shape, k,
                                  joined_in_[size_t(k)] < 0 ? expression_.parts : kNone);
    const std::vector<Shape> shapes = shapes_of_outputs(inputs.sources);
    std::vector<Tensor> outputs;
    for (size_t i = 0; i < shapes.size(); ++i) outputs.push_back(context.output(int(i), shapes[i]));
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
      launch(context, alike.size() == outputs.size() ? all_ : *instructions_for(expression_, alike), inputs, outputs,
             alike);
    }
  }

 private:
  // No program tells of a divisor that is zero.
  void check_integers() const {
    using enum ScalarFunction;
    using Kind = Expression::Operand::Kind;
    for (const Expression::Value& value : expression_.values) {
      const ScalarFunction function = value.call.function;
      require(value.of_integers ? is_of_integers(function) : function == cast || !kIndices.has(value.type),
              "there is no ", name(function), " of integers");
      if (!value.of_integers || !is_division(function)) continue;
      const Expression::Operand& divisor = value.operands[1];
      require(divisor.kind == Kind::integer && divisor.index != 0, "an integer is divided by what may be zero");
    }
  }

  // Most values have the shape of an operand.
  std::vector<Shape> shapes_of_outputs(const std::vector<Source>& sources) const {
    using Kind = Expression::Operand::Kind;
    const Shape scalar;
    std::deque<Shape> made;
    std::vector<const Shape*> shapes;  // by value
    shapes.reserve(expression_.values.size());
    for (const Expression::Value& value : expression_.values) {
      const Shape* shape = &scalar;
      for (const Expression::Operand& operand : value.operands) {
        if (operand.kind != Kind::input && operand.kind != Kind::value) continue;
        const Shape& other =
            operand.kind == Kind::input ? sources[size_t(operand.index)].shape : *shapes[size_t(operand.index)];
        if (shape->rank() == 0)
          shape = &other;
        else if (other.rank() > 0 && *shape != other)
          shape = &made.emplace_back(broadcast(*shape, other));
      }
      shapes.push_back(shape);
    }
    std::vector<Shape> outputs;
    for (const int value : expression_.outputs) outputs.push_back(*shapes[size_t(value)]);
    return outputs;
  }

  std::vector<Cut> pieces_in(Context& context, const Expression::Join& join) const {
    const int axis = axis_in(context, join);
    std::vector<Cut> pieces;
    for (int k = join.input; k <= join.last; ++k) {
      const auto part = std::ranges::find(expression_.parts, k, &Expression::Part::input);
      if (part == expression_.parts.end())
        pieces.emplace_back(context.input(k), axis);
      else
        pieces.emplace_back(context.input(k), axis, part->begin, part->end);
    }
    return pieces;
  }
  static int axis_in(Context& context, const Expression::Join& join) {
    return checked_axis(join.axis, context.input(join.input).shape.rank());
  }

  void launch(Context& context, const std::vector<Instruction>& instructions, Inputs& inputs,
              std::vector<Tensor> outputs, const std::vector<int>& made) const {
    const Shape shape = outputs[size_t(made[0])].shape;
    if (shape.count() == 0) return;
    std::vector<bool> reads(size_t(context.input_count()));
    for (const Instruction& one : instructions)
      for (const Instruction::Operand& operand : {one.a, one.b})
        if (operand.from == Instruction::From::input) reads[operand.index] = true;
    std::vector<Source> sources(reads.size());
    for (size_t k = 0; k < sources.size(); ++k)
      if (reads[k]) sources[k] = inputs.sources[k];
    std::vector<Expression::Roll> rolls;
    for (const Expression::Roll& roll : expression_.rolls) {
      if (!reads[size_t(roll.input)]) continue;
      const Shape& input = sources[size_t(roll.input)].shape;
      require(-roll.axis <= input.rank() && roll.shift < input[input.rank() + roll.axis], "input ", roll.input, " ",
              input.str(), " cannot be rolled along axis ", roll.axis, " by ", roll.shift);
      if (input[input.rank() + roll.axis] > 1) rolls.push_back(roll);
    }
    const IndexSpace space(shape, sources, rolls);
    // An application may have bound one buffer as an input and an output, of which all is read before any is written.
    const std::vector<Tensor> wanted = outputs;
    for (const int i : made) {
      Tensor& output = outputs[size_t(i)];
      const auto is_in_the_way = [&](size_t k) {
        const int join = joined_in_[k];
        if (!reads[join < 0 ? k : size_t(join)] || !overlap(context.input(int(k)), output)) return false;
        const Tensor& input = context.input(int(k));
        return join >= 0 || made.size() > 1 || !space.is_flat(k) || sources[k].first != 0 ||
               input.data != output.data || device::size_bytes(input.type) != device::size_bytes(output.type);
      };
      for (size_t k = 0; k < reads.size(); ++k)
        if (output.data == wanted[size_t(i)].data && is_in_the_way(k)) output.data = context.scratch(output.bytes());
    }
    require(int(space.sizes.size()) <= kMostProgramDims, "inputs are broadcast along more than ", kMostProgramDims,
            " dimensions");
    const int packed = has_integers_ ? kWords : kPacked;
    const bool is_small = are_small(context, inputs, reads, space.count), has_packs = space.packs(packed) && is_small;
    const auto joins = joins_in(context, inputs, reads, space, has_packs ? packed : 1);
    std::vector<const Tensor*> tensors(reads.size());
    for (size_t k = 0; k < reads.size(); ++k)
      if (reads[k]) tensors[k] = &inputs.tensors[k];
    const auto laid_out = [&](int pack) {
      return ProgramLayout(pack, has_integers_ ? 8 : 4, space, tensors, sources, joins);
    };
    const ProgramLayout layout = laid_out(has_packs && are_aligned(outputs, packed) ? packed : 1);
    std::optional<device::CompiledLaunch> captured;
    if (is_small && compiler_ && context.stream().capture_status() != device::CaptureStatus::none) {
      const int wider = has_integers_ ? kPacked : kWide;
      const bool may_be_wide = layout.pack == packed && space.packs(wider) && are_aligned(outputs, wider);
      const ProgramLayout wide = laid_out(may_be_wide ? wider : layout.pack);
      captured = compiled(gains_by(wide, layout, outputs, context.stream()) ? wide : layout, outputs, made);
    }
    if (captured && captured->kernel->is_ready()) {
      device::launch(context.stream(), *captured);
    } else {
      interpret(context.stream(), layout, instructions, outputs);
      if (captured) device::exchange_latest(context.stream(), *captured);
    }
    for (const int i : made)
      copy_bytes(context.stream(), outputs[size_t(i)].data, wanted[size_t(i)].data, int64_t(wanted[size_t(i)].bytes()));
  }

  // Those that are read from their pieces. What has packs that lie in two of these is copied: single elements would be
  // slower.
  std::vector<ProgramLayout::Join> joins_in(Context& context, Inputs& inputs, const std::vector<bool>& reads,
                                            const IndexSpace& space, int pack) const {
    std::vector<ProgramLayout::Join> joins;
    for (const Expression::Join& join : expression_.joins) {
      const auto k = size_t(join.input);
      Tensor& whole = inputs.tensors[k];
      if (!reads[k] || whole.data) continue;
      const std::vector<Cut> pieces = pieces_in(context, join);
      const int axis = axis_in(context, join);
      ProgramLayout::Join joined(join.input, pieces, axis);
      if (space.strides[0][k] == 0 || (joined.holds_packs(pack) && space.are_rows_aligned(k, pack))) {
        joins.push_back(std::move(joined));
      } else {
        whole.data = context.scratch(whole.bytes());
        concatenate(context.stream(), pieces, axis, whole);
      }
    }
    return joins;
  }

  // Whether wider packs, as of 16 bytes of halves, leave enough threads, and registers for all inputs. The
  // interpreter's would take twice the shared memory.
  static bool gains_by(const ProgramLayout& wide, const ProgramLayout& layout, const std::vector<Tensor>& outputs,
                       StreamRef stream) {
    constexpr size_t kMostInputs = 8;
    const auto is_half = [](const auto& one) { return device::size_bytes(one.type) == 2; };
    return (std::ranges::any_of(outputs, is_half) || std::ranges::any_of(wide.inputs, is_half)) &&
           wide.inputs.size() <= kMostInputs && wide.packs >= 512 * int64_t(device::multiprocessors(stream.device())) &&
           std::ranges::equal(wide.inputs, layout.inputs, std::ranges::greater_equal(), &ProgramLayout::Input::is_whole,
                              &ProgramLayout::Input::is_whole) &&
           std::ranges::all_of(wide.inputs, [&](const ProgramLayout::Input& input) {
             return input.join < 0 || input.repeats || wide.joins[size_t(input.join)].holds_packs(wide.pack);
           });
  }

  // The compiled kernel that is captured for it, if there is one; it may not be ready yet.
  std::optional<device::CompiledLaunch> compiled(const ProgramLayout& layout, const std::vector<Tensor>& outputs,
                                                 const std::vector<int>& made) const {
    auto kernel = compiler_->find(source_of(expression_, made, layout, constant_));
    if (!kernel) return std::nullopt;
    JoiningProgramArguments arguments{};
    const auto to_int = [](int64_t value) { return int(value); };
    for (size_t i = 0; i < layout.inputs.size(); ++i) arguments.inputs[i] = layout.inputs[i].data;
    for (size_t i = 0; i < outputs.size(); ++i) arguments.outputs[i] = outputs[i].data;
    for (size_t d = 0; d < layout.sizes.size(); ++d) arguments.sizes[d] = device::SmallDivider(int(layout.sizes[d]));
    for (size_t w = 0; w < layout.walks.size(); ++w) {
      std::ranges::transform(layout.walks[w].strides, arguments.walks[w].strides, to_int);
      std::ranges::transform(layout.walks[w].shifts, arguments.walks[w].shifts, to_int);
    }
    const ProgramArguments& without = arguments;
    if (layout.joins.empty()) return device::CompiledLaunch(std::move(kernel), layout.packs, without);
    layout.fill(arguments.joined, [](int64_t width) { return device::SmallDivider(int(width)); });
    return device::CompiledLaunch(std::move(kernel), layout.packs, arguments);
  }

  void interpret(StreamRef stream, const ProgramLayout& layout, const std::vector<Instruction>& instructions,
                 const std::vector<Tensor>& outputs) const {
    const auto by = [&]<class Value, int kPack, bool kJoins>() {
      interpret<Value, kPack, kJoins>(stream, layout, instructions, outputs);
    };
    const bool joins = !layout.joins.empty();
    if (has_integers_)  // small as a rule: its kernels are fewer
      layout.pack > 1 ? by.operator()<int64_t, kWords, true>() : by.operator()<int64_t, 1, true>();
    else if (layout.pack > 1)
      joins ? by.operator()<float, kPacked, true>() : by.operator()<float, kPacked, false>();
    else
      joins ? by.operator()<float, 1, true>() : by.operator()<float, 1, false>();
  }
  template <class Value, int kPack, bool kJoins>
  static void interpret(StreamRef stream, const ProgramLayout& layout, std::vector<Instruction> instructions,
                        const std::vector<Tensor>& outputs) {
    using Program = ElementwiseProgram<Value, kPack, kJoins>;
    using Index = typename Program::Index;
    Program program{};
    program.rank = int(layout.sizes.size()), program.length = int(instructions.size());
    program.packs = layout.packs;
    program.read = int(layout.inputs.size());
    const auto divider = [&](int64_t divisor) {
      if constexpr (kPack == 1)
        return device::Divider(divisor, layout.packs);
      else
        return device::SmallDivider(int(divisor));
    };
    for (size_t d = 0; d < layout.sizes.size(); ++d) program.sizes[d] = divider(layout.sizes[d]);
    for (size_t w = 0; w < layout.walks.size(); ++w) {
      const auto to_index = [](int64_t value) { return Index(value); };
      std::ranges::transform(layout.walks[w].strides, program.walks[w].strides, to_index);
      std::ranges::transform(layout.walks[w].shifts, program.walks[w].shifts, to_index);
      program.walks[w].is_rolled = layout.walks[w].is_rolled;
    }
    if constexpr (kJoins) {
      layout.fill(program.joins, divider);
      for (size_t j = 0; j < layout.joins.size(); ++j)
        program.joins.begin[j] = layout.joins[j].begin, program.joins.end[j] = layout.joins[j].end;
    }
    uint8_t place[kMostProgramInputs + kMostProgramPieces] = {};  // of the node's inputs among those that are read
    for (size_t i = 0; i < layout.inputs.size(); ++i) {
      const ProgramLayout::Input& input = layout.inputs[i];
      place[input.index] = uint8_t(i);
      program.inputs[i] = {.data = input.data,
                           .type = uint8_t(input.type),
                           .way = uint8_t(input.way == Way::flat     ? Program::kFlat
                                          : input.way == Way::single ? Program::kSingle
                                                                     : Program::kWalks + input.walk),
                           .join = uint8_t(input.join),
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
  bool are_small(Context& context, const Inputs& inputs, const std::vector<bool>& reads, int64_t count) const {
    for (size_t k = 0; k < reads.size(); ++k) {
      const int join = joined_in_[k];
      if (reads[join < 0 ? k : size_t(join)])
        count = std::max({count, inputs.tensors[k].count(), context.input(int(k)).shape.count()});
    }
    return count <= INT32_MAX;
  }
  static bool are_aligned(const std::vector<Tensor>& outputs, int pack) {
    return std::ranges::all_of(outputs, [&](const Tensor& tensor) {
      return reinterpret_cast<uintptr_t>(tensor.data) % (size_t(pack) * device::size_bytes(tensor.type)) == 0;
    });
  }

  Expression expression_;
  const std::shared_ptr<device::Compiler> compiler_;
  std::vector<Instruction> all_;
  bool has_integers_ = false;
  std::vector<bool> constant_;  // by input: a model's own, which no kernel writes
  std::vector<int> joined_in_;  // by input: the first of those that it is read with, or -1
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
  Expression rolled{.outputs = {0}};
  for (size_t i = 0; i < axes.size(); ++i) rolled.rolls.push_back({0, int(axes[i]), shifts[i]});
  rolled.values.push_back({{ScalarFunction::cast}, node.output_type(0), {{Expression::Operand::Kind::input}}});
  return std::make_unique<ElementwiseOp>(node, std::move(rolled));
}

}  // namespace encore::ops
