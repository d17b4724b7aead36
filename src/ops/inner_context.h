// A run inside another one: it has that one's stream, memory and libraries.
#pragma once
#include "ops/op.h"

namespace encore::ops {

class InnerContext : public Context {
 public:
  explicit InnerContext(Context& outer) : outer_(outer) {}
  StreamRef stream() const override { return outer_.stream(); }
  void* scratch(size_t bytes) override { return outer_.scratch(bytes); }
  void give_back(void* scratch) override { outer_.give_back(scratch); }
  device::Blas& blas() override { return outer_.blas(); }
  device::Dnn& dnn() override { return outer_.dnn(); }
  device::FaultRef fault() override { return outer_.fault(); }
  void read_back(void* host, const void* device, size_t bytes) override { outer_.read_back(host, device, bytes); }
  bool is_planned() const override { return outer_.is_planned(); }
  ApartBlocks* apart_blocks() override { return outer_.apart_blocks(); }

 protected:
  Context& outer_;
};

}  // namespace encore::ops
