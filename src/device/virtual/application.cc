// What an application does on a GPU besides running models, as it would with CUDA's runtime: for programs that try or
// test a deployment on the virtual GPU, from any language. All return 0, or -1 with a line on stderr.
//
//   void* encore_virtual_default_stream(int device)                          0 if there is no such device
//   int encore_virtual_fill(void* stream, void* to, int value, size_t bytes)
//   int encore_virtual_copy(void* stream, void* to, const void* from, size_t bytes)
//   int encore_virtual_sleep(void* stream, int64_t us)                       keeps the stream busy
//   int encore_virtual_synchronize(void* stream)
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <thread>

#include "device/default_stream.h"
#include "device/device.h"
#include "device/memory.h"
#include "device/virtual/stream_state.h"

namespace {

using namespace encore::device;

StreamRef stream_of(void* native) { return {native, virtual_gpu::state_of({native, 0}).device}; }

template <class Call>
int fenced(const char* name, const Call& call) noexcept {
  try {
    const Current any(virtual_gpu::current_device());  // a program's threads have one, or start what they like
    call();
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "encore: %s: %s\n", name, e.what());
    return -1;
  }
}

}  // namespace

extern "C" {

[[gnu::visibility("default")]] void* encore_virtual_default_stream(int device) {
  void* native = nullptr;
  fenced("encore_virtual_default_stream", [&] { native = default_stream(device).native(); });
  return native;
}

[[gnu::visibility("default")]] int encore_virtual_fill(void* stream, void* to, int value, size_t bytes) {
  return fenced("encore_virtual_fill", [&] { fill(stream_of(stream), to, static_cast<unsigned char>(value), bytes); });
}

[[gnu::visibility("default")]] int encore_virtual_copy(void* stream, void* to, const void* from, size_t bytes) {
  return fenced("encore_virtual_copy", [&] { copy(stream_of(stream), to, from, bytes); });
}

[[gnu::visibility("default")]] int encore_virtual_sleep(void* stream, int64_t us) {
  return fenced("encore_virtual_sleep", [&] {
    virtual_gpu::submit(stream_of(stream), NodeKind::kernel, "sleep",
                        [us] { std::this_thread::sleep_for(std::chrono::microseconds(us)); });
  });
}

[[gnu::visibility("default")]] int encore_virtual_synchronize(void* stream) {
  return fenced("encore_virtual_synchronize", [&] { stream_of(stream).synchronize(); });
}
}
