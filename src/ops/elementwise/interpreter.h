// Carries out the instructions of an elementwise program. All threads take the same way.
#pragma once
#include "device/copy_async.h"
#include "device/device.h"
#include "device/divide.h"
#include "device/divide_small.h"
#include "device/transform.h"
#include "ops/dispatch.h"
#include "ops/elementwise/instructions.h"
#include "ops/elementwise/program.h"
#include "ops/elementwise/scalar_calls.h"
#include "ops/elementwise/words.h"

namespace encore::ops {

// A thread makes kPack neighbours of each output. It has a file in shared memory, packs of values: the operands, which
// it asks for before all else, since memory is far, and what is saved. Instructions find there what they want by
// number. What all programs run through is short: code comes from far, too, the first time.
// What reads no concatenation is one without kJoins, for kernels' arguments take time, too. Values are floats, which
// most programs have alone, or words.
template <class Value, int kPack, bool kJoins>
struct ElementwiseProgram {
  static constexpr int kThreads = 128, kMaxThreads = kThreads;
  // Packs are for what 31 bits count.
  using Index = std::conditional_t<kPack == 1, int64_t, int>;
  using Divider = std::conditional_t<kPack == 1, device::Divider, device::SmallDivider>;
  using Values = device::Pack<Value, kPack>;
  static constexpr bool kAreWords = std::is_same_v<Value, int64_t>;
  struct Shared {
    int nothing;  // the file is as large as a program wants it
  };
  // From one output to the next in each dimension, and where along it an input is begun.
  struct Walk {
    Index strides[kMostProgramDims], shifts[kMostProgramDims];
    bool is_rolled;
  };
  // How an input lies: as the outputs do, one value for all, or otherwise: by a walk, whose number this is less kWalks.
  enum Way : uint8_t { kFlat, kSingle, kWalks };
  struct alignas(16) Input {
    const void* data;
    uint8_t type;  // a Type
    uint8_t way;
    uint8_t join;       // of a concatenation
    uint8_t log_bytes;  // of a value
    bool repeats;       // one value for all of a pack
    bool is_whole;      // each pack is aligned, and can be copied at once
  };

  struct Joins : JoinedPieces<Index, Divider> {
    int begin[kMostProgramJoins], end[kMostProgramJoins];
  };
  struct NoJoins {};

  Divider sizes[kMostProgramDims];
  Walk walks[kMostProgramInputs];
  Input inputs[kMostProgramInputs];
  [[no_unique_address]] std::conditional_t<kJoins, Joins, NoJoins> joins;
  void* outputs[kMostProgramOutputs];
  // Their operands are in the file, From::input, or among their numbers. What is saved has a number there, too.
  Instruction instructions[kMostInstructions];
  int64_t packs;
  int rank, length, read;  // of inputs

  static int64_t file_bytes(int entries) { return int64_t(entries) * kThreads * int64_t(sizeof(Values)); }

  DEVICE_FN void operator()(device::Block<Shared>& b, const Shared&) const {
    b.threads([&](int t, Shared& s) {
      const int64_t pack = b.index() * kThreads + t;
      if (pack < packs) interpret(Index(pack * kPack), b.template dynamic<Values>(s) + t);
    });
  }

 private:
  DEVICE_FN void interpret(Index first, Values* file) const {
    using Kind = Instruction::Kind;
    load_inputs(first, file);
    Values accumulator{};
    Instruction next = instructions[0];
    NO_UNROLL for (int i = 0; i < length; ++i) {
      const Instruction instruction = next;
      next = instructions[i + 1 < length ? i + 1 : i];
      const Values second = operand(instruction.a, instruction.p, file);
      if (instruction.kind <= Kind::swapped_call || (kAreWords && instruction.kind >= Kind::integer_call)) {
        if (!kAreWords && instruction.function <= ScalarFunction::mul)
          accumulator = arithmetic(instruction, accumulator, second);
        else
          accumulator = call(instruction, accumulator, second, operand(instruction.b, instruction.q, file));
        if constexpr (!kAreWords) round_to(Type(instruction.type), accumulator);
      } else if (instruction.kind == Kind::load) {
        accumulator = second;
      } else if (instruction.kind == Kind::save) {
        file[instruction.a.index * kThreads] = accumulator;
      } else {
        store(instruction, first, accumulator);
      }
    }
  }

