#include "plugin/kernels/kernel_adapter.h"

#include <algorithm>
#include <array>
#include <optional>

#include "memory/pool_scope.h"
#include "plugin/host/memory_kind.h"
#include "plugin/kernels/run_as.h"
#include "plugin/model/node_info.h"
#include "plugin/session/allocator.h"

namespace encore::plugin {
namespace {

using ops::Tensor;
using ops::Where;

// What kernels of both kinds know of their node.
struct Node : NamedNode {
  int input_count, output_count, fault_number = 0;
  std::vector<bool> host_inputs, host_outputs, constant_inputs, wants_output;
  std::vector<std::string> input_values;  // their names

  Node(Ep& ep, const KernelNodeInfo& info)
      : NamedNode(ep, info), input_count(info.input_count()), output_count(info.output_count()) {
    host_inputs.resize(size_t(input_count));
    host_outputs.resize(size_t(output_count));
    for (int i = 0; i < input_count; ++i) {
      constant_inputs.push_back(info.is_constant(i));
      input_values.push_back(info.input_value(i));
    }
    for (int i = 0; i < output_count; ++i) wants_output.push_back(info.has_output(i));
  }

  // A view of an input. onnxruntime's plan is not trusted: on the wrong side the tensor's address means nothing.
  Tensor input(const OrtValue* value, int i) const {
    const bool on_host = host_inputs[size_t(i)];
    try {
      const Tensor tensor = tensor_of(value, on_host ? Where::host : Where::device);
      if (const char* const wrong = misplaced(ort().ep->Value_GetMemoryDevice(value), on_host))
        fail(Code::internal, "onnxruntime left input ", i, " ('", input_values[size_t(i)], "') ", wrong,
             "; an Identity before it may help");
      return tensor;
    } catch (const OrtError& error) {
      fail(Code::invalid_input, "input ", i, " has no tensor; if it is the model's, was it bound? ", error.what());
    }
  }
};

// One run of a kernel. Inputs are looked up when asked for; scratch goes back when the launches are enqueued, since
// the stream's order keeps it safe.
class KernelRun final : public ops::Context {
 public:
  KernelRun(const Node& node, OrtKernelContext* context) : node_(node), context_(context) {
    void* handle = nullptr;
    check(ort().api->KernelContext_GetGPUComputeStream(context, &handle));
    stream_ = node.ep.compute_stream(handle, context);
    if (node.input_count > int(few_.size())) many_.resize(size_t(node.input_count));
  }
  ~KernelRun() override {
    for (void* block : scratch_)
      if (block) node_.ep.arena().free(block);
    for (void* block : more_scratch_) node_.ep.arena().free(block);
  }

  int input_count() const override { return node_.input_count; }
  int output_count() const override { return node_.output_count; }
  bool wants_output(int i) const override { return i < node_.output_count && node_.wants_output[size_t(i)]; }
  ops::StreamRef stream() const override { return stream_; }
  device::Blas& blas() override { return node_.ep.blas(); }
  device::Dnn& dnn() override { return node_.ep.dnn(); }
  device::FaultRef fault() override { return {node_.ep.faults().of(stream_), node_.fault_number}; }

  void read_back(void* host, const void* device, size_t bytes) override {
    if (node_.ep.capturing())
      fail(Code::capture_forbidden,
           "the size of an output depends on data, so the node has to wait and cannot be captured; switch "
           "enable_cuda_graph off, set graph_on_error=eager, or run with gpu_graph_id=-1");
    node_.ep.copies().download(stream_, host, device, bytes);
  }

  const Tensor* find_input(int i) override {
    if (i < 0 || i >= node_.input_count) return nullptr;
    std::optional<Tensor>& slot = many_.empty() ? few_[size_t(i)] : many_[size_t(i)];
    if (!slot) {
      const OrtValue* value = nullptr;
      check(ort().api->KernelContext_GetInput(context_, size_t(i), &value));
      if (!value) return nullptr;
      slot = node_.input(value, i);
      if (!node_.constant_inputs[size_t(i)]) memory::PoolScope::note(slot->data);
    }
    return &*slot;
  }

  Tensor output(int i, const ops::Shape& shape) override {
    OrtValue* value = nullptr;
    check(ort().api->KernelContext_GetOutput(context_, size_t(i), shape.dims().data(), shape.dims().size(), &value));
    if (!value) return {ops::Type::undefined, Where::device, shape, nullptr};
    const Tensor made = tensor_of(value, node_.host_outputs[size_t(i)] ? Where::host : Where::device);
    // onnxruntime passes on the null of an allocator that has no memory left.
    if (!made.data && made.count() > 0) fail(Code::out_of_memory, "output ", i, ": ", take_allocation_failure());
    memory::PoolScope::note(made.data);
    return made;
  }

  void* scratch(size_t bytes) override {
    if (bytes == 0) return nullptr;
    void* block = node_.ep.arena().allocate(bytes, stream_);
    for (void*& slot : scratch_)
      if (!slot) return slot = block;
    more_scratch_.push_back(block);
    return block;
  }

