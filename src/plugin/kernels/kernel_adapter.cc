#include "plugin/kernels/kernel_adapter.h"

#include "plugin/host/memory_kind.h"
#include "plugin/kernels/kernel_run.h"

namespace encore::plugin {
namespace {

using ops::Tensor;
using ops::Where;

std::vector<bool> constants_of(const KernelNodeInfo& info) {
  std::vector<bool> constant;
  for (int i = 0; i < info.input_count(); ++i) constant.push_back(info.is_constant(i));
  return constant;
}

struct Kernel : OrtKernelImpl {
  Node node;
  std::unique_ptr<ops::Op> op;
  Kept kept;

  Kernel(Ep& ep, const ops::OpRow& row, const KernelNodeInfo& info)
      : OrtKernelImpl{}, node(ep, info, constants_of(info)) {
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
      : OrtKernelImpl{}, node(ep, info, constants_of(info)), to_host(info.op_type() == "MemcpyToHost") {
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
    create_as(node, [&] {
      auto made = std::make_unique<Kernel>(ep, row, node);
      made->prepare();
      *kernel = made.release();
    });
  });
}

OrtStatus* create_memcpy_kernel(void*, const OrtKernelInfo* info, OrtKernelImpl** kernel) noexcept {
  return guarded("kernel creation", [&] {
    Ep& ep = Ep::of(info);
    *kernel = new MemcpyKernel(ep, KernelNodeInfo(info, ep.device()));
  });
}

}  // namespace encore::plugin
