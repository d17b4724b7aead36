// The table of operators as onnxruntime's kernel registry.
#pragma once
#include <string>

#include "plugin/host/api_version.h"
#include "plugin/host/fence.h"

namespace encore::plugin {

OrtPtr<OrtKernelRegistry> make_kernel_registry(const std::string& ep_name);

}  // namespace encore::plugin
