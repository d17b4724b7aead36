// Carries out the instructions of an elementwise program. All threads take the same way.
#pragma once
#include "device/device.h"
#include "device/divide.h"
#include "device/transform.h"
#include "ops/dispatch.h"
#include "ops/elementwise/instructions.h"
#include "ops/elementwise/program.h"
#include "ops/elementwise/scalar_functions.h"

namespace encore::ops {

// A thread makes kPack neighbours of each output. It has a file in shared memory, packs of floats: the operands, which
// it asks for before all else, since memory is far, and what is saved. Instructions find there what they want by
// number.
template <int kPack>
struct ElementwiseProgram {
  static constexpr int kThreads = 128, kMaxThreads = kThreads;
  using Values = device::Pack<float, kPack>;
  struct Shared {
    int nothing;  // the file is as large as a program wants it
  };
  // From one output to the next in each dimension, and where along it an input is begun.
  struct Walk {
    int64_t strides[kMostProgramDims], shifts[kMostProgramDims];
    bool is_rolled;
  };
  enum : uint8_t {
    kFlat,
    kSingle,
    kWalks
  };  // as the outputs lie, one value for all, or otherwise: a walk from kWalks on
  struct Input {
    const void* data;
    Type type;
    uint8_t walk;
    bool repeats;     // one value for all of a pack
    bool is_aligned;  // each pack
  };

  device::Divider sizes[kMostProgramDims];
  Walk walks[kMostProgramInputs];
  Input inputs[kMostProgramInputs];
  void* outputs[kMostProgramOutputs];
  // Their operands are in the file, From::input, or among their numbers. What is saved has a number there, too.
  Instruction instructions[kMostInstructions];
  int64_t packs;
  int rank, length, read;  // of inputs

  static int64_t file_bytes(int entries) { return int64_t(entries) * kThreads * int64_t(sizeof(Values)); }

  DEVICE_FN void operator()(device::Block<Shared>& b, const Shared&) const {
    b.threads([&](int t, Shared& s) {
      const int64_t pack = b.index() * kThreads + t;
      if (pack < packs) interpret(pack * kPack, b.template dynamic<Values>(s) + t);
    });
  }

 private:
  // As in memory, of any type.
  struct alignas(4 * kPack) Raw {
    uint32_t words[kPack];
  };

  DEVICE_FN void interpret(int64_t first, Values* file) const {
    load_inputs(first, file);
    Values accumulator{};
    Instruction next = instructions[0];
    NO_UNROLL for (int i = 0; i < length; ++i) {
      const Instruction instruction = next;
      next = instructions[i + 1 < length ? i + 1 : i];
      const Values second = operand(instruction.a, instruction.p, file);
      switch (instruction.kind) {
        case Instruction::Kind::load: accumulator = second; break;
        case Instruction::Kind::save: file[instruction.a.index * kThreads] = accumulator; break;
        case Instruction::Kind::store: store(instruction, first, accumulator); break;
        default: call(instruction, second, file, accumulator);
      }
    }
  }

  DEVICE_FN static Values operand(Instruction::Operand operand, float number, const Values* file) {
    Values values;
    UNROLL for (int k = 0; k < kPack; ++k) values.at[k] = number;
    if (operand.from == Instruction::From::input) values = file[operand.index * kThreads];
    return values;
  }

