#include "plugin/kernels/kernel_registry.h"

#include <vector>

#include "ops/registry.h"
#include "plugin/kernels/control_flow.h"
#include "plugin/kernels/kernel_adapter.h"

namespace encore::plugin {
namespace {

using Pairs = std::vector<std::pair<int, int>>;

template <class Add>
void add_pairs(const Pairs& pairs, OrtKernelDefBuilder* builder, Add add) {
  if (pairs.empty()) return;
  std::vector<int> inputs, outputs;
  for (const auto& [input, output] : pairs) {
    inputs.push_back(input);
    outputs.push_back(output);
  }
  check(add(builder, inputs.data(), outputs.data(), pairs.size()));
}

// Without type constraints: the row's own rules are checked when nodes are claimed, and give better reasons.
void add_kernel(OrtKernelRegistry* registry, const std::string& ep_name, const ops::OpRow& row,
                OrtKernelCreateFunc create) {
  const OrtEpApi& api = *ort().ep;
  OrtKernelDefBuilder* raw = nullptr;
  check(api.CreateKernelDefBuilder(&raw));
  const auto builder = owned(raw, api.ReleaseKernelDefBuilder);
  check(api.KernelDefBuilder_SetOperatorType(raw, row.name));
  check(api.KernelDefBuilder_SetDomain(raw, row.domain));
  check(api.KernelDefBuilder_SetSinceVersion(raw, row.since, row.until));
  check(api.KernelDefBuilder_SetExecutionProvider(raw, ep_name.c_str()));
  for (int i : row.host_inputs) check(api.KernelDefBuilder_SetInputMemType(raw, size_t(i), OrtMemTypeCPUInput));
  for (int i : row.host_outputs) check(api.KernelDefBuilder_SetOutputMemType(raw, size_t(i), OrtMemTypeCPUOutput));
  add_pairs(row.alias, raw, api.KernelDefBuilder_AddInputOutputAliases);
  add_pairs(row.may_reuse, raw, api.KernelDefBuilder_AddInputOutputMutableAliases);
  OrtKernelDef* definition = nullptr;
  check(api.KernelDefBuilder_Build(raw, &definition));
  const auto holder = owned(definition, api.ReleaseKernelDef);
  check(api.KernelRegistry_AddKernel(registry, definition, create, const_cast<ops::OpRow*>(&row)));
}

// onnxruntime puts these where tensors cross between devices. Without them it would copy to the host instead, and hand
// a host pointer to the next kernel.
const ops::OpRow kFromHost{.name = "MemcpyFromHost", .since = 1, .until = 1, .host_inputs = {0}};
const ops::OpRow kToHost{.name = "MemcpyToHost", .since = 1, .until = 1, .host_outputs = {0}};

}  // namespace

OrtPtr<OrtKernelRegistry> make_kernel_registry(const std::string& ep_name) {
  OrtKernelRegistry* raw = nullptr;
  check(ort().ep->CreateKernelRegistry(&raw));
  auto registry = owned(raw, ort().ep->ReleaseKernelRegistry);
  for (const ops::OpRow& row : ops::rows()) {
    try {
      add_kernel(raw, ep_name, row, row.make ? create_kernel : create_control_flow_kernel);
    } catch (const OrtError& error) {
      throw OrtError(error.code(),
                     text("the kernel for ", row.domain, row.domain[0] ? "." : "", row.name, " of versions ", row.since,
                          " to ", row.until, " can't be registered: ", error.what()));
    }
  }
  add_kernel(raw, ep_name, kFromHost, create_memcpy_kernel);
  add_kernel(raw, ep_name, kToHost, create_memcpy_kernel);
  return registry;
}

}  // namespace encore::plugin
