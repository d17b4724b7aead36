#include "plugin/kernels/control_flow.h"

#include <vector>

#include "ops/control/scan.h"
#include "ops/registry.h"
#include "ops/shape/movement.h"
#include "plugin/host/memory_kind.h"
#include "plugin/kernels/profiled_node.h"
#include "plugin/model/node_info.h"
#include "plugin/session/allocator.h"
#include "plugin/session/stream.h"

namespace encore::plugin {
namespace {

using ops::Tensor;
using ops::Where;

Tensor device_tensor(const OrtValue* value, const char* what) {
  require(is_device_memory(ort().ep->Value_GetMemoryDevice(value)), what, " is not in device memory");
  const Tensor tensor = tensor_of(value, Where::device);
  if (is_missing(tensor.data) && tensor.count() > 0) fail_without_memory(what);
  return tensor;
}

// Each iteration of a Loop makes its own tensors; at the end they are joined to one output.
struct LoopSupport : OrtLoopKernelHelper {
  NamedNode node;

  LoopSupport(Ep& ep, const KernelNodeInfo& info) : OrtLoopKernelHelper{}, node(ep, info) {
    ort_version_supported = ort().version;
    Release = [](OrtLoopKernelHelper* self) noexcept { delete static_cast<LoopSupport*>(self); };
    ConcatOutput = [](OrtLoopKernelHelper* self, void* stream, const OrtValue* const* values, size_t count,
                      void* output, size_t bytes) noexcept -> OrtStatus* {
      const NamedNode& node = static_cast<LoopSupport*>(self)->node;
      return run_as(node, [&] {
        const device::StreamRef work = node.ep.compute_stream(stream);
        const ProfiledNode profiled(node, work);
        join(work, {values, count}, output, bytes);
      });
    };
  }

 private:
  static void join(device::StreamRef stream, std::span<const OrtValue* const> values, void* output, size_t bytes) {
    if (values.empty()) return;
    if (is_missing(output) && bytes > 0) fail_without_memory("an output that is collected over the iterations");
    const Tensor first = device_tensor(values[0], "an output of the body");
    std::vector<const void*> parts;
    for (size_t i = 0; i < values.size(); ++i) {
      const Tensor part = device_tensor(values[i], "an output of the body");
      require(part.shape == first.shape, "an output that is collected over the iterations has shape ",
              first.shape.str(), " in iteration 0 and ", part.shape.str(), " in iteration ", i,
              "; it must keep its shape");
      parts.push_back(part.data);
    }
    require(parts.size() * first.bytes() == bytes, "the output has ", bytes, " bytes for ", parts.size(), " parts of ",
            first.bytes());
    ops::concatenate(stream, parts, first.bytes(), output);
  }
};

// Scan goes along the first dimension; inputs and outputs with another axis are turned.
struct ScanSupport : OrtScanKernelHelper {
  NamedNode node;

  ScanSupport(Ep& ep, const KernelNodeInfo& info) : OrtScanKernelHelper{}, node(ep, info) {
    ort_version_supported = ort().version;
    Release = [](OrtScanKernelHelper* self) noexcept { delete static_cast<ScanSupport*>(self); };
    Transpose = [](OrtScanKernelHelper* self, const size_t* permutation, size_t rank, const OrtValue* input,
                   OrtSyncStream* stream, OrtValue* output) noexcept -> OrtStatus* {
      const NamedNode& node = static_cast<ScanSupport*>(self)->node;
      return run_as(node, [&] {
        const device::StreamRef work = SyncStream::work_of(stream);
        if (!work) fail(Code::internal, "Scan gave no stream for its transpose");
        const ProfiledNode profiled(node, work);
        const std::vector<int> from(permutation, permutation + rank);
        ops::transpose(work, device_tensor(input, "what Scan turns"), from, device_tensor(output, "Scan's result"));
      });
    };
  }
};

// onnxruntime refuses them, too, and does not say of which node.
void check_directions(const KernelNodeInfo& node) {
  const int64_t scanned = node.get_int("num_scan_inputs", 0), carried = node.input_count() - scanned;
  require(scanned >= 0 && carried >= 0 && carried <= node.output_count(), "num_scan_inputs is ", scanned, " of ",
          node.input_count(), " inputs and ", node.output_count(), " outputs");
  ops::scanned_backward(node, "scan_input_directions", size_t(scanned));
  ops::scanned_backward(node, "scan_output_directions", size_t(node.output_count() - carried));
}

}  // namespace

OrtStatus* create_control_flow_kernel(void*, const OrtKernelInfo* info, OrtKernelImpl** kernel) noexcept {
  return guarded("kernel creation", [&] {
    Ep& ep = Ep::of(info);
    const KernelNodeInfo node(info, ep.device());
    const OrtEpApi& api = *ort().ep;
    // onnxruntime takes over what it made a kernel of.
    if (node.op_type() == "Loop") {
      auto support = std::make_unique<LoopSupport>(ep, node);
      check(api.CreateLoopKernel(info, support.get(), kernel));
      support.release();
    } else if (node.op_type() == "Scan") {
      create_as(node, [&] { check_directions(node); });
      auto support = std::make_unique<ScanSupport>(ep, node);
      check(api.CreateScanKernel(info, support.get(), kernel));
      support.release();
    } else {
      check(api.CreateIfKernel(info, kernel));
    }
  });
}

}  // namespace encore::plugin
