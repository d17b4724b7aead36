// The library's two exports.
#include <dlfcn.h>

#include "plugin/factory.h"
#include "plugin/host/api_version.h"
#include "plugin/host/fence.h"

#define ENCORE_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

// Sessions may outlive the registration, and threads may still hold state of ours when they end: so the library is
// never unmapped.
void stay_loaded() {
  Dl_info here{};
  if (dladdr(reinterpret_cast<void*>(&stay_loaded), &here) && here.dli_fname)
    dlopen(here.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE);
}

}  // namespace

ENCORE_EXPORT OrtStatus* CreateEpFactories(const char* registration_name, const OrtApiBase* base,
                                           const OrtLogger* logger, OrtEpFactory** factories, size_t most,
                                           size_t* count) noexcept {
  using namespace encore::plugin;
  *count = 0;
  try {
    negotiate(base);
    encore::require(most > 0, "onnxruntime left no room for an execution provider factory");
    stay_loaded();
    factories[0] = Factory::create(registration_name ? registration_name : "", logger);
    *count = 1;
    return nullptr;
  } catch (...) {
    // Every onnxruntime has version 1 of its API, and statuses in it.
    return base ? status_of_current_exception(base->GetApi(1), "CreateEpFactories") : nullptr;
  }
}

ENCORE_EXPORT OrtStatus* ReleaseEpFactory(OrtEpFactory* factory) noexcept {
  encore::plugin::Factory::let_go(factory);
  return nullptr;
}
