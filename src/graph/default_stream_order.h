// Who waits for whom: a session's runs, and what the application has on its default stream. On the device; the host
// never waits.
#pragma once
#include <mutex>

#include "device/stream.h"

namespace encore::graph {

class DefaultStreamOrder {
 public:
  struct Settings {
    bool run_waits = true;  // for what the default stream has when the run begins
    bool it_waits = false;  // for the end of the run
    bool operator==(const Settings&) const = default;
  };
  DefaultStreamOrder(int device, Settings settings) : device_(device), settings_(settings) {}

  void before_run(device::StreamRef stream);  // in which the run is about to begin
  // In which all of it is enqueued. `it_waits` as the settings have it, or because this run's caller does not wait.
  void after_run(device::StreamRef stream, bool it_waits = false);

 private:
  void order(device::StreamRef later, device::StreamRef earlier);

  const int device_;
  const Settings settings_;
  std::mutex mutex_;
  device::Event event_;  // made on first use
};

}  // namespace encore::graph
