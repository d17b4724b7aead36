// What kernels and fused nodes see of a run, and of what is prepared before the first.
#pragma once
#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "memory/pool_scope.h"
#include "ops/op.h"
#include "plugin/kernels/profiled_node.h"
#include "plugin/kernels/run_as.h"
#include "plugin/model/node_info.h"
#include "plugin/session/constants.h"

namespace encore::plugin {

// A value that a node reads or makes.
struct NodeValue {
  std::string name;
  bool is_constant = false;
  bool may_be_bound = false;  // the application may have said where it is
  // Addresses that were found to be on the right side.
  mutable std::array<std::atomic<const void*>, 4> seen = {};

  std::atomic<const void*>& seen_like(const void* address) const {
    return seen[uintptr_t(address) / 256 % seen.size()];
  }
  bool was_at(const void* address) const {
    return address && address == seen_like(address).load(std::memory_order_relaxed);
  }
  // Refuses a tensor that has no memory, and an address of the host that was bound as the device's.
  void check(const ops::Tensor& tensor, const char* what, int i) const;
};

// What all kinds of kernels know of their node.
struct Node : NamedNode {
  int input_count, output_count, fault_number = 0;
  std::vector<bool> host_inputs, host_outputs, wants_output;
  std::vector<NodeValue> inputs, outputs;

  Node(Ep& ep, const NodeInfoBase& info, const std::vector<bool>& constants);

  // Views. onnxruntime's plan is not trusted, and what was bound neither: on the wrong side a tensor's address means
  // nothing, and where memory could not be had there is none. Where a tensor was before it is not looked at again.
  TensorView view_of_input(const OrtValue* value, int i) const;
  ops::Tensor input(const OrtValue* value, int i) const;
  ops::Tensor output(const OrtValue* value, int i) const;
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
  std::optional<Outline> find_outline(int i) override;
  ops::Tensor output(int i, const ops::Shape& shape) override;
  void* output_address(int i, const ops::Shape& shape) override;
  void* scratch(size_t bytes) override;
  void give_back(void* scratch) override;
  void read_back(void* host, const void* device, size_t bytes) override;

 private:
  const OrtValue* find_value(int i) const {
    const OrtValue* value = nullptr;
    if (i >= 0 && i < node_.input_count) check(api_.KernelContext_GetInput(context_, size_t(i), &value));
    return value;
  }
  OrtValue* make(int i, const ops::Shape& shape) const;
  void note(const void* address) const {
    if (is_captured_) memory::PoolScope::note(address);
  }

  const Node& node_;
  const OrtApi& api_;
  OrtKernelContext* context_;
  ops::StreamRef stream_;
  bool is_captured_ = false;
  std::array<std::optional<ops::Tensor>, 6> few_;  // the first inputs
  std::vector<std::optional<ops::Tensor>> many_;   // the others, once one of them is asked for
  std::array<void*, 4> scratch_{};
  std::vector<void*> more_scratch_;
  ProfiledNode profiled_;
};

// What ops keep, on the device, as long as the kernel lives; constants perhaps with others.
using Kept = std::vector<std::shared_ptr<void>>;

// Memory and a stream for what ops keep of constants.
class KernelPrepack final : public ops::Prepack {
 public:
  KernelPrepack(Ep& ep, Kept& kept, Constants* constants = nullptr) : ep_(ep), kept_(kept), constants_(constants) {}
  ~KernelPrepack() override;
  ops::StreamRef stream() override;
  device::Dnn& dnn() override { return ep_.dnn(); }
  void* keep(size_t bytes) override;
  void* keep_constant(const ops::Tensor& constant, bool is_models) override;
  void let_go(void* kept) override;
  int fault_number(const std::string& who) override { return ep_.faults().number(who); }
  void finish() const {
    if (stream_) stream_->ref().synchronize();
  }

 private:
  Ep& ep_;
  Kept& kept_;
  Constants* const constants_;              // null: nobody shares them
  std::shared_ptr<device::Stream> stream_;  // lent by the session
};

}  // namespace encore::plugin
