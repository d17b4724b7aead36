// Copies of tensors between the host and the device.
#pragma once
#include <memory>
#include <mutex>

#include "device/stream.h"
#include "graph/default_stream_order.h"
#include "plugin/host/api_version.h"
#include "plugin/session/host_copies.h"

namespace encore::plugin {

class Registration;

// What copies of one device go through that belong to no session, or to no stream.
struct Copies {
  explicit Copies(int device);
  ~Copies();
  device::Stream stream;
  HostCopies host;
  graph::DefaultStreamOrder order;
};

OrtDataTransferImpl* make_data_transfer(std::shared_ptr<Registration> registration);

}  // namespace encore::plugin
