#include "plugin/host/api_version.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace encore::plugin {
namespace {

// A host of any version: it answers GetApi(n) only up to its own minor version, as onnxruntime does.
struct FakeHost {
  static inline const char* version_text = nullptr;
  static inline uint32_t newest_api = 0;
  static inline std::vector<uint32_t> asked;
  static inline OrtEpApi ep{};
  static inline OrtApi api{};
  static inline OrtApi other_api{};
  static inline const OrtApi* current = &api;

  static const OrtApiBase* base(const char* text, uint32_t newest) {
    version_text = text;
    newest_api = newest;
    asked.clear();
    api.GetEpApi = other_api.GetEpApi = []() noexcept -> const OrtEpApi* { return &ep; };
    current = &api;
    static const OrtApiBase base = {
        .GetApi = [](uint32_t version) noexcept -> const OrtApi* {
          asked.push_back(version);
          return version <= newest_api ? current : nullptr;
        },
        .GetVersionString = []() noexcept -> const char* { return version_text; },
    };
    return &base;
  }
};

std::string refusal(const OrtApiBase* base) {
  try {
    offered_by(base);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(ApiVersion, TakesTheOlderOfOwnAndHost) {
  struct Case {
    const char* text;
    int minor;
    uint32_t version;
  };
  for (const Case& c : {Case{"1.24.4", 24, 24}, Case{"1.26.0-dev20260101", 26, 26}, Case{"1.28", 28, 28},
                        Case{"1.30.0", 30, 30}, Case{"1.31.1", 31, 30}, Case{"1.131.0+cu13", 131, 30}}) {
    const Ort found = offered_by(FakeHost::base(c.text, static_cast<uint32_t>(c.minor)));
    EXPECT_EQ(found.version, c.version) << c.text;
    EXPECT_EQ(found.minor, c.minor) << c.text;
    EXPECT_EQ(found.text, c.text);
    EXPECT_EQ(found.api, &FakeHost::api);
    EXPECT_EQ(found.ep, &FakeHost::ep);
    EXPECT_EQ(FakeHost::asked, std::vector<uint32_t>{c.version}) << "a host prints a line when asked for too much";
  }
}

TEST(ApiVersion, RefusesOldHostsByName) {
  EXPECT_EQ(refusal(FakeHost::base("1.22.0", 22)), "Encore needs onnxruntime 1.24 or newer; this is 1.22.0");
  EXPECT_EQ(refusal(FakeHost::base("1.23.2", 23)), "Encore needs onnxruntime 1.24 or newer; this is 1.23.2");
  EXPECT_EQ(refusal(FakeHost::base("0.9.0", 9)), "Encore needs onnxruntime 1.24 or newer; this is 0.9.0");
  EXPECT_EQ(refusal(FakeHost::base("2.0.0", 40)), "Encore needs onnxruntime 1.24 or newer within 1.x; this is 2.0.0");
  EXPECT_TRUE(FakeHost::asked.empty());
}

TEST(ApiVersion, RefusesVersionsItCannotRead) {
  for (const char* text : {"", "1", "1.", "one.two", "1.x", "1.26rc", "-1.26.0", "1.-26.0", "1.99999999999999999999"}) {
    EXPECT_EQ(refusal(FakeHost::base(text, 99)),
              "Encore can't read the version of this onnxruntime: '" + std::string(text) + "'");
  }
  EXPECT_EQ(refusal(FakeHost::base(nullptr, 99)), "Encore can't read the version of this onnxruntime: ''");
  EXPECT_EQ(refusal(nullptr), "onnxruntime gave Encore no OrtApiBase");
}

TEST(ApiVersion, RefusesHostsWithoutTheApiTheyClaim) {
  const std::string expected = "onnxruntime 1.27.0 refuses its own API version 27; is it a complete build?";
  EXPECT_EQ(refusal(FakeHost::base("1.27.0", 26)), expected);
  const OrtApiBase* const minimal = FakeHost::base("1.27.0", 27);
  FakeHost::api.GetEpApi = []() noexcept -> const OrtEpApi* { return nullptr; };
  EXPECT_EQ(refusal(minimal), expected);
}

// The only test that settles ort(), which lasts for the process.
TEST(ApiVersion, SettlesOncePerProcess) {
  EXPECT_THROW(ort(), std::logic_error);
  EXPECT_THROW(negotiate(FakeHost::base("1.22.0", 22)), std::runtime_error);
  EXPECT_THROW(ort(), std::logic_error) << "a failure settles nothing";

  const OrtApiBase* const base = FakeHost::base("1.27.1", 27);
  std::vector<const Ort*> seen(8);
  std::vector<std::thread> threads;
  for (const Ort*& mine : seen) {
    threads.emplace_back([base, &mine] {
      negotiate(base);
      mine = &ort();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Ort* mine : seen) EXPECT_EQ(mine, seen.front());
  EXPECT_EQ(ort().version, 27u);
  EXPECT_TRUE(host_has(kGraphCaptureApi));
  EXPECT_TRUE(host_has(kReleaseCapturedGraphApi));
  EXPECT_FALSE(host_has(kSyncAfterReplayHost));

  FakeHost::current = &FakeHost::other_api;
  EXPECT_THROW(negotiate(base), std::runtime_error) << "another onnxruntime's table";
  EXPECT_EQ(ort().api, &FakeHost::api);
}

TEST(ApiVersion, NamesTheApiOfEachOptionalCallback) {
  EXPECT_EQ(kSyncApi, 25u);
  EXPECT_EQ(kGraphCaptureApi, 26u);
  EXPECT_EQ(kSessionInitializationEndApi, 27u);
  EXPECT_EQ(kDefaultMemoryDeviceApi, 27u);
  EXPECT_EQ(kReleaseCapturedGraphApi, 27u);
}

}  // namespace
}  // namespace encore::plugin