  DEVICE_FN static Values operand(Instruction::Operand operand, float number, const Values* file) {
    Value value;
    if constexpr (kAreWords)
      value = operand.from == Instruction::From::integer ? std::bit_cast<int32_t>(number) : word_of(number);
    else
      value = number;
    Values values;
    UNROLL for (int k = 0; k < kPack; ++k) values.at[k] = value;
    if (operand.from == Instruction::From::input) values = file[operand.index * kThreads];
    return values;
  }

  // A sum, a difference or a product, without branches.
  DEVICE_FN static Values arithmetic(const Instruction& instruction, const Values& accumulator, const Values& second) {
    const bool is_swapped = instruction.kind == Instruction::Kind::swapped_call;
    Values made;
    UNROLL for (int k = 0; k < kPack; ++k) {
      const Value a = is_swapped ? second.at[k] : accumulator.at[k], b = is_swapped ? accumulator.at[k] : second.at[k];
      const Value sum = a + (instruction.function == ScalarFunction::sub ? -b : b);
      made.at[k] = instruction.function == ScalarFunction::mul ? a * b : sum;
    }
    return made;
  }

  // All are asked for before the first is wanted. They come as they are in memory.
  DEVICE_FN void load_inputs(Index first, Values* file) const {
    Index at[kMostProgramDims] = {}, rest = first, place = first;
    UNROLL for (int d = 0; d < kMostProgramDims; ++d) {
      if (d + 1 < rank)
        rest = sizes[d](rest, at[d]);
      else if (d + 1 == rank)
        at[d] = rest;
    }
    int way = kFlat;
    NO_UNROLL for (int i = 0; i < read; ++i) {
      const Input input = inputs[i];
      if (input.way != way) {  // neighbours among the inputs lie alike
        way = input.way;
        place = place_of(way, first, at);
      }
      load(input, address(input, place), file + i * kThreads);
    }
    device::wait_for_copies();
    NO_UNROLL for (int i = 0; i < read; ++i) widen(inputs[i], file + i * kThreads);
  }
  DEVICE_FN const char* address(const Input& input, Index place) const {
    if constexpr (kJoins) {
      const int j = input.join;
      if (!input.data) return joins.find(j, joins.begin[j], joins.end[j], place, input.log_bytes);
    }
    return static_cast<const char*>(input.data) + (int64_t(place) << input.log_bytes);
  }
  DEVICE_FN Index place_of(int way, Index first, const Index (&at)[kMostProgramDims]) const {
    if (way < kWalks) return way == kFlat ? first : 0;
    const Walk& by = walks[way - kWalks];
    Index place = 0;
    UNROLL for (int d = 0; d < kMostProgramDims; ++d) {
      if (d >= rank) break;
      Index index = at[d];
      if (by.is_rolled) {
        const Index size = Index(sizes[d].divisor()), shift = by.shifts[d];
        index += index < size - shift ? shift : shift - size;
      }
      place += index * by.strides[d];
    }
    return place;
  }

