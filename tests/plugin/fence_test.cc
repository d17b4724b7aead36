#include "plugin/host/fence.h"

#include <gtest/gtest.h>

#include <memory>

struct OrtStatus {
  OrtErrorCode code;
  std::string message;
};

namespace encore::plugin {
namespace {

// Statuses as onnxruntime makes them.
struct FakeStatuses {
  static const OrtApi* api() {
    static const OrtApi api = [] {
      OrtApi api{};
      api.CreateStatus = [](OrtErrorCode code, const char* message) noexcept { return new OrtStatus{code, message}; };
      api.GetErrorCode = [](const OrtStatus* status) noexcept { return status->code; };
      api.GetErrorMessage = [](const OrtStatus* status) noexcept { return status->message.c_str(); };
      api.ReleaseStatus = [](OrtStatus* status) noexcept { delete status; };
      return api;
    }();
    return &api;
  }
};

template <class Thrown>
OrtStatus status_of(const Thrown& thrown) {
  try {
    throw thrown;
  } catch (...) {
    const std::unique_ptr<OrtStatus> status(status_of_current_exception(FakeStatuses::api(), "Compute"));
    return *status;
  }
}

TEST(Fence, CodesSayWhoseFaultItWas) {
  EXPECT_EQ(status_of(Error(Code::invalid_input, "a")).code, ORT_INVALID_ARGUMENT);
  EXPECT_EQ(status_of(Error(Code::not_supported, "a")).code, ORT_NOT_IMPLEMENTED);
  for (Code code : {Code::out_of_memory, Code::capture_forbidden, Code::capture_failed, Code::library_missing,
                    Code::no_device, Code::device_failed, Code::internal})
    EXPECT_EQ(status_of(Error(code, "a")).code, ORT_FAIL) << name(code);
}

// It would make onnxruntime's Python run the model again on the CPU, in silence.
TEST(Fence, EpFailNeverLeaves) {
  const OrtStatus status = status_of(OrtError(ORT_EP_FAIL, "a session refused"));
  EXPECT_EQ(status.code, ORT_FAIL);
  EXPECT_EQ(status.message, "a session refused");
  EXPECT_EQ(status_of(OrtError(ORT_INVALID_GRAPH, "a")).code, ORT_INVALID_GRAPH);
}

TEST(Fence, ErrorsSpeakForThemselvesOthersAreLocated) {
  EXPECT_EQ(status_of(Error(Code::device_failed, "out of luck", "cudaMalloc")).message, "out of luck [in cudaMalloc]");
  EXPECT_EQ(status_of(std::runtime_error("odd")).message, "odd [in Compute]");
  EXPECT_EQ(status_of(std::bad_alloc()).message, "host memory is exhausted [in Compute]");
  EXPECT_EQ(status_of(42).message, "an exception of unknown type [in Compute]");
}

}  // namespace
}  // namespace encore::plugin
