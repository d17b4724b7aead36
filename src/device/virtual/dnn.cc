// There is no cuDNN for the virtual GPU.
#include "device/dnn.h"

#include "device/error.h"
#include "device/virtual/stream_state.h"

namespace encore::device {

namespace {
constexpr const char* kWhy = "the virtual GPU has no cuDNN; convolutions run as matrix products";
}

struct Dnn::State {};

Dnn::Dnn(int device, DnnSettings) { virtual_gpu::check_device(device); }
Dnn::~Dnn() = default;

bool Dnn::available(std::string* why) {
  if (why) *why = kWhy;
  return false;
}
Dnn::Prepared Dnn::prepare(StreamRef, const Convolution&) { fail(Code::library_missing, kWhy); }
void Dnn::run(StreamRef, const Convolution&, const void*, const void*, const void*, const void*, void*, void*) {
  fail(Code::library_missing, kWhy);
}

}  // namespace encore::device
