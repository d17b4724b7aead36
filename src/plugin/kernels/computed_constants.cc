#include "plugin/kernels/computed_constants.h"

#include <utility>

#include "fuse/own_tensor.h"
#include "fuse/program.h"
#include "plugin/kernels/kernel_run.h"

namespace encore::plugin {
namespace {

using ops::Tensor;

// Nothing comes in, and all memory is its own.
class EarlyRun final : public ops::Context {
 public:
  EarlyRun(Ep& ep, KernelPrepack& memory, std::vector<Tensor> outputs)
      : ep_(ep), memory_(memory), stream_(memory.stream()), outputs_(std::move(outputs)) {}
  const std::vector<Tensor>& outputs() const { return outputs_; }

  int input_count() const override { return 0; }
  int output_count() const override { return int(outputs_.size()); }
  const Tensor* find_input(int) override { return nullptr; }
  Tensor output(int i, const ops::Shape& shape) override {
    Tensor& made = outputs_[size_t(i)];
    made.shape = shape;
    made.data = memory_.keep(made.bytes());
    return made;
  }
  bool wants_output(int) const override { return true; }
  ops::StreamRef stream() const override { return stream_; }
  void* scratch(size_t bytes) override { return memory_.keep(bytes); }
  void give_back(void* block) override {
    if (block) memory_.let_go(block);
  }
  device::Blas& blas() override { return ep_.blas(); }
  device::Dnn& dnn() override { return ep_.dnn(); }
  device::FaultRef fault() override { return {ep_.faults().of(stream_), 0}; }
  void read_back(void* host, const void* device, size_t bytes) override {
    ep_.copies().download(stream_, host, device, bytes);
  }

 private:
  Ep& ep_;
  KernelPrepack& memory_;
  const ops::StreamRef stream_;
  std::vector<Tensor> outputs_;
};

std::vector<std::shared_ptr<fuse::OwnTensor>> compute(Ep& ep, KernelPrepack& memory, fuse::Plan plan) {
  std::vector<Tensor> outputs;
  for (int v : plan.outputs) outputs.push_back({plan.values[size_t(v)].type, ops::Where::device, {}, nullptr});
  fuse::Program program(std::move(plan));
  program.prepare(memory);
  memory.finish();  // kernels that begin early take what was packed for done
  EarlyRun run(ep, memory, std::move(outputs));
  program.run(run);
  std::vector<std::shared_ptr<fuse::OwnTensor>> results;
  for (const Tensor& made : run.outputs()) {
    const auto& result = results.emplace_back(fuse::own(made.type, made.shape));
    if (made.bytes() > 0) run.read_back(result->bytes.data(), made.data, made.bytes());
  }
  memory.finish();
  ep.faults().check(run.stream());
  return results;
}

}  // namespace

fuse::Compute compute_on(Ep& ep) {
  return [&ep](fuse::Plan plan) {
    Kept kept;
    KernelPrepack memory(ep, kept);
    try {
      return compute(ep, memory, std::move(plan));
    } catch (...) {
      memory.finish();  // what is kept may still be in use
      throw;
    }
  };
}

}  // namespace encore::plugin
