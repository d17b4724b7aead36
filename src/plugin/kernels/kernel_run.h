// What kernels and fused nodes see of a run, and of what is prepared before the first.
#pragma once
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ops/op.h"
#include "plugin/kernels/run_as.h"
#include "plugin/model/node_info.h"

namespace encore::plugin {

// What all kinds of kernels know of their node.
struct Node : NamedNode {
  int input_count, output_count, fault_number = 0;
  std::vector<bool> host_inputs, host_outputs, constant_inputs, wants_output;
  std::vector<std::string> input_values;  // their names

  Node(Ep& ep, const NodeInfoBase& info, std::vector<bool> constants)
      : NamedNode(ep, info),
        input_count(info.input_count()),
        output_count(info.output_count()),
        constant_inputs(std::move(constants)) {
    host_inputs.resize(size_t(input_count));
    host_outputs.resize(size_t(output_count));
    for (int i = 0; i < input_count; ++i) input_values.push_back(info.input_value(i));
    for (int i = 0; i < output_count; ++i) wants_output.push_back(info.has_output(i));
  }

  // A view of an input. onnxruntime's plan is not trusted: on the wrong side the tensor's address means nothing.
  ops::Tensor input(const OrtValue* value, int i) const;
};

// One run of a kernel. Inputs are looked up when asked for; scratch goes back when the launches are enqueued, since
// the stream's order keeps it safe.
class KernelRun final : public ops::Context {
 public:
  KernelRun(const Node& node, OrtKernelContext* context);
  ~KernelRun() override;

  int input_count() const override { return node_.input_count; }
  int output_count() const override { return node_.output_count; }
  bool wants_output(int i) const override { return i < node_.output_count && node_.wants_output[size_t(i)]; }
  ops::StreamRef stream() const override { return stream_; }
  device::Blas& blas() override { return node_.ep.blas(); }
  device::Dnn& dnn() override { return node_.ep.dnn(); }
  device::FaultRef fault() override { return {node_.ep.faults().of(stream_), node_.fault_number}; }
  const ops::Tensor* find_input(int i) override;
  ops::Tensor output(int i, const ops::Shape& shape) override;
  void* scratch(size_t bytes) override;
  void read_back(void* host, const void* device, size_t bytes) override;

 private:
  const Node& node_;
  OrtKernelContext* context_;
  ops::StreamRef stream_;
  std::array<std::optional<ops::Tensor>, 6> few_;
  std::vector<std::optional<ops::Tensor>> many_;
  std::array<void*, 4> scratch_{};
  std::vector<void*> more_scratch_;
};

// What ops keep, on the device, as long as the kernel lives; constants perhaps with others.
using Kept = std::vector<std::shared_ptr<void>>;
// Constants on the device by where they are on the host, while that lives.
using Constants = std::map<std::pair<const void*, size_t>, std::weak_ptr<void>>;

// Memory and a stream for what ops keep of constants.
class KernelPrepack final : public ops::Prepack {
 public:
  KernelPrepack(Ep& ep, Kept& kept, Constants* constants = nullptr) : ep_(ep), kept_(kept), constants_(constants) {}
  ops::StreamRef stream() override;
  device::Dnn& dnn() override { return ep_.dnn(); }
  void* keep(size_t bytes) override;
  void* keep_constant(const ops::Tensor& constant, bool is_models) override;
  void let_go(void* kept) override;
  int fault_number(const std::string& who) override { return ep_.faults().number(who); }
  void finish() const {
    if (stream_.ref().native()) stream_.ref().synchronize();
  }

 private:
  Ep& ep_;
  Kept& kept_;
  Constants* const constants_;  // null: nobody shares them
  device::Stream stream_;
};

}  // namespace encore::plugin
