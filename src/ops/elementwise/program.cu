#include "ops/elementwise/program.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "device/divide.h"
#include "device/transform.h"
#include "ops/dispatch.h"
#include "ops/elementwise/instructions.h"
#include "ops/elementwise/scalar_functions.h"
#include "ops/registry.h"
#include "ops/shape/strided.h"

namespace encore::ops {
namespace {

constexpr int kMostDims = kMostProgramDims;

// The part of an input that is read.
struct Source {
  Shape shape;
  std::vector<int64_t> strides;  // of its dimensions
  int64_t first = 0;             // where it begins, in elements

  Source() = default;
  Source(const Shape& whole, int input, const std::vector<Expression::Part>& parts) : strides(size_t(whole.rank())) {
    std::vector<int64_t> dims(whole.dims().begin(), whole.dims().end());
    for (int64_t axis = whole.rank() - 1, step = 1; axis >= 0; step *= whole[int(axis--)]) strides[size_t(axis)] = step;
    for (const Expression::Part& part : parts) {
      if (part.input != input) continue;
      const int axis = whole.rank() + part.axis;
      require(axis >= 0 && part.end <= whole[axis], "input ", input, " ", whole.str(), " has no part from ", part.begin,
              " to ", part.end, " along axis ", part.axis);
      dims[size_t(axis)] = part.end - part.begin;
      first += part.begin * strides[size_t(axis)];
    }
    shape = Shape(dims);
  }
};

// How inputs lie under outputs. Dimensions that all inputs walk alike are one; innermost first.
struct Space {
  int64_t count;
  std::vector<int64_t> sizes;
  std::vector<std::vector<int64_t>> strides, shifts;  // by dimension, then by input

  Space(const Shape& output, const std::vector<Source>& inputs, const std::vector<Expression::Roll>& rolls)
      : count(output.count()) {
    for (int axis = output.rank() - 1; axis >= 0; --axis) {
      const int64_t size = output[axis];
      if (size == 1) continue;
      std::vector<int64_t> own(inputs.size()), shift(inputs.size());
      for (const Expression::Roll& roll : rolls)
        if (output.rank() + roll.axis == axis) shift[size_t(roll.input)] = roll.shift;
      for (size_t k = 0; k < inputs.size(); ++k) {
        const int at = axis - (output.rank() - inputs[k].shape.rank());
        if (at >= 0 && inputs[k].shape[at] != 1) own[k] = inputs[k].strides[size_t(at)];
      }
      const auto rolls_none = [](const std::vector<int64_t>& by) {
        return std::ranges::count(by, 0) == std::ssize(by);
      };
      bool joins = !sizes.empty() && rolls_none(shift) && rolls_none(shifts.back());
      for (size_t k = 0; joins && k < own.size(); ++k) joins = own[k] == strides.back()[k] * sizes.back();
      if (joins) {
        sizes.back() *= size;
      } else {
        sizes.push_back(size);
        strides.push_back(std::move(own));
        shifts.push_back(std::move(shift));
      }
    }
    if (sizes.empty()) {
      sizes.push_back(1);
      strides.emplace_back(inputs.size());
      shifts.emplace_back(inputs.size());
    }
  }
  bool is_rolled(size_t input) const {
    return std::ranges::any_of(shifts, [&](const auto& by) { return by[input] != 0; });
  }
  bool is_flat(size_t input) const {
    int64_t before = 1;
    for (size_t d = 0; d < sizes.size(); before *= sizes[d++])
      if (strides[d][input] != before) return false;
    return !is_rolled(input);
  }
  bool is_single(size_t input) const {
    return std::ranges::all_of(strides, [&](const auto& by) { return by[input] == 0; });
  }
  // Whether packs of outputs have operands that are neighbours, or one value.
  bool packs(int pack) const {
    return sizes[0] % pack == 0 && std::ranges::all_of(shifts[0], [&](int64_t by) { return by % pack == 0; }) &&
           std::ranges::all_of(strides[0], [](int64_t stride) { return stride == 0 || stride == 1; });
  }
  bool are_rows_aligned(size_t input, int pack) const {
    return std::all_of(strides.begin() + 1, strides.end(), [&](const auto& by) { return by[input] % pack == 0; });
  }
};

// A thread makes kPack neighbours of each output, whose operands are neighbours, too, or one value.
template <int kPack>
struct ElementwiseProgram {
  // How an input lies: as the outputs do, one value for all, or otherwise.
  enum class Way : uint8_t { flat, single, strided, rolled };
  struct Input {
    const void* data;
    Type type;
    Way way;
    bool is_aligned;  // each pack
    int64_t strides[kMostDims], shifts[kMostDims];
  };

