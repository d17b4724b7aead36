// A model of three nodes, with scratch memory between them: output = input + 1 + 2 + 3.
#pragma once
#include <cstddef>
#include <memory>
#include <vector>

#include "../memory/gate.h"
#include "device/label.h"
#include "graph/session_graphs.h"

namespace encore::test {

class Model {
 public:
  static constexpr int64_t kCount = 3000;
  static constexpr size_t kBytes = size_t(kCount) * sizeof(float);

  explicit Model(graph::SessionGraphs& graphs)
      : graphs_(graphs),
        own_arena_(std::make_unique<memory::Arena>(0, memory::Settings{}, "model")),
        arena_(own_arena_.get()) {
    bind();
  }
  Model(graph::SessionGraphs& graphs, memory::Arena& arena) : graphs_(graphs), arena_(&arena) { bind(); }
  ~Model() {
    try {
      graphs_.synchronize();
    } catch (const Error&) {  // a test made the stream fail
    }
    arena_->free(input_);
    arena_->free(output_);
  }

  memory::Arena& arena() { return *arena_; }
  void set_input(float value) { device::for_each_index(graphs_.stream(), kCount, Fill{input_, value}); }
  void compute() {
    const device::StreamRef stream = graphs_.stream();
    auto first = scratch(stream);
    {
      device::Label label("Add_0");
      device::for_each_index(stream, kCount, Add{input_, first.get(), 1});
    }
    auto second = scratch(stream);
    {
      device::Label label("Add_1");
      device::for_each_index(stream, kCount, Add{first.get(), second.get(), 2});
    }
    first.reset();
    {
      device::Label label("Add_2");
      device::for_each_index(stream, kCount, Add{second.get(), output_, 3});
    }
  }
  bool run(int id) {
    graphs_.begin_run(id);
    compute();
    return graphs_.end_run(true);
  }
  // As onnxruntime does it.
  void run_or_replay(int id) {
    if (graphs_.is_captured(id))
      graphs_.replay(id);
    else
      run(id);
  }
  std::vector<float> output() const { return output(graphs_.stream()); }
  std::vector<float> output(device::StreamRef stream) const { return read(stream, output_, kCount); }
  std::vector<float> expected(float input) const { return std::vector<float>(kCount, input + 6); }

 private:
  struct Free {
    memory::Arena* arena;
    void operator()(float* block) const { arena->free(block); }
  };
  std::unique_ptr<float, Free> scratch(device::StreamRef stream) {
    return {static_cast<float*>(arena_->allocate(kBytes, stream)), Free{arena_}};
  }
  void bind() {
    input_ = static_cast<float*>(arena_->allocate(kBytes, graphs_.stream()));
    output_ = static_cast<float*>(arena_->allocate(kBytes, graphs_.stream()));
  }

  graph::SessionGraphs& graphs_;
  std::unique_ptr<memory::Arena> own_arena_;
  memory::Arena* arena_;
  float *input_ = nullptr, *output_ = nullptr;
};

}  // namespace encore::test
