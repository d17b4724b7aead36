// What has one body that runs many times.
#pragma once
#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "fuse/body_run.h"
#include "fuse/program.h"

namespace encore::fuse {

// Of so many of these.
inline Shape many(int64_t count, const Shape& part) {
  std::vector<int64_t> dims(part.dims().begin(), part.dims().end());
  dims.insert(dims.begin(), count);
  return Shape(dims);
}

// Around iterations that run one by one, in the calling thread: how often the loops around something repeat it so.
class OneByOne {
 public:
  explicit OneByOne(int64_t count) : before_(times_) {
    times_ = count > kMost / times_ ? kMost : times_ * std::max<int64_t>(count, 1);
  }
  ~OneByOne() { times_ = before_; }
  OneByOne(const OneByOne&) = delete;
  static int64_t times() { return times_; }

 private:
  static constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  inline static thread_local int64_t times_ = 1;
  const int64_t before_;
};

// Values go on from each iteration to the next, the first ones that the body makes, and others are collected.
class Iterations : public BodyRun {
 public:
  Iterations(ops::Context& outer, int first, const std::vector<Type>& types, size_t carried);

  // The last one's values are made where they are wanted.
  void run(const Program& body, bool is_last);
  bool changes_shapes() const { return changes_shapes_; }  // of values
  // `unmade` are shapes of what is collected, if there was no iteration.
  void finish(const std::vector<Shape>& unmade, const std::vector<bool>& is_reversed);

  const Tensor* find_input(int i) override {
    return size_t(i) < values_.size() ? &values_[size_t(i)] : BodyRun::find_input(i);
  }
  Tensor output(int i, const Shape& shape) override;

 private:
  void let_go(const Tensor& value);
  void join(size_t i, const std::vector<Tensor>& parts, const Shape& unmade, bool is_reversed);

  std::vector<Tensor> values_;
  std::vector<std::optional<Tensor>> made_;
  std::vector<std::vector<Tensor>> parts_;
  bool is_last_ = false, owns_values_ = false, changes_shapes_ = false;
};

class Repeated : public ops::Op {
 public:
  // The body's first outputs, as many as `own`, are none of the step's.
  Repeated(Plan& plan, size_t own, size_t carried);
  void prepare(ops::Prepack& loader) override { body_->prepare(loader); }

 protected:
  const std::vector<Type> types_;  // of the step's outputs
  const size_t carried_;
  const int on_device_;        // inputs of the body
  std::vector<Shape> unmade_;  // as onnxruntime has what is collected of no iterations
  std::unique_ptr<Program> body_;
};

}  // namespace encore::fuse