  device::Divider sizes[kMostDims];
  Input inputs[kMostProgramInputs];
  void* outputs[kMostProgramOutputs];
  Instruction instructions[kMostInstructions];
  int rank, length;

  DEVICE_FN void operator()(int64_t pack) const {
    const int64_t first = pack * kPack;
    int64_t at[kMostDims] = {}, rest = first;
    UNROLL for (int d = 0; d < kMostDims; ++d) {
      if (d + 1 < rank)
        rest = sizes[d](rest, at[d]);
      else if (d + 1 == rank)
        at[d] = rest;
    }
    // Operands are asked for an instruction before they are wanted, since memory is far.
    Values accumulator{}, slots[kMostSlots] = {};
    Instruction next = instructions[0];
    Values ahead = ask(next, first, at);
    NO_UNROLL for (int i = 0; i < length; ++i) {
      const Instruction instruction = next;
      const Values asked = ahead;
      next = instructions[i + 1 < length ? i + 1 : i];
      ahead = ask(next, first, at);
      switch (instruction.kind) {
        case Instruction::Kind::load: accumulator = operand(instruction.a, instruction.p, asked, slots); break;
        case Instruction::Kind::save:
          UNROLL for (int s = 0; s < kMostSlots; ++s) slots[s] =
              chosen(s == instruction.a.index, accumulator, slots[s]);
          break;
        case Instruction::Kind::store: store(instruction, first, accumulator); break;
        default: call(instruction, first, at, asked, slots, accumulator);
      }
    }
  }

 private:
  using Values = device::Pack<float, kPack>;

  DEVICE_FN static Values chosen(bool is_first, const Values& a, const Values& b) {
    Values values;
    UNROLL for (int k = 0; k < kPack; ++k) values.at[k] = is_first ? a.at[k] : b.at[k];
    return values;
  }

  DEVICE_FN Values ask(const Instruction& instruction, int64_t first, const int64_t (&at)[kMostDims]) const {
    return instruction.a.from == Instruction::From::input ? load(instruction.a.index, first, at) : Values{};
  }

  DEVICE_FN static Values operand(Instruction::Operand operand, float number, const Values& asked,
                                  const Values (&slots)[kMostSlots]) {
    Values values;
    UNROLL for (int k = 0; k < kPack; ++k) values.at[k] = number;
    if (operand.from == Instruction::From::input) values = asked;
    if (operand.from == Instruction::From::slot) {
      UNROLL for (int s = 0; s < kMostSlots; ++s) values = chosen(s == operand.index, slots[s], values);
    }
    return values;
  }

  DEVICE_FN Values load(int input, int64_t first, const int64_t (&at)[kMostDims]) const {
    const Input& from = inputs[input];
    int64_t place = from.way == Way::flat ? first : 0;
    if (from.way >= Way::strided) {
      UNROLL for (int d = 0; d < kMostDims; ++d) {
        if (d >= rank) continue;
        int64_t index = at[d];
        if (from.way == Way::rolled) {
          index += from.shifts[d];
          if (index >= sizes[d].divisor()) index -= sizes[d].divisor();
        }
        place += index * from.strides[d];
      }
    }
    const bool repeats = from.strides[0] == 0;
    switch (from.type) {
      case Type::f16: return load_as<Half>(from, place, repeats);
      case Type::bf16: return load_as<BFloat16>(from, place, repeats);
      case Type::boolean: return load_as<uint8_t>(from, place, repeats);
      default: return load_as<float>(from, place, repeats);
    }
  }
  template <class T>
  DEVICE_FN static Values load_as(const Input& input, int64_t place, bool repeats) {
    const T* const from = static_cast<const T*>(input.data) + place;
    Values values;
    if (repeats) {
      const float value = float(*from);
      UNROLL for (int k = 0; k < kPack; ++k) values.at[k] = value;
    } else {
      const auto pack = input.is_aligned ? device::load_aligned<kPack>(from) : device::load_unaligned<kPack>(from);
      UNROLL for (int k = 0; k < kPack; ++k) values.at[k] = float(pack.at[k]);
    }
    return values;
  }

