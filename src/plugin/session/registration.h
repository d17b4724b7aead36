// What sessions, and what outlives them, need of the library's registration with onnxruntime.
#pragma once
#include <memory>
#include <string>

#include "memory/arena.h"
#include "plugin/host/api_version.h"
#include "plugin/host/log.h"
#include "plugin/session/allocator.h"
#include "plugin/session/transfer.h"

namespace encore::plugin {

// Whoever is handed out to onnxruntime holds it, since a library may be unregistered while they live.
class Registration {
 public:
  virtual ~Registration() = default;
  virtual const std::string& name() const = 0;  // of the execution provider
  virtual const Log& log() const = 0;
  virtual const OrtMemoryInfo* memory_info(int device, bool pinned) const = 0;

  // Shared by all sessions; each is made on first use.
  virtual const OrtKernelRegistry* registry() = 0;
  virtual Copies& copies(int device) = 0;
  virtual const PinnedPool& pinned() const = 0;
  // An allocator for `info`; device memory comes from `arena`, or without one from the arena that sessions share.
  virtual OrtAllocator* make_allocator(const OrtMemoryInfo* info, std::shared_ptr<memory::Arena> arena) = 0;
};

}  // namespace encore::plugin
