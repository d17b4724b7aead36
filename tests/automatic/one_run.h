// A run of a region, with tensors that a test gives.
#pragma once
#include <vector>

#include "../device/on_device.h"
#include "device/launch.h"
#include "memory/arena.h"
#include "ops/op.h"

namespace encore::automatic::tests {

using device::DeviceArray;
using ops::Shape;
using ops::Tensor;
using ops::Type;

struct AddOne {
  const float* x;
  float* y;
  DEVICE_FN void operator()(int64_t i) const { y[i] = x[i] + 1; }
};

// With an input and an output.
class OneRun : public ops::Context {
 public:
  OneRun(memory::Arena& arena, device::StreamRef stream, DeviceArray<float>& x, DeviceArray<float>& y)
      : arena_(arena),
        stream_(stream),
        x_{Type::f32, ops::Where::device, Shape{int64_t(x.size())}, x.data()},
        y_(y.data()) {}
  ~OneRun() override {
    for (void* block : scratch_) arena_.free(block);
  }
  int input_count() const override { return 1; }
  int output_count() const override { return 1; }
  const Tensor* find_input(int i) override { return i == 0 ? &x_ : nullptr; }
  Tensor output(int, const Shape& shape) override { return {Type::f32, ops::Where::device, shape, y_}; }
  bool wants_output(int i) const override { return i == 0; }
  device::StreamRef stream() const override { return stream_; }
  void* scratch(size_t bytes) override {
    return bytes ? scratch_.emplace_back(arena_.allocate(bytes, stream_)) : nullptr;
  }
  void give_back(void* block) override {
    std::erase(scratch_, block);
    arena_.free(block);
  }
  device::Blas& blas() override { fail(Code::internal, "there are no products here"); }
  device::Dnn& dnn() override { fail(Code::internal, "there are no convolutions here"); }
  device::FaultRef fault() override { return {}; }
  void read_back(void* host, const void* from, size_t bytes) override {
    device::copy(stream_, host, from, bytes);
    stream_.synchronize();
  }

 protected:
  OneRun(memory::Arena& arena, device::StreamRef stream) : arena_(arena), stream_(stream), y_(nullptr) {}

 private:
  memory::Arena& arena_;
  device::StreamRef stream_;
  Tensor x_;
  float* y_;
  std::vector<void*> scratch_;
};

}  // namespace encore::automatic::tests
