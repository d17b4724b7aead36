// What a run keeps for the next one, where that may be the memory of what the run before kept.
#pragma once
#include "device/memory.h"
#include "ops/op.h"

namespace encore::ops {

class NextState {
 public:
  // `to` may be null, where nothing is kept.
  NextState(Context& context, void* to, const void* past, size_t bytes)
      : to_(to), bytes_(bytes), made_(to && to == past ? context.scratch(bytes) : to) {}
  NextState(Context& context, const Tensor& to, const Tensor* past)
      : NextState(context, to.data, past ? past->data : nullptr, to.data ? to.bytes() : 0) {}

  // Where it is made: beside the past, if that lies where it belongs, since other threads still read that.
  void* data() const { return made_; }
  // Puts it where it belongs, once it is made.
  void settle(StreamRef stream) const {
    if (made_ != to_) device::copy(stream, to_, made_, bytes_);
  }

 private:
  void* to_;
  size_t bytes_;
  void* made_;
};

}  // namespace encore::ops
