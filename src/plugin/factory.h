// What one registration of the library is to onnxruntime.
#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "memory/arena.h"
#include "plugin/devices.h"
#include "plugin/host/api_version.h"
#include "plugin/host/fence.h"
#include "plugin/host/log.h"
#include "plugin/session/allocator.h"
#include "plugin/session/registration.h"
#include "plugin/session/transfer.h"

namespace encore::plugin {

// The registration name if it is one of an execution provider, else the CUDA provider's own. onnxruntime applies its
// fusions for CUDA by this name.
std::string ep_name_for(const std::string& registration_name);

// onnxruntime lets a library be unregistered while sessions live, and frees tensors after their session: so everything
// that is handed out holds the factory, and the last of them destroys it.
class Factory final : public OrtEpFactory, public Registration, public std::enable_shared_from_this<Factory> {
 public:
  static OrtEpFactory* create(const std::string& registration_name, const OrtLogger* logger);
  // onnxruntime won't use it any more, except through what it still holds.
  static void let_go(OrtEpFactory* factory) noexcept;
  Factory(std::string name, Log log);
  Factory(const Factory&) = delete;

  const std::string& name() const override { return name_; }
  const Log& log() const override { return log_; }
  const OrtMemoryInfo* memory_info(int device, bool pinned) const override {
    return devices_.memory_info(device, pinned);
  }
  const OrtKernelRegistry* registry() override;
  Copies& copies(int device) override;
  const PinnedPool& pinned() const override { return *pinned_; }
  OrtAllocator* make_allocator(const OrtMemoryInfo* info, std::shared_ptr<memory::Arena> arena) override;

 private:
  static Factory& from(OrtEpFactory* factory) { return *static_cast<Factory*>(factory); }
  void fill_callbacks();
  OrtEp* create_ep(const OrtKeyValuePairs* const* metadata, size_t device_count, const OrtSessionOptions* session,
                   Log log);
  std::shared_ptr<memory::Arena> shared_arena(int device);
  // In place of the one that shared_arena() gave so far.
  std::shared_ptr<memory::Arena> make_shared_arena(int device, const OrtKeyValuePairs* options);

  const std::string name_;
  const Log log_;
  Devices devices_;
  std::mutex mutex_;
  OrtPtr<OrtKernelRegistry> registry_;
  std::map<int, std::shared_ptr<memory::Arena>> arenas_;
  std::shared_ptr<PinnedPool> pinned_;
  std::map<int, Copies> copies_;
  std::shared_ptr<Factory> self_;  // until onnxruntime lets go
};

}  // namespace encore::plugin
