// Elementwise steps with outputs of one shape are one: what is between them is never in memory.
#include "ops/elementwise/program.h"

#include <algorithm>
#include <map>
#include <span>
#include <utility>

#include "fuse/joined_pieces.h"
#include "fuse/linear_quantization.h"
#include "fuse/links.h"
#include "fuse/rolls.h"
#include "fuse/shape_symbols.h"
#include "ops/registry.h"

namespace encore::fuse {
namespace {

using ops::Expression;
using Operand = Expression::Operand;

// A number has no dimensions, which others have to make up for.
std::optional<size_t> rank_of_others(const Match& match, const Step& step, size_t input) {
  std::optional<size_t> most;
  for (size_t i = 0; i < step.inputs.size(); ++i)
    if (i != input && !match.value(step.inputs[i]).is_constant)
      if (const auto rank = match.rank(step.inputs[i])) most = std::max(most.value_or(0), *rank);
  return most;
}

// What a program is told of an input, if it need not read it.
std::optional<Operand> number_of(const Match& match, const Step& step, size_t input) {
  const auto most = rank_of_others(match, step, input);
  if (!most) return std::nullopt;
  if (const auto number = match.number(step, input, *most)) return Operand{Operand::Kind::number, 0, float(*number)};
  if (const auto integer = match.integer(step, input, *most)) return Operand{Operand::Kind::integer, *integer};
  return std::nullopt;
}

// What the step computes, if a program can: it divides integers by numbers alone, as it tells of no divisor that is
// zero.
std::optional<ops::ScalarCall> scalar_call(const Match& match, int s) {
  if (const auto call = linear_call(match, s)) return call;
  const auto call = ops::scalar_call(match.node(s));
  if (!call || !ops::is_division(call->function) || !ops::kIndices.has(match.node(s).input_type(0))) return call;
  const auto divisor = number_of(match, match.step(s), 1);
  return divisor && divisor->index != 0 ? call : std::nullopt;
}

// Those of its inputs that the function is of.
std::span<const int> operands(const Step& step, ops::ScalarFunction function) {
  return std::span(step.inputs).first(std::min(step.inputs.size(), size_t(ops::operands_of(function))));
}

// What the step computes, if all that it makes lies in a space of known symbols.
std::optional<ops::ScalarCall> call_of(const Match& match, int s) {
  if (!match.is_there(s) || match.step(s).outputs.size() != 1 || match.step(s).outputs[0] < 0) return std::nullopt;
  const auto& dims = match.value(match.step(s).outputs[0]).dims;
  if (!dims || std::ranges::count(*dims, -1) > 0) return std::nullopt;
  if (std::ssize(*dims) - std::ranges::count(*dims, 1) > ops::kMostProgramDims) return std::nullopt;
  const auto call = scalar_call(match, s);
  if (!call || std::ranges::count(operands(match.step(s), call->function), -1) > 0) return std::nullopt;
  return call;
}

}  // namespace

bool is_for_programs(const Match& match, int step) { return match.is_there(step) && scalar_call(match, step); }

bool is_elementwise_for(const Match& match, int v) {
  return match.plan().settings.fuses_elementwise && match.only_reader(v) >= 0 && is_for_programs(match, match.maker(v));
}

bool is_read_in_place(const Match& match, int v) {
  const std::vector<int>& readers = match.readers(v);
  return !match.value(v).is_output && std::ranges::all_of(readers, [&](int s) {
    if (call_of(match, s)) return true;
    if (!match.is(s, "Slice") || match.step(s).inputs[0] != v) return false;
    const int made = match.step(s).outputs[0];
    return part_of(match, made).has_value() && is_read_in_place(match, made);
  });
}

namespace {

// The Concat that makes a value for programs alone, which may read its pieces; or -1.
int concat_in_place(const Match& match, int v) {
  const int concat = match.maker(v, "Concat");
  const auto rank = match.rank(v);
  if (concat < 0 || !rank || match.value(v).is_output || match.step(concat).inputs.size() > ops::kMostProgramPieces ||
      !counted_from_first(match.node(concat).get_int("axis", 1), *rank))
    return -1;
  const auto is_one_of_type = [&](int piece) { return piece >= 0 && match.value(piece).type == match.value(v).type; };
  return std::ranges::all_of(match.step(concat).inputs, is_one_of_type) &&
                 std::ranges::all_of(match.readers(v), [&](int s) { return call_of(match, s).has_value(); })
             ? concat
             : -1;
}

// What a program reads: a value, or a part of one, or what it is as a roll or as pieces side by side.
struct Read {
  Rolled rolled;
  int concat = -1;
  std::map<int, std::pair<int64_t, int64_t>> parts;  // by axis, counted from the end
  bool operator==(const Read&) const = default;