 private:
  const Node& node_;
  OrtKernelContext* context_;
  ops::StreamRef stream_;
  std::array<std::optional<Tensor>, 6> few_;
  std::vector<std::optional<Tensor>> many_;
  std::array<void*, 4> scratch_{};
  std::vector<void*> more_scratch_;
};

// Memory and a stream for what ops keep of constants, as long as the kernel lives.
class KernelPrepack final : public ops::Prepack {
 public:
  KernelPrepack(Ep& ep, std::vector<void*>& kept) : ep_(ep), kept_(kept) {}
  ops::StreamRef stream() override {
    if (!stream_.ref().native()) stream_ = device::Stream(ep_.device());
    return stream_;
  }
  device::Dnn& dnn() override { return ep_.dnn(); }
  void* keep(size_t bytes) override { return bytes ? kept_.emplace_back(ep_.arena().allocate(bytes, {})) : nullptr; }
  void finish() const {
    if (stream_.ref().native()) stream_.ref().synchronize();
  }

 private:
  Ep& ep_;
  std::vector<void*>& kept_;
  device::Stream stream_;
};

struct Kernel : OrtKernelImpl {
  Node node;
  std::unique_ptr<ops::Op> op;
  std::vector<void*> kept;

  Kernel(Ep& ep, const ops::OpRow& row, const KernelNodeInfo& info) : OrtKernelImpl{}, node(ep, info) {
    const auto mark = [](const std::vector<int>& list, std::vector<bool>& flags) {
      for (int i : list)
        if (size_t(i) < flags.size()) flags[size_t(i)] = true;
    };
    mark(row.host_inputs, node.host_inputs);
    mark(row.host_outputs, node.host_outputs);
    node.fault_number = ep.faults().number(node.label);
    op = row.make(info);
    ort_version_supported = ort().version;
    Compute = [](OrtKernelImpl* self, OrtKernelContext* context) noexcept -> OrtStatus* {
      auto& kernel = *static_cast<Kernel*>(self);
      return run_as(kernel.node, [&] {
        KernelRun run(kernel.node, context);
        kernel.op->run(run);
      });
    };
    PrePackWeight = [](OrtKernelImpl* self, const OrtValue* value, int input, OrtAllocator*,
                       OrtSharedPrePackedWeightCache*, bool* is_packed) noexcept -> OrtStatus* {
      auto& kernel = *static_cast<Kernel*>(self);
      return run_as(kernel.node, [&] {
        // A constant from outside a body is where its own graph reads it; each run of the body gets a copy.
        *is_packed = false;
        const Where where = kernel.node.host_inputs[size_t(input)] ? Where::host : Where::device;
        if (misplaced(ort().ep->Value_GetMemoryDevice(value), where == Where::host)) return;
        KernelPrepack prepack(kernel.node.ep, kernel.kept);
        *is_packed = kernel.op->prepack(input, tensor_of(value, where), prepack);
        prepack.finish();
      });
    };
    Release = [](OrtKernelImpl* self) noexcept {
      auto* const kernel = static_cast<Kernel*>(self);
      delete_on(kernel->node.ep.device(), kernel);
    };
  }
  ~Kernel() {
    for (void* block : kept) node.ep.arena().free(block);
  }
  void prepare() {
    const device::Current current(node.ep.device());
    const device::Label label(node.name);
    KernelPrepack prepack(node.ep, kept);
    op->prepare(prepack);
    prepack.finish();
  }
};

struct MemcpyKernel : OrtKernelImpl {
  Node node;
  bool to_host;

  MemcpyKernel(Ep& ep, const KernelNodeInfo& info)
      : OrtKernelImpl{}, node(ep, info), to_host(info.op_type() == "MemcpyToHost") {
    ort_version_supported = ort().version;
    (to_host ? node.host_outputs : node.host_inputs)[0] = true;
    Compute = [](OrtKernelImpl* self, OrtKernelContext* context) noexcept -> OrtStatus* {
      auto& kernel = *static_cast<MemcpyKernel*>(self);
      return run_as(kernel.node, [&] {
        KernelRun run(kernel.node, context);
        const Tensor& from = run.input(0);
        const Tensor to = run.output(0, from.shape);
        require(device::size_bits(from.type) > 0, "a tensor of ", device::name(from.type), " cannot be on the device");
        if (from.bytes() == 0) return;
        if (kernel.node.ep.capturing())
          fail(Code::capture_forbidden,
               "a copy between host and device inside the model cannot be captured; keep the nodes around it on one "
               "side");
        if (kernel.to_host)
          kernel.node.ep.copies().download(run.stream(), to.data, from.data, from.bytes());
        else
          kernel.node.ep.copies().upload(run.stream(), to.data, from.data, from.bytes());
      });
    };
    Release = [](OrtKernelImpl* self) noexcept { delete static_cast<MemcpyKernel*>(self); };
  }
};

}  // namespace

OrtStatus* create_kernel(void* state, const OrtKernelInfo* info, OrtKernelImpl** kernel) noexcept {
  return guarded("kernel creation", [&] {
    const auto& row = *static_cast<const ops::OpRow*>(state);
    Ep& ep = Ep::of(info);
    KernelNodeInfo node(info, ep.device());
    node.settings = ep.settings();
    try {
      auto made = std::make_unique<Kernel>(ep, row, node);
      made->prepare();
      *kernel = made.release();
    } catch (const Error& error) {
      throw Error(error.code(), text(node.op_type(), " node '", node.name(), "': ", error.what()));
    }
  });
}

OrtStatus* create_memcpy_kernel(void*, const OrtKernelInfo* info, OrtKernelImpl** kernel) noexcept {
  return guarded("kernel creation", [&] {
    Ep& ep = Ep::of(info);
    *kernel = new MemcpyKernel(ep, KernelNodeInfo(info, ep.device()));
  });
}

}  // namespace encore::plugin
