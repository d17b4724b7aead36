// Copies of tensors between the host and the device.
#pragma once
#include <memory>
#include <mutex>

#include "device/stream.h"
#include "plugin/api_version.h"
#include "plugin/host_copies.h"

namespace encore::plugin {

class Factory;

// What copies of one device go through that belong to no session, or to no stream.
struct Copies {
  explicit Copies(int device);
  ~Copies();
  device::Stream stream;
  HostCopies host;
};

OrtDataTransferImpl* make_data_transfer(std::shared_ptr<Factory> factory);

}  // namespace encore::plugin