  // Several are asked for before the first is wanted.
  DEVICE_FN void load_inputs(int64_t first, Values* file) const {
    constexpr int kAtOnce = 4;
    int64_t at[kMostProgramDims] = {}, rest = first, place = first;
    UNROLL for (int d = 0; d < kMostProgramDims; ++d) {
      if (d + 1 < rank)
        rest = sizes[d](rest, at[d]);
      else if (d + 1 == rank)
        at[d] = rest;
    }
    int walk = kFlat;
    NO_UNROLL for (int base = 0; base < read; base += kAtOnce) {
      Raw raw[kAtOnce];
      UNROLL for (int i = 0; i < kAtOnce; ++i) {
        if (base + i >= read) break;
        const Input& input = inputs[base + i];
        if (input.walk != walk) {  // neighbours among the inputs walk alike
          walk = input.walk;
          place = place_of(walk, first, at);
        }
        raw[i] = load(input, place);
      }
      UNROLL for (int i = 0; i < kAtOnce; ++i) if (base + i < read) file[(base + i) * kThreads] =
          values_of(inputs[base + i], raw[i]);
    }
  }
  DEVICE_FN int64_t place_of(int walk, int64_t first, const int64_t (&at)[kMostProgramDims]) const {
    if (walk < kWalks) return walk == kFlat ? first : 0;
    const Walk& by = walks[walk - kWalks];
    int64_t place = 0;
    UNROLL for (int d = 0; d < kMostProgramDims; ++d) {
      if (d >= rank) continue;
      int64_t index = at[d];
      if (by.is_rolled) {
        index += by.shifts[d];
        if (index >= sizes[d].divisor()) index -= sizes[d].divisor();
      }
      place += index * by.strides[d];
    }
    return place;
  }

  DEVICE_FN static Raw load(const Input& input, int64_t place) {
    switch (input.type) {
      case Type::f16:
      case Type::bf16: return load_as<uint16_t>(input, place);
      case Type::boolean: return load_as<uint8_t>(input, place);
      default: return load_as<uint32_t>(input, place);
    }
  }
  template <class Bits>
  DEVICE_FN static Raw load_as(const Input& input, int64_t place) {
    const Bits* const from = static_cast<const Bits*>(input.data) + place;
    Raw raw{};
    if (input.repeats) {
      raw.words[0] = *from;
    } else {
      const auto pack = input.is_aligned ? device::load_aligned<kPack>(from) : device::load_unaligned<kPack>(from);
      memcpy(&raw, &pack, sizeof pack);
    }
    return raw;
  }
  DEVICE_FN static Values values_of(const Input& input, const Raw& raw) {
    switch (input.type) {
      case Type::f16: return values_as<Half>(input, raw);
      case Type::bf16: return values_as<BFloat16>(input, raw);
      case Type::boolean: return values_as<uint8_t>(input, raw);
      default: return values_as<float>(input, raw);
    }
  }
  template <class T>
  DEVICE_FN static Values values_as(const Input& input, const Raw& raw) {
    device::Pack<T, kPack> pack;
    memcpy(&pack, &raw, sizeof pack);
    Values values;
    UNROLL for (int k = 0; k < kPack; ++k) values.at[k] = float(pack.at[input.repeats ? 0 : k]);
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

  DEVICE_FN static void call(const Instruction& instruction, const Values& second, const Values* file,
                             Values& accumulator) {
    using enum ScalarFunction;
    const Type type = Type(instruction.type);
    const bool is_half = type == Type::f16 || type == Type::bf16;
    const auto each = [&](auto f) {
      if constexpr (requires { f.rough(0.f); }) {
        if (is_half) {
          UNROLL for (int k = 0; k < kPack; ++k) accumulator.at[k] = f.rough(accumulator.at[k]);
          return;
        }
      }
      UNROLL for (int k = 0; k < kPack; ++k) accumulator.at[k] = float(f(accumulator.at[k]));
    };
    const auto with_p = [&](auto f) {
      f.alpha = instruction.p;
      each(f);
    };
    const auto both_of = [&](auto f) {
      const bool is_swapped = instruction.kind == Instruction::Kind::swapped_call;
      UNROLL for (int k = 0; k < kPack; ++k) {
        const float a = is_swapped ? second.at[k] : accumulator.at[k],
                    b = is_swapped ? accumulator.at[k] : second.at[k];
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
        const Values other = operand(instruction.b, instruction.q, file);
        UNROLL for (int k = 0; k < kPack; ++k) accumulator.at[k] = accumulator.at[k] != 0 ? second.at[k] : other.at[k];
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

}  // namespace encore::ops
