// Where the kernels of a session report bad values: a cell for each stream, or each thread if they share one, so that a
// run finds its own alone.
#pragma once
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "device/fault.h"
#include "device/stream.h"

namespace encore::plugin {

class FaultCells {
 public:
  FaultCells(int device, bool by_thread) : device_(device), by_thread_(by_thread) {}
  ~FaultCells();  // nothing may report any more
  FaultCells(const FaultCells&) = delete;

  // `who` gets a number for its FaultRef, and is named in the error.
  int number(std::string who);
  device::FaultCell* of(device::StreamRef stream);
  // The stream is the calling thread's, here and below. Around a run's use of it:
  void enter(device::StreamRef stream);
  void leave(device::StreamRef stream);
  // To be called when the stream has been waited for. Throws, and clears, what was reported.
  void check(device::StreamRef stream);
  void check_unless_in_run(device::StreamRef stream);  // where it is that run's

  // Takes what the stream's kernels will have reported so far, in its order; false if there are none that could.
  bool take(device::StreamRef stream, device::FaultCell* into);
  // Throws what is in the cell, and clears it.
  void raise(device::FaultCell& reported);

 private:
  const int device_;
  const bool by_thread_;
  std::mutex mutex_;
  std::vector<std::string> names_;
  struct OfStream {
    device::FaultCell* cell = nullptr;
    int runs = 0;  // under way
  };
  // With the mutex:
  OfStream& of_stream(device::StreamRef stream);
  void check(const OfStream& of);
  void raise_locked(device::FaultCell& reported);

  std::map<std::pair<void*, std::thread::id>, OfStream> streams_;
  std::vector<device::FaultCell*> pages_;  // pinned, of kCellsAPage each
  size_t used_of_last_ = 0;
};

}  // namespace encore::plugin
