// A plan while a pass looks for patterns of steps and puts others there.
#pragma once
#include <optional>
#include <vector>

#include "fuse/plan.h"

namespace encore::fuse {

bool is_onnx(const NodeInfo& info, const char* op);
// Whether a number of this type is meant to be that one.
bool is_about(double number, double wanted, Type type);

class Match {
 public:
  // `what` the steps are that are joined.
  Match(Plan& plan, const char* what);

  const Plan& plan() const { return plan_; }
  int size() const { return int(plan_.steps.size()); }
  const Step& step(int s) const { return plan_.steps[size_t(s)]; }
  const NodeInfo& node(int s) const { return *step(s).node; }
  const Value& value(int v) const { return plan_.values[size_t(v)]; }
  const std::vector<int>& readers(int v) const { return readers_[size_t(v)]; }  // steps, one for each reading

  // Whether the step is there and an operator on the device.
  bool is_there(int s) const {
    return s >= 0 && step(s).node && step(s).runs == Runs::on_device && !step(s).make && step(s).is_operator();
  }
  bool is(int s, const char* op) const { return is_there(s) && is_onnx(node(s), op); }
  // The step that makes the value, whoever runs it, or -1.
  int producer(int v) const { return v < 0 ? -1 : producers_[size_t(v)]; }
  // The one that does so and is there, or -1.
  int maker(int v) const;
  int maker(int v, const char* op) const;
  // The step that alone reads the value and is there, or -1.
  int only_reader(int v) const;
  int only_reader(int v, const char* op) const;
  // The input of a step of two that is not this one.
  int other(int s, int v) const { return step(s).inputs[step(s).inputs[0] == v ? 1 : 0]; }
  std::optional<size_t> rank(int v) const;
  Makers makers() const;

  // The single number that an input is, if it is a constant one; with no more dimensions than `most`.
  std::optional<double> number(const Step& step, size_t input, size_t most) const;
  // The same of an integer of 32 bits, whatever its type.
  std::optional<int32_t> integer(const Step& step, size_t input, size_t most) const;
  struct Scaled {
    int from;  // a value
    double factor;
  };
  // What the step multiplies by a number, or divides by one, if it does no more.
  std::optional<Scaled> scaled(int s) const;
  struct Shifted {
    int from;
    double by;
  };
  // What the step adds a number to, likewise.
  std::optional<Shifted> shifted(int s) const;

  int add(Value value);
  int add_constant(std::string name, std::shared_ptr<OwnTensor> constant);
  // One of the same type, and of the same dimensions or these, which a step is to make.
  int add_like(int v, const std::string& what);
  int add_like(int v, const std::string& what, std::optional<std::vector<int64_t>> dims);
  void set_dims(int v, std::vector<int64_t> dims) { plan_.values[size_t(v)].dims = std::move(dims); }
  int64_t add_symbol() { return plan_.symbols->add(""); }
  void keep(std::shared_ptr<OwnTensor> constant) { plan_.constants.push_back(std::move(constant)); }
  // Puts `made` in the place of these steps, none more than there were.
  void replace(std::vector<int> steps, std::vector<Step> made);
  void replace(std::vector<int> steps, Step made);
  // One more.
  void insert(Step made);
  // `inner` is the memory of an input or output of the plan.
  void see_as(int inner, int outer);
  // Who reads `v` reads `by`.
  void substitute(int v, int by);
  void remove(int s);
  // Tells why the step stays, which is nearly one that the pass joins.
  void note(int s, const char* why);
  // Puts the steps in an order in which they can run. Whether there was anything to do.
  bool finish();

 private:
  int enter_value(int v);
  void tell_constants(Step& step) const;
  void enter(int s);
  void leave(int s);

  Plan& plan_;
  const char* const what_;
  std::vector<int> producers_;             // by value: a step, or -1
  std::vector<std::vector<int>> readers_;  // by value
  bool has_changed_ = false;
};

}  // namespace encore::fuse
