// Where the kernels of a session report bad values: a cell for each stream, so that a run finds its own alone.
#pragma once
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "device/fault.h"
#include "device/stream.h"

namespace encore::plugin {

class FaultCells {
 public:
  explicit FaultCells(int device) : device_(device) {}
  ~FaultCells();  // nothing may report any more
  FaultCells(const FaultCells&) = delete;

  // `who` gets a number for its FaultRef, and is named in the error.
  int number(std::string who);
  device::FaultCell* of(device::StreamRef stream);
  // Around a run's use of the stream.
  void enter(device::StreamRef stream);
  void leave(device::StreamRef stream);
  // To be called when the stream has been waited for. Throws, and clears, what was reported.
  void check(device::StreamRef stream);
  void check_unless_in_run(device::StreamRef stream);  // where it is that run's

 private:
  const int device_;
  std::mutex mutex_;
  std::vector<std::string> names_;
  struct OfStream {
    device::FaultCell* cell = nullptr;
    int runs = 0;  // under way
  };
  void check(const OfStream& of);  // with the mutex

  std::map<void*, OfStream> streams_;
  std::vector<device::FaultCell*> pages_;  // pinned, of kCellsAPage each
  size_t used_of_last_ = 0;
};

}  // namespace encore::plugin
