// Runs of plans on the device.
#pragma once
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "../device/on_device.h"
#include "device/error.h"
#include "fuse/program.h"

namespace encore::fuse::tests {

using ops::Shape;
using ops::Where;

struct Array {
  Shape shape;
  std::vector<float> values;
  bool operator==(const Array&) const = default;
};
inline std::ostream& operator<<(std::ostream& out, const Array& array) {
  out << array.shape.str() << ":";
  for (float value : array.values) out << " " << value;
  return out;
}

class Memory {
 public:
  void* take(size_t bytes) {
    if (bytes == 0) return nullptr;
    auto block = std::make_unique<device::DeviceArray<char>>(bytes);
    void* const at = block->data();
    blocks_.emplace(at, std::move(block));
    return at;
  }
  void give_back(void* at) { EXPECT_EQ(blocks_.erase(at), 1u); }
  size_t count() const { return blocks_.size(); }

 private:
  std::map<void*, std::unique_ptr<device::DeviceArray<char>>> blocks_;
};

class Loading final : public ops::Prepack {
 public:
  Loading(Memory& memory, device::StreamRef stream) : memory_(memory), stream_(stream) {}
  ops::StreamRef stream() override { return stream_; }
  device::Dnn& dnn() override { fail(Code::internal, "there are no convolutions here"); }
  void* keep(size_t bytes) override { return memory_.take(bytes); }
  void* keep_constant(const Tensor& constant, bool) override {
    void* const at = keep(constant.bytes());
    if (at) device::copy(stream_, at, constant.data, constant.bytes());
    return at;
  }
  void let_go(void* kept) override { memory_.give_back(kept); }
  int fault_number(const std::string&) override { return 1; }

 private:
  Memory& memory_;
  device::StreamRef stream_;
};

class Run final : public ops::Context {
 public:
  Run(const std::vector<Array>& inputs, const std::vector<Type>& outputs, device::StreamRef stream) : stream_(stream) {
    for (const Type type : outputs) outputs_.push_back({type, Where::device, {}, nullptr});
    for (const Array& input : inputs) {
      Tensor& made = inputs_.emplace_back(Tensor{Type::f32, Where::device, input.shape, nullptr});
      made.data = borders_.take(made.bytes());
      if (made.data) device::copy(stream_, made.data, input.values.data(), made.bytes());
    }
  }
  ~Run() override { stream_.synchronize(); }
  std::vector<Array> results() const {
    std::vector<Array> results;
    for (const Tensor& output : outputs_) {
      Array& result = results.emplace_back(Array{output.shape, std::vector<float>(size_t(output.count()))});
      if (output.data) device::copy(stream_, result.values.data(), output.data, output.bytes());
    }
    stream_.synchronize();
    return results;
  }
  const std::vector<Tensor>& outputs() const { return outputs_; }
  size_t scratch_count() const { return scratch_.count(); }

  int input_count() const override { return int(inputs_.size()); }
  int output_count() const override { return int(outputs_.size()); }
  const Tensor* find_input(int i) override { return size_t(i) < inputs_.size() ? &inputs_[size_t(i)] : nullptr; }
  Tensor output(int i, const Shape& shape) override {
    Tensor& made = outputs_[size_t(i)];
    made.shape = shape;
    made.data = borders_.take(made.bytes());
    return made;
  }
  bool wants_output(int) const override { return true; }
  device::StreamRef stream() const override { return stream_; }
  void* scratch(size_t bytes) override { return scratch_.take(bytes); }
  void give_back(void* block) override {
    if (stream_.capture_status() != device::CaptureStatus::none) return;  // it is the graph's
    stream_.synchronize();
    scratch_.give_back(block);
  }
  device::Blas& blas() override { fail(Code::internal, "there are no products here"); }
  device::Dnn& dnn() override { fail(Code::internal, "there are no convolutions here"); }
  device::FaultRef fault() override { return {}; }
  void read_back(void* host, const void* from, size_t bytes) override {
    ++times_read_back;
    device::copy(stream_, host, from, bytes);
    stream_.synchronize();
  }
  int times_read_back = 0;

 private:
  const device::StreamRef stream_;
  Memory borders_, scratch_;
  std::vector<Tensor> inputs_, outputs_;
};

}  // namespace encore::fuse::tests