  DEVICE_FN void store(const Instruction& instruction, int64_t first, const Values& values) const {
    void* const to = outputs[instruction.a.index];
    switch (Type(instruction.type)) {
      case Type::f16: return store_as<Half>(to, first, values);
      case Type::bf16: return store_as<BFloat16>(to, first, values);
      case Type::boolean: return store_as<uint8_t>(to, first, values);
      default: return store_as<float>(to, first, values);
    }
  }
  template <class T>
  DEVICE_FN static void store_as(void* to, int64_t first, const Values& values) {
    device::Pack<T, kPack> pack;
    UNROLL for (int k = 0; k < kPack; ++k) pack.at[k] = T(values.at[k]);
    device::store_pack(static_cast<T*>(to) + first, pack, true);
  }

  DEVICE_FN void call(const Instruction& instruction, int64_t first, const int64_t (&at)[kMostDims],
                      const Values& asked, const Values (&slots)[kMostSlots], Values& accumulator) const {
    using enum ScalarFunction;
    const Type type = Type(instruction.type);
    const bool is_half = type == Type::f16 || type == Type::bf16;
    const auto each = [&](auto f) {
      UNROLL for (int k = 0; k < kPack; ++k) {
        if constexpr (requires { f.rough(0.f); })
          accumulator.at[k] = is_half ? f.rough(accumulator.at[k]) : float(f(accumulator.at[k]));
        else
          accumulator.at[k] = float(f(accumulator.at[k]));
      }
    };
    const auto with_p = [&](auto f) {
      f.alpha = instruction.p;
      each(f);
    };
    const auto second = [&] { return operand(instruction.a, instruction.p, asked, slots); };
    const auto both_of = [&](auto f) {
      const Values other = second();
      const bool is_swapped = instruction.kind == Instruction::Kind::swapped_call;
      UNROLL for (int k = 0; k < kPack; ++k) {
        const float a = is_swapped ? other.at[k] : accumulator.at[k], b = is_swapped ? accumulator.at[k] : other.at[k];
        accumulator.at[k] = float(f(a, b));
      }
    };
    const auto ordered = [&](bool descending, bool or_equal) {
      scalar::Ordered f;
      f.descending = descending, f.or_equal = or_equal;
      both_of(f);
    };
    switch (instruction.function) {
      case add: both_of(scalar::Add{}); break;
      case sub: both_of(scalar::Sub{}); break;
      case mul: both_of(scalar::Mul{}); break;
      case quotient: both_of(scalar::Quotient{}); break;
      case least: both_of([](float a, float b) { return scalar::Extreme{true}.combine(a, b); }); break;
      case greatest: both_of([](float a, float b) { return scalar::Extreme{false}.combine(a, b); }); break;
      case power: both_of(scalar::Power{}); break;
      case same: both_of(scalar::Same{}); break;
      case below: ordered(false, false); break;
      case below_or_same: ordered(false, true); break;
      case above: ordered(true, false); break;
      case above_or_same: ordered(true, true); break;
      case both: both_of(scalar::Both{}); break;
      case either: both_of(scalar::Either{}); break;
      case one_only: both_of(scalar::OneOnly{}); break;
      case select: {
        const bool is_input = instruction.b.from == Instruction::From::input;
        const Values third = is_input ? load(instruction.b.index, first, at) : Values{};
        const Values yes = second(), no = operand(instruction.b, instruction.q, third, slots);
        UNROLL for (int k = 0; k < kPack; ++k) accumulator.at[k] = accumulator.at[k] != 0 ? yes.at[k] : no.at[k];
        break;
      }
      case cast:
        if (type == Type::boolean) each([](float x) { return x != 0; });
        break;
      case abs: each(scalar::Abs{}); break;
      case neg: each(scalar::Neg{}); break;
      case sign: each(scalar::Sign{}); break;
      case exp: each(scalar::Exp{}); break;
      case log: each(scalar::Log{}); break;
      case sqrt: each(scalar::Sqrt{}); break;
      case reciprocal: each(scalar::Reciprocal{}); break;
      case erf: each(scalar::Erf{}); break;
      case ceil: each(scalar::Ceil{}); break;
      case floor: each(scalar::Floor{}); break;
      case round: each(scalar::Round{}); break;
      case inverted: each(scalar::Inverted{}); break;
      case relu: each(scalar::Relu{}); break;
      case leaky_relu: with_p(scalar::LeakyRelu()); break;
      case elu: with_p(scalar::Elu()); break;
      case celu: with_p(scalar::Celu()); break;
      case swish: with_p(scalar::Swish()); break;
      case selu: {
        scalar::Selu f;
        f.alpha = instruction.p, f.gamma = instruction.q;
        each(f);
        break;
      }
      case hard_sigmoid: {
        scalar::HardSigmoid f;
        f.alpha = instruction.p, f.beta = instruction.q;
        each(f);
        break;
      }
      case sigmoid: each(scalar::Sigmoid{}); break;
      case hard_swish: each(scalar::HardSwish{}); break;
      case softplus: each(scalar::Softplus{}); break;
      case softsign: each(scalar::Softsign{}); break;
      case tanh: each(scalar::Tanh{}); break;
      case mish: each(scalar::Mish{}); break;
      case gelu: each(GeluByErf{}); break;
      case tanh_gelu: each(GeluByTanh{}); break;
    }
    round_to(type, accumulator);
  }

