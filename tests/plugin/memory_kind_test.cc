#include "plugin/host/memory_kind.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

struct OrtMemoryDevice {
  OrtMemoryInfoDeviceType type;
  OrtDeviceMemoryType memory;
  uint32_t vendor;
};

namespace encore::plugin {
namespace {

// The questions as onnxruntime answers them.
const OrtEpApi& answers() {
  static const OrtEpApi api = [] {
    OrtEpApi api{};
    api.MemoryDevice_GetDeviceType = [](const OrtMemoryDevice* where) noexcept { return where->type; };
    api.MemoryDevice_GetMemoryType = [](const OrtMemoryDevice* where) noexcept { return where->memory; };
    api.MemoryDevice_GetVendorId = [](const OrtMemoryDevice* where) noexcept { return where->vendor; };
    return api;
  }();
  return api;
}

constexpr OrtMemoryDevice kPageable{OrtMemoryInfoDeviceType_CPU, OrtDeviceMemoryType_DEFAULT, 0};
constexpr OrtMemoryDevice kDevice{OrtMemoryInfoDeviceType_GPU, OrtDeviceMemoryType_DEFAULT, kNvidia};
constexpr OrtMemoryDevice kPinned{OrtMemoryInfoDeviceType_GPU, OrtDeviceMemoryType_HOST_ACCESSIBLE, kNvidia};
constexpr OrtMemoryDevice kForeign{OrtMemoryInfoDeviceType_GPU, OrtDeviceMemoryType_DEFAULT, 0x1002};

TEST(Misplaced, NothingIsWhereItIsRead) {
  EXPECT_EQ(misplaced(&kPageable, true, answers()), nullptr);
  EXPECT_EQ(misplaced(&kDevice, false, answers()), nullptr);
  for (bool read_on_host : {true, false}) EXPECT_EQ(misplaced(&kPinned, read_on_host, answers()), nullptr);
}

TEST(Misplaced, SaysWhereAndWhereItIsRead) {
  EXPECT_STREQ(misplaced(&kDevice, true, answers()), "in device memory, and it is read on the host");
  EXPECT_STREQ(misplaced(&kPageable, false, answers()), "in host memory, and it is read on the device");
  for (bool read_on_host : {true, false}) EXPECT_NE(misplaced(&kForeign, read_on_host, answers()), nullptr);
}

}  // namespace
}  // namespace encore::plugin
