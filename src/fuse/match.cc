#include "fuse/match.h"

#include <algorithm>
#include <cmath>

#include "device/half.h"
#include "ops/registry.h"

namespace encore::fuse {

bool is_onnx(const NodeInfo& info, const char* op) { return info.op_type() == op && info.domain().empty(); }

Match::Match(Plan& plan, const char* what)
    : plan_(plan), what_(what), producers_(plan.values.size(), -1), readers_(plan.values.size()) {
  for (int s = 0; s < size(); ++s) enter(s);
}

int Match::maker(int v) const {
  const int made = producer(v);
  return is_there(made) ? made : -1;
}
int Match::maker(int v, const char* op) const {
  const int made = producer(v);
  return is(made, op) ? made : -1;
}

int Match::only_reader(int v) const {
  return !value(v).is_output && readers(v).size() == 1 && is_there(readers(v)[0]) ? readers(v)[0] : -1;
}
int Match::only_reader(int v, const char* op) const {
  const int reader = only_reader(v);
  return is(reader, op) ? reader : -1;
}

std::optional<size_t> Match::rank(int v) const {
  return v >= 0 && value(v).dims ? std::optional(value(v).dims->size()) : std::nullopt;
}

namespace {

// The constant that an input is, if it is one number.
const Tensor* single(const Plan& plan, const Step& step, size_t input, size_t most) {
  const Tensor* const constant = plan.constant(step, input);
  return constant && constant->count() == 1 && size_t(constant->shape.rank()) <= most ? constant : nullptr;
}

}  // namespace

bool is_about(double number, double wanted, Type type) {
  return std::abs(number / wanted - 1) < (type == Type::f32 ? 1e-6 : 2e-3);
}

std::optional<double> Match::number(const Step& step, size_t input, size_t most) const {
  const Tensor* const constant = single(plan_, step, input, most);
  if (!constant) return std::nullopt;
  switch (constant->type) {
    case Type::f16: return float(*constant->as<device::Half>());
    case Type::bf16: return float(*constant->as<device::BFloat16>());
    case Type::f32: return *constant->as<float>();
    default: return std::nullopt;
  }
}

std::optional<int32_t> Match::integer(const Step& step, size_t input, size_t most) const {
  const Tensor* const constant = single(plan_, step, input, most);
  if (!constant || !ops::kIndices.has(constant->type)) return std::nullopt;
  const int64_t value = constant->type == Type::i64 ? *constant->as<int64_t>() : *constant->as<int32_t>();
  return value == int32_t(value) ? std::optional(int32_t(value)) : std::nullopt;
}

// Version 7 is the first that broadcasts as today.
std::optional<Match::Scaled> Match::scaled(int s) const {
  const bool divides = is(s, "Div");
  if (!(divides || is(s, "Mul")) || node(s).since_version() < 7) return std::nullopt;
  for (size_t i = divides ? 1 : 0; i < 2; ++i) {
    const int from = step(s).inputs[1 - i];
    const auto of = rank(from);
    if (!of || value(from).is_constant) continue;
    if (const auto factor = number(step(s), i, *of)) return Scaled{from, divides ? 1 / *factor : *factor};
  }
  return std::nullopt;
}

std::optional<Match::Shifted> Match::shifted(int s) const {
  if (!is(s, "Add") || node(s).since_version() < 7) return std::nullopt;
  for (size_t i = 0; i < 2; ++i) {
    const int from = step(s).inputs[1 - i];
    if (value(from).is_constant) continue;
    if (const auto by = number(step(s), i, rank(from).value_or(0))) return Shifted{from, *by};
  }
  return std::nullopt;
}

int Match::add(Value value) { return enter_value(plan_.add(std::move(value))); }
int Match::add_constant(std::string name, std::shared_ptr<OwnTensor> constant) {
  return enter_value(plan_.add_constant(std::move(name), std::move(constant)));
}
int Match::add_like(int v, const std::string& what) { return enter_value(plan_.add_like(v, what)); }
int Match::add_like(int v, const std::string& what, std::optional<std::vector<int64_t>> dims) {
  const int made = add_like(v, what);
  plan_.values[size_t(made)].dims = std::move(dims);
  return made;
}
int Match::enter_value(int v) {
  producers_.push_back(-1);
  readers_.emplace_back();
  return v;
}

void Match::replace(std::vector<int> steps, Step made) {
  std::vector<Step> one;
  one.push_back(std::move(made));
  replace(std::move(steps), std::move(one));
}
void Match::replace(std::vector<int> steps, std::vector<Step> made) {
  std::sort(steps.begin(), steps.end());
  std::vector<int> origin;
  for (int s : steps) {
    origin.insert(origin.end(), step(s).origin.begin(), step(s).origin.end());
    remove(s);
  }
  std::sort(origin.begin(), origin.end());
  origin.erase(std::unique(origin.begin(), origin.end()), origin.end());
  auto place = steps.end() - ptrdiff_t(made.size());
  for (Step& one : made) {
    one.origin = origin;
    one.what = what_;
    plan_.steps[size_t(*place)] = std::move(one);
    enter(*place++);
  }
}

void Match::insert(Step made) {
  plan_.steps.push_back(std::move(made));
  enter(size() - 1);
  has_changed_ = true;
}

void Match::see_as(int inner, int outer) {
  plan_.views.push_back({inner, outer});
  if (value(outer).is_output) plan_.values[size_t(inner)].is_output = true;  // it is seen outside
}

void Match::substitute(int v, int by) {
  for (int s : readers_[size_t(v)]) {
    Step& step = plan_.steps[size_t(s)];
    std::ranges::replace(step.inputs, v, by);
    if (value(by).constant && step.is_operator()) tell_constants(step);
  }
  std::vector<int>& readers = readers_[size_t(by)];
  readers.insert(readers.end(), readers_[size_t(v)].begin(), readers_[size_t(v)].end());
  readers_[size_t(v)].clear();
  has_changed_ = true;
}

// The node knows of those that it reads by now.
void Match::tell_constants(Step& step) const {
  auto node = std::make_shared<Variant>(step.node);
  for (size_t i = 0; i < step.inputs.size() && i < node->inputs().size(); ++i)
    if (step.inputs[i] >= 0) node->inputs()[i].constant = value(step.inputs[i]).constant;
  step.node = std::move(node);
}

void Match::remove(int s) {
  leave(s);
  plan_.steps[size_t(s)] = {};
  has_changed_ = true;
}

void Match::enter(int s) {
  for (int v : step(s).inputs)
    if (v >= 0) readers_[size_t(v)].push_back(s);
  for (int v : step(s).outputs)
    if (v >= 0) producers_[size_t(v)] = s;
}
void Match::leave(int s) {
  for (int v : step(s).inputs)
    if (v >= 0) readers_[size_t(v)].erase(std::ranges::find(readers_[size_t(v)], s));
  for (int v : step(s).outputs)
    if (v >= 0) producers_[size_t(v)] = -1;
}

void Match::note(int s, const char* why) {
  plan_.notes.push_back(text(ops::label_of(node(s)), " does not become ", what_, ": ", why));
}

Makers Match::makers() const {
  Makers makers(plan_.steps.size());
  for (size_t s = 0; s < makers.size(); ++s)
    for (int v : plan_.steps[s].inputs)
      if (producer(v) >= 0) makers[s].push_back(producer(v));
  return makers;
}

bool Match::finish() {
  if (!has_changed_) return false;
  std::vector<Step> sorted;
  std::vector<int> first;
  for (size_t s = 0; s < plan_.steps.size(); ++s)
    if (plan_.steps[s].comes_first) first.push_back(int(s));
  for (int s : running_order(makers(), std::move(first)))
    if (Step& next = plan_.steps[size_t(s)]; next.node) sorted.push_back(std::move(next));
  plan_.steps = std::move(sorted);
  return true;
}

}  // namespace encore::fuse