  Read(const Match& match, int v) : rolled{v, {}} {
    if (const int made = match.producer(v); made >= 0 && is_roll(match.step(made))) {
      rolled = rolled_by(match.step(made));
      return;
    }
    concat = concat_in_place(match, v);
    for (;;) {
      const auto part = part_of(match, rolled.from);
      if (!part || !is_read_in_place(match, rolled.from)) break;
      const auto [own, is_first] = parts.try_emplace(part->axis - int(*match.rank(part->x)), part->begin, part->end);
      if (!is_first) own->second.first += part->begin, own->second.second += part->begin;
      rolled.from = part->x;
    }
  }
};

// Steps as one: what they read, what they make that others read, and the expression.
class Joined {
 public:
  explicit Joined(const Match& match) : match_(&match) {}

  // False, and nothing has changed, if it would be too much for a kernel.
  bool add(int s, const ops::ScalarCall& call) {
    Joined more = *this;
    more.enter(s, call);
    more.find_outputs();
    if (!ops::fits_in_a_program(more.parts_.expression, int(more.parts_.inputs.size()))) return false;
    std::swap(parts_, more.parts_);
    return true;
  }
  // False likewise, though some may have been added.
  bool add(const Joined& other) {
    for (size_t i = 0; i < other.parts_.steps.size(); ++i)
      if (!add(other.parts_.steps[i], other.parts_.expression.values[i].call)) return false;
    return true;
  }
  const std::vector<int>& steps() const { return parts_.steps; }
  const std::vector<int>& outputs() const { return parts_.outputs; }
  const Expression& expression() const { return parts_.expression; }
  bool has_integers() const {
    std::vector<Type> types;
    for (const int v : parts_.inputs) types.push_back(match_->value(v).type);
    Expression expression = parts_.expression;
    ops::tell_integers(expression, types);
    return ops::has_integers(expression);
  }
  bool pays() const {
    return parts_.steps.size() > 1 || !parts_.expression.parts.empty() || !parts_.expression.joins.empty() ||
           !parts_.expression.rolls.empty();
  }

  Step step() const {
    std::string name = match_->node(parts_.steps.front()).name();
    if (parts_.steps.size() > 1) name += " to " + match_->node(parts_.steps.back()).name();
    Step made = match_->plan().step({kFusions, "Elementwise", 1, {{ops::kExpression, ops::text_of(parts_.expression)}}},
                                    std::move(name), parts_.inputs, parts_.outputs);
    made.make = ops::make_elementwise_program;
    return made;
  }

 private:
  void enter(int s, const ops::ScalarCall& call) {
    const Step& step = match_->step(s);
    Expression::Value value{call, match_->value(step.outputs[0]).type, {}};
    for (size_t i = 0; i < operands(step, call.function).size(); ++i) value.operands.push_back(operand(step, i));
    parts_.values[step.outputs[0]] = int(parts_.expression.values.size());
    parts_.expression.values.push_back(std::move(value));
    parts_.steps.push_back(s);
  }
  Operand operand(const Step& step, size_t input) {
    const int v = step.inputs[input];
    if (const auto made = parts_.values.find(v); made != parts_.values.end())
      return {Operand::Kind::value, made->second};
    if (const auto number = number_of(*match_, step, input)) return *number;
    const Read read(*match_, v);
    const auto known = std::ranges::find(parts_.reads, read);
    if (known != parts_.reads.end())
      return {Operand::Kind::input, parts_.first_inputs[size_t(known - parts_.reads.begin())]};
    const int index = int(parts_.inputs.size());
    parts_.reads.push_back(read);
    parts_.first_inputs.push_back(index);
    if (read.concat < 0) {
      parts_.inputs.push_back(read.rolled.from);
      for (const auto& [axis, shift] : read.rolled.shifts) parts_.expression.rolls.push_back({index, axis, shift});
      for (const auto& [axis, part] : read.parts)
        parts_.expression.parts.push_back({index, axis, part.first, part.second});
    } else {
      const Pieces pieces = *pieces_of(*match_, read.concat);
      for (const Piece& piece : pieces.all) {
        if (piece.is_part())
          parts_.expression.parts.push_back({int(parts_.inputs.size()), pieces.axis, piece.begin, piece.end});
        parts_.inputs.push_back(piece.of);
      }
      parts_.expression.joins.push_back({index, int(parts_.inputs.size()) - 1, pieces.axis});
    }
    return {Operand::Kind::input, index};
  }
  void find_outputs() {
    parts_.outputs.clear(), parts_.expression.outputs.clear();
    for (const int s : parts_.steps) {
      const int v = match_->step(s).outputs[0];
      const std::vector<int>& readers = match_->readers(v);
      const bool is_inside =
          !match_->value(v).is_output && !readers.empty() &&
          std::ranges::all_of(readers, [&](int s) { return std::ranges::find(parts_.steps, s) != parts_.steps.end(); });
      if (is_inside) continue;
      parts_.outputs.push_back(v);
      parts_.expression.outputs.push_back(parts_.values.at(v));
    }
  }

