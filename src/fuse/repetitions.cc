// Operators of which one operand is a constant that changes nothing, as a mask that is true everywhere, and Expands:
// what they make is the other operand, or repeats it.
#include <cmath>
#include <limits>
#include <set>

#include "fuse/passes.h"
#include "fuse/shape_symbols.h"
#include "fuse/text_numbers.h"

namespace encore::fuse {
namespace {

using ops::Types;

constexpr int64_t kMostNumbers = int64_t(1) << 22;
constexpr Types kWithSignedZeros = ops::kHalves | Types{Type::f32, Type::f64};

// Of zeros the sign counts, too.
bool is_all(const Match& match, const Step& step, size_t input, float number) {
  const Tensor* const constant = match.plan().constant(step, input);
  if (!constant || constant->count() == 0 || constant->count() > kMostNumbers) return false;
  bool is = false;
  visit_element(constant->type, constant->data, [&](const auto* first) {
    is = std::all_of(first, first + constant->count(), [&](const auto& one) {
      return float(one) == number && std::signbit(float(one)) == std::signbit(number);
    });
  });
  return is;
}

struct Neutral {
  const char* op;
  float number;
  bool is_second;  // alone
};
std::optional<Neutral> logical_neutral(const Match& match, int s) {
  for (const Neutral& one : {Neutral{"And", 1, false}, {"Or", 0, false}, {"Xor", 0, false}})
    if (match.is(s, one.op)) return one;
  return std::nullopt;
}
// -0 + 0 is 0.
std::optional<Neutral> arithmetical_neutral(const Match& match, int s) {
  const bool is_float = kWithSignedZeros.has(match.value(match.step(s).outputs[0]).type);
  for (const Neutral& one :
       {Neutral{"Mul", 1, false}, {"Div", 1, true}, {"Add", is_float ? -0.f : 0.f, false}, {"Sub", 0, true}})
    if (match.is(s, one.op)) return one;
  return std::nullopt;
}

// The operand that another one leaves as it is; or -1.
int left_by(const Match& match, int s, const std::optional<Neutral>& neutral) {
  const Step& step = match.step(s);
  for (size_t i = neutral && neutral->is_second ? 1 : 0; neutral && i < 2; ++i)
    if (is_all(match, step, i, neutral->number)) return step.inputs[1 - i];
  return -1;
}
bool may_broadcast(const Match& match, int s) {
  return match.is_there(s) && match.step(s).outputs.size() == 1 && match.step(s).outputs[0] >= 0 &&
         broadcasts(match.node(s));
}

bool is_elementwise(const Match& match, int s) {
  return match.is_there(s) && match.step(s).outputs.size() == 1 &&
         (broadcasts(match.node(s)) || match.is(s, "Cast") || is_for_programs(match, s));
}

bool is_known(const std::optional<Dims>& dims) { return dims && std::ranges::count(*dims, -1) == 0; }

// Values whose dimensions are made others.
class Narrowing {
 public:
  explicit Narrowing(Match& match) : match_(match) {}

  // Whether readers make of a value of these dimensions what they did, or what theirs do so of. Where not, nothing has
  // changed.
  bool run(int v, const Dims& dims) {
    narrow(v, dims);
    while (!open_.empty()) {
      const int s = *open_.begin();
      open_.erase(open_.begin());
      if (!follow(s)) return undo();
    }
    return true;
  }

 private:
  void narrow(int v, Dims dims) {
    had_.emplace_back(v, *match_.value(v).dims);
    match_.set_dims(v, std::move(dims));
    open_.insert(match_.readers(v).begin(), match_.readers(v).end());
  }
  // In the order of their running, so that all inputs are what they are going to be.
  bool follow(int s) {
    if (!is_elementwise(match_, s)) return false;
    const int y = match_.step(s).outputs[0];
    const auto made = ShapeSymbols(match_).made_by(match_.step(s), 0);
    if (!is_known(made) || !is_known(match_.value(y).dims)) return false;
    if (made == match_.value(y).dims) return true;
    if (match_.value(y).is_output) return false;
    narrow(y, *made);
    return true;
  }
  bool undo() {
    for (auto& [v, dims] : had_) match_.set_dims(v, std::move(dims));
    return false;
  }

  Match& match_;
  std::set<int> open_;                     // steps
  std::vector<std::pair<int, Dims>> had_;  // values
};

// Who reads what the step makes reads x, if it is that or repeats it for who broadcasts anyway.
void read_instead(Match& match, int step, int x) {
  const int y = match.step(step).outputs[0];
  if (x < 0 || match.value(y).is_output || match.value(x).type != match.value(y).type) return;
  const auto &of_x = match.value(x).dims, &of_y = match.value(y).dims;
  if (!is_known(of_x) || !is_known(of_y)) return;
  if (of_x != of_y && !Narrowing(match).run(y, Dims(*of_x))) return;
  match.substitute(y, x);
  drop_unread(match, step);
}

}  // namespace

void drop_repetition(Match& match, int step) {
  const std::vector<int>& inputs = match.step(step).inputs;
  if (match.is(step, "Expand")) return read_instead(match, step, inputs[0]);
  if (!may_broadcast(match, step)) return;
  if (!match.is(step, "Where")) return read_instead(match, step, left_by(match, step, logical_neutral(match, step)));
  if (is_all(match, match.step(step), 0, 1)) return read_instead(match, step, inputs[1]);
  if (is_all(match, match.step(step), 0, 0)) return read_instead(match, step, inputs[2]);
}

void drop_neutral(Match& match, int step) {
  if (may_broadcast(match, step)) read_instead(match, step, left_by(match, step, arithmetical_neutral(match, step)));
}

}  // namespace encore::fuse
