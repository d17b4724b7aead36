// A virtual stream: a queue of tasks and the thread which runs them.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "device/graph.h"
#include "device/stream.h"
#include "device/virtual/early.h"
#include "device/virtual/marker.h"

namespace encore::device::virtual_gpu {

class Capture;

struct Task {
  NodeKind kind;
  std::string_view name;  // of the kernel; kernels own their names
  std::string label;
  Work work;
};

// Runs a task or a node of a graph: traced, delayed as tests ask, and errors name the kernel and the ONNX node.
void run_traced(const void* stream, NodeKind kind, std::string_view name, const std::string& label,
                const std::function<void()>& run);

struct StreamState : std::enable_shared_from_this<StreamState> {
  explicit StreamState(int device, bool for_captures = false) : device(device), for_captures(for_captures) {}

  const int device;
  const bool for_captures;  // which survive a wait for the device
  std::mutex mutex;
  // Guarded by the mutex:
  std::condition_variable wake;
  std::vector<Task> queue;
  uint64_t submitted = 0;
  bool started = false, sleeping = false, closed = false;
  std::shared_ptr<Capture> capture;  // may have ended: ask capturing()
  int lane = 0;                      // this stream's place in the capture
  std::string failure;               // why tasks are no longer run

  std::atomic<uint64_t> finished{0};
  std::atomic<bool> failed{false};

  // With the mutex held:
  Capture* capturing();
  void push(std::unique_lock<std::mutex>& held, Task task);  // gives the mutex back

  void work();
};

StreamState& state_of(StreamRef stream);
// Appends to the stream or to its capture, under the current label.
void submit(StreamRef stream, NodeKind kind, std::string_view name, Work work);

// Throws Error{no_device} for a device that does not exist.
void check_device(int device);
int current_device();  // the calling thread's
// Whether a call that is about the device makes CUDA start another one, as it does for a thread that has none yet.
void check_starts_nothing(int device);
// Keeps this library loaded, because threads run its code. Called before the first one starts.
void stay_loaded();

}  // namespace encore::device::virtual_gpu
