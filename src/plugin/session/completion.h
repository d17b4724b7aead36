// What a run leaves that its caller does not wait for: when it is over, and what its kernels have reported. The caller
// makes it, names it in the run option ep.cuda.completion, and asks it afterwards, by the library's functions for that:
//
//   void* encore_completion_new()
//   int encore_completion_done(void*)                          whether the run is over; 1 if none began
//   int encore_completion_wait(void*, char* why, size_t most)  waits; 1, and why, if the run has failed
//   int encore_completion_order(void*, void* stream, char* why, size_t most)  makes a cudaStream_t wait
//   void encore_completion_free(void*)                         waits, too
//
// The application's default stream waits for such a run by itself. A completion serves one run after another, and the
// session has to live until it is waited for.
#pragma once
#include <span>
#include <vector>

#include "device/stream.h"
#include "plugin/session/fault_cells.h"

namespace encore::plugin {

class Completion {
 public:
  Completion() = default;
  ~Completion();
  Completion(const Completion&) = delete;

  // Of a run that is enqueued on these streams.
  void write(std::span<const device::StreamRef> streams, FaultCells& faults);
  bool done() const;
  void wait();  // throws what was reported, once
  void order(void* stream) const;

 private:
  struct Part {
    device::StreamRef stream;
    device::Event event;
    device::FaultCell* reported = nullptr;  // pinned
    bool may_report = false;
  };
  std::vector<Part> parts_;  // of which the run has `used_`; the others keep what they own
  size_t used_ = 0;
  FaultCells* faults_ = nullptr;

  std::span<Part> used() { return {parts_.data(), used_}; }
  std::span<const Part> used() const { return {parts_.data(), used_}; }
};

}  // namespace encore::plugin