  DEVICE_FN static void round_to(Type type, Values& values) {
    if (type == Type::f16) {
      UNROLL for (int k = 0; k < kPack; ++k) values.at[k] = float(Half(values.at[k]));
    } else if (type == Type::bf16) {
      UNROLL for (int k = 0; k < kPack; ++k) values.at[k] = float(BFloat16(values.at[k]));
    }
  }
};

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
    const Space space(shape, inputs, rolls);
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
    require(int(space.sizes.size()) <= kMostDims, "inputs are broadcast along more than ", kMostDims, " dimensions");
    const auto launch = [&]<int kPack>() {
      ElementwiseProgram<kPack> program{};
      program.rank = int(space.sizes.size()), program.length = int(instructions.size());
      for (size_t d = 0; d < space.sizes.size(); ++d) program.sizes[d] = device::Divider(space.sizes[d], space.count);
      for (size_t k = 0; k < inputs.size(); ++k) {
        if (!reads[k]) continue;
        const Tensor& input = context.input(int(k));
        auto& place = program.inputs[k];
        const auto bytes = device::size_bytes(input.type);
        place.data = static_cast<const char*>(input.data) + inputs[k].first * int64_t(bytes);
        place.type = input.type;
        place.is_aligned =
            space.are_rows_aligned(k, kPack) && reinterpret_cast<uintptr_t>(place.data) % (kPack * bytes) == 0;
        for (size_t d = 0; d < space.sizes.size(); ++d)
          place.strides[d] = space.strides[d][k], place.shifts[d] = space.shifts[d][k];
        using Way = typename ElementwiseProgram<kPack>::Way;
        place.way = space.is_rolled(k)   ? Way::rolled
                    : space.is_flat(k)   ? Way::flat
                    : space.is_single(k) ? Way::single
                                         : Way::strided;
      }
      for (size_t i = 0; i < outputs.size(); ++i) program.outputs[i] = outputs[i].data;
      std::ranges::copy(instructions, program.instructions);
      device::for_each_index(context.stream(), space.count / kPack, program);
    };
    if (space.packs(kPacked) && are_aligned(outputs))
      launch.template operator()<kPacked>();
    else
      launch.template operator()<1>();
    for (const int i : made)
      copy_bytes(context.stream(), outputs[size_t(i)].data, wanted[size_t(i)].data, int64_t(wanted[size_t(i)].bytes()));
  }

  static bool overlap(const Tensor& a, const Tensor& b) {
    const auto *first = static_cast<const char*>(a.data), *second = static_cast<const char*>(b.data);
    return std::less<>()(first, second + b.bytes()) && std::less<>()(second, first + a.bytes());
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