  struct Parts {
    std::vector<int> steps, inputs, outputs;  // the latter two are values
    std::vector<Read> reads;                  // what the inputs are
    std::vector<int> first_inputs;            // by read: its place among the inputs
    std::map<int, int> values;                // of the plan and of the expression
    Expression expression;
  };
  const Match* match_;
  Parts parts_;
};

using Calls = std::map<int, ops::ScalarCall>;  // by step

// Of steps whose outputs have one shape. Those that read parts are programs alone, too.
void join(const Match& match, const Calls& calls, std::vector<Joined>& programs) {
  std::vector<bool> fits(static_cast<size_t>(match.size()));
  for (const auto& [s, call] : calls) fits[size_t(s)] = true;
  std::vector<std::vector<int>> sets;
  if (calls.size() > 1) sets = convex_sets(match.makers(), fits, When::late);
  for (const auto& set : sets)
    for (const int s : set) fits[size_t(s)] = false;
  for (const auto& [s, call] : calls)
    if (fits[size_t(s)]) sets.push_back({s});
  for (const std::vector<int>& set : sets) {
    programs.emplace_back(match);
    for (const int s : set)
      if (!programs.back().add(s, calls.at(s))) programs.emplace_back(match).add(s, calls.at(s));
  }
}

// Whether it costs less than a kernel would, though it is done again for each row.
bool is_light(const Expression& expression) {
  using enum ops::ScalarFunction;
  constexpr ops::ScalarFunction kLight[] = {add,      sub,   mul,           quotient,      least,      greatest,
                                            same,     below, below_or_same, both,          either,     one_only,
                                            inverted, above, cast,          above_or_same, abs,        neg,
                                            select,   relu,  to_uint8,      to_int8,       from_linear};
  return expression.joins.empty() && expression.rolls.empty() &&
         std::ranges::all_of(expression.values, [&](const Expression::Value& value) {
           return std::ranges::find(kLight, value.call.function) != std::end(kLight);
         });
}

// The program that alone reads what this one makes, or none.
std::optional<size_t> only_reader(const Match& match, const std::vector<Joined>& programs, size_t p,
                                  const std::map<int, size_t>& place) {
  std::optional<size_t> only;
  for (const int v : programs[p].outputs()) {
    if (match.value(v).is_output) return std::nullopt;
    for (const int s : match.readers(v)) {
      const auto found = place.find(s);
      if (found == place.end() || (only && found->second != p && found->second != *only)) return std::nullopt;
      if (found->second != p) only = found->second;
    }
  }
  return only;
}

// What is light, and broadcast in one other program alone, is made there. No path leaves both and comes back, or one
// would leave the other program and do so. The last programs come first, which take along what was to be taken by what
// they take.
void take_along(const Match& match, std::vector<Joined>& programs) {
  std::ranges::sort(programs, std::ranges::greater(), [](const Joined& one) { return one.steps().back(); });
  std::map<int, size_t> place;  // by step
  for (size_t p = 0; p < programs.size(); ++p)
    for (const int s : programs[p].steps()) place[s] = p;
  const auto space = [&](size_t p) { return match.value(programs[p].outputs()[0]).dims; };
  for (size_t p = 0; p < programs.size(); ++p) {
    const auto reader = is_light(programs[p].expression()) ? only_reader(match, programs, p, place) : std::nullopt;
    if (!reader || space(p) == space(*reader)) continue;
    if (programs[p].has_integers() && !programs[*reader].has_integers()) continue;  // which would be slower
    Joined both(match);
    if (!both.add(programs[p]) || !both.add(programs[*reader])) continue;
    for (const int s : programs[p].steps()) place[s] = *reader;
    programs[*reader] = std::move(both);
    programs[p] = Joined(match);
  }
}

}  // namespace

void join_elementwise(Match& match) {
  if (!match.plan().settings.fuses_elementwise) return;
  std::map<std::vector<int64_t>, Calls> by_space;
  for (int s = 0; s < match.size(); ++s)
    if (const auto call = call_of(match, s)) by_space[*match.value(match.step(s).outputs[0]).dims].emplace(s, *call);
  std::vector<Joined> programs;
  for (const auto& [space, calls] : by_space) join(match, calls, programs);
  std::erase_if(programs, [](const Joined& one) { return one.steps().empty(); });  // before a step too large for any
  take_along(match, programs);
  for (const Joined& program : programs)
    if (program.pays()) match.replace(program.steps(), program.step());
}

}  // namespace encore::fuse
