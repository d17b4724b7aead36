// There is no cuDNN for the virtual GPU.
#include "device/dnn.h"

#include <mutex>

#include "device/error.h"
#include "device/open_ahead.h"
#include "device/virtual/stream_state.h"

namespace encore::device {

namespace {
constexpr const char* kWhy = "the virtual GPU has no cuDNN";
}

struct Dnn::State {
  DnnSettings settings;
  std::once_flag warned;
  const char* why() const { return settings.wanted ? kWhy : kDnnSwitchedOff; }
};

Dnn::Dnn(int device, DnnSettings settings) : state_(new State{std::move(settings), {}}) {
  virtual_gpu::check_device(device);
}
Dnn::~Dnn() = default;

const DnnSettings& Dnn::settings() const { return state_->settings; }

bool Dnn::available(std::string* why) {
  if (why) *why = state_->why();
  std::call_once(state_->warned, [&] { warn_of_absence(state_->settings, state_->why()); });
  return false;
}
void Dnn::expect(const Convolution&) {}
void open_dnn(Dnn&) noexcept {}
std::vector<TunedProduct> Dnn::tuned() const { return {}; }
std::optional<Dnn::Prepared> Dnn::prepare(StreamRef, const Convolution&, const Rival&) {
  fail(Code::library_missing, state_->why());
}
void Dnn::run(StreamRef, const Convolution&, const void*, const void*, const void*, const void*, void*, void*) {
  fail(Code::library_missing, state_->why());
}

}  // namespace encore::device
