// The library's exports: two that onnxruntime looks up, and those for who starts a run and asks for it later.
#include <dlfcn.h>

#include <cstdio>

#include "plugin/factory.h"
#include "plugin/host/api_version.h"
#include "plugin/host/fence.h"
#include "plugin/session/completion.h"

#define ENCORE_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

// Sessions may outlive the registration, and threads may still hold state of ours when they end: so the library is
// never unmapped.
void stay_loaded() {
  Dl_info here{};
  if (dladdr(reinterpret_cast<void*>(&stay_loaded), &here) && here.dli_fname)
    dlopen(here.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE);
}

encore::plugin::Completion& completion_at(void* address) { return *static_cast<encore::plugin::Completion*>(address); }

// 0, or 1 with the reason.
template <class Call>
int fenced(char* why, size_t most, const Call& call) noexcept {
  try {
    call();
    return 0;
  } catch (const std::exception& error) {
    std::snprintf(why, most, "%s", error.what());
    return 1;
  }
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

ENCORE_EXPORT void* encore_completion_new() noexcept { return new encore::plugin::Completion; }

ENCORE_EXPORT void encore_completion_free(void* completion) noexcept { delete &completion_at(completion); }

ENCORE_EXPORT int encore_completion_done(void* completion) noexcept {
  bool done = true;  // one that can't be asked has failed, as waiting for it tells
  fenced(nullptr, 0, [&] { done = completion_at(completion).done(); });
  return done;
}

ENCORE_EXPORT int encore_completion_wait(void* completion, char* why, size_t most) noexcept {
  return fenced(why, most, [&] { completion_at(completion).wait(); });
}

ENCORE_EXPORT int encore_completion_order(void* completion, void* stream, char* why, size_t most) noexcept {
  return fenced(why, most, [&] { completion_at(completion).order(stream); });
}