  DEVICE_FN static void load(const Input& input, const char* from, Values* to) {
    if (!input.is_whole) {
      if (input.log_bytes == 3) return kAreWords ? load_each<uint64_t>(input, from, to) : load_wide(input, from, to);
      if (input.log_bytes == 1) return load_each<uint16_t>(input, from, to);
      return input.log_bytes == 0 ? load_each<uint8_t>(input, from, to) : load_each<uint32_t>(input, from, to);
    }
    if constexpr (kPack == 4) {
      if (input.log_bytes == 1) return device::copy_async<8>(to, from);
      if (input.log_bytes == 0) return device::copy_async<4>(to, from);
    }
    if constexpr (kAreWords) {
      if (input.log_bytes == 3) return device::copy_async<8 * kPack>(to, from);
      if (kPack == 2 && input.log_bytes == 1) return device::copy_async<4>(to, from);
    }
    device::copy_async<4 * kPack>(to, from);
  }
  template <class Bits>
  DEVICE_FN static void load_each(const Input& input, const char* from, Values* to) {
    Bits bits[kPack];
    UNROLL for (int k = 0; k < kPack; ++k) bits[k] = reinterpret_cast<const Bits*>(from)[input.repeats ? 0 : k];
    memcpy(to, bits, sizeof bits);
  }
  // What the file has no room for.
  DEVICE_FN static void load_wide(const Input& input, const char* from, Values* to) {
    UNROLL for (int k = 0; k < kPack; ++k) to->at[k] =
        float(reinterpret_cast<const int64_t*>(from)[input.repeats ? 0 : k]);
  }
  DEVICE_FN static void widen(const Input& input, Values* values) {
    switch (Type(input.type)) {
      case Type::f16: return widen_as<Half>(values);
      case Type::bf16: return widen_as<BFloat16>(values);
      case Type::boolean:
      case Type::u8: return widen_as<uint8_t>(values);
      case Type::i8: return widen_as<int8_t>(values);
      case Type::i32: return widen_as<int32_t>(values);
      default: break;
    }
    if constexpr (kAreWords)
      if (Type(input.type) == Type::f32) widen_as<float>(values);
  }
  template <class T>
  DEVICE_FN static void widen_as(Values* values) {
    device::Pack<T, kPack> pack;
    memcpy(&pack, values, sizeof pack);
    UNROLL for (int k = 0; k < kPack; ++k) {
      if constexpr (!kAreWords)
        values->at[k] = float(pack.at[k]);
      else if constexpr (std::is_same_v<T, int32_t>)
        values->at[k] = pack.at[k];
      else
        values->at[k] = word_of(float(pack.at[k]));
    }
  }

  DEVICE_FN void store(const Instruction& instruction, Index first, const Values& values) const {
    void* const to = outputs[instruction.a.index];
    switch (Type(instruction.type)) {
      case Type::f16: return store_as<Half>(to, first, values);
      case Type::bf16: return store_as<BFloat16>(to, first, values);
      case Type::boolean:
      case Type::u8: return store_as<uint8_t>(to, first, values);
      case Type::i8: return store_as<int8_t>(to, first, values);
      default: break;
    }
    if constexpr (kAreWords) {
      if (Type(instruction.type) == Type::i64) return store_as<int64_t>(to, first, values);
      if (Type(instruction.type) == Type::i32) return store_as<int32_t>(to, first, values);
    }
    store_as<float>(to, first, values);
  }
  template <class T>
  DEVICE_FN static void store_as(void* to, Index first, const Values& values) {
    device::Pack<T, kPack> pack;
    UNROLL for (int k = 0; k < kPack; ++k) {
      if constexpr (kAreWords && !(std::is_same_v<T, int32_t> || std::is_same_v<T, int64_t>))
        pack.at[k] = T(float_of(values.at[k]));
      else
        pack.at[k] = T(values.at[k]);
    }
    device::store_pack(static_cast<T*>(to) + first, pack, true);
  }

  // All functions but those that are almost everywhere, apart from the loop: what it runs should be near.
  CALLED_FN static Values call(Instruction instruction, Values accumulator, Values second, Values third) {
    const Type type = Type(instruction.type);
    using Kind = Instruction::Kind;
    const bool is_swapped =
        instruction.kind == Kind::swapped_call || (kAreWords && instruction.kind == Kind::swapped_integer_call);
    const NamedCall named{instruction.function, type == Type::f16 || type == Type::bf16, type == Type::boolean,
                          instruction.p, instruction.q};
    const auto call = [&] {
      if constexpr (kAreWords)
        return WordCall{named, instruction.kind >= Kind::integer_call, type};
      else
        return named;
    }();
    return call(is_swapped ? second : accumulator, is_swapped ? accumulator : second, third);
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
