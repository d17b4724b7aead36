#pragma once
#include "device/virtual/queue.h"

namespace encore::device::tests {

// Restores the order at its end.
class InOrder {
 public:
  explicit InOrder(virtual_gpu::Order order) : before_(virtual_gpu::order()) { virtual_gpu::set_order(order); }
  ~InOrder() { virtual_gpu::set_order(before_); }

 private:
  virtual_gpu::Order before_;
};

}  // namespace encore::device::tests
