#include "device/virtual/forked.h"

#include <pthread.h>

#include <atomic>

#include "device/error.h"
#include "device/forked.h"

namespace encore::device::virtual_gpu {
namespace {

std::atomic<bool> forked{false};

}  // namespace

bool is_forked() { return forked.load(std::memory_order_relaxed); }

void check_not_forked() {
  if (is_forked()) [[unlikely]]
    fail(Code::no_device, kForked);
}

void notice_forks() {
  static const int noticed = pthread_atfork(nullptr, nullptr, [] { forked.store(true, std::memory_order_relaxed); });
  (void)noticed;
}

}  // namespace encore::device::virtual_gpu
