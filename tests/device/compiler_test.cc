// Kernels that are compiled at run time: launched, captured, and exchanged in graphs for others that did the same.
#include "device/compiler.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "device/device.h"
#include "device/error.h"
#include "device/exchange.h"
#include "device/memory.h"
#include "device/tuning_cache.h"
#include "on_device.h"

namespace encore::device::tests {
namespace {

using When = CompilerSettings::When;

// y[i] = x[i] * factor, or something else, so that it shows which kernel it was.
std::string source(const std::string& factor) {
  return R"(#include <cstdint>
#include "device/annotate.h"
namespace encore::compiled {
struct Arguments { const float* x; float* y; };
template <class Wait>
DEVICE_FN void body(const Arguments& at, int64_t i, Wait wait) { wait(); at.y[i] = at.x[i] * )" +
         factor + "; }\n}\n";
}
struct Arguments {
  const float* x;
  float* y;
};

class CompilerTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { setenv("ENCORE_VIRTUAL_COMPILER", "g++", 1); }
  static void TearDownTestSuite() { unsetenv("ENCORE_VIRTUAL_COMPILER"); }

  static constexpr int kCount = 300;
  Stream stream{0};
  DeviceArray<float> x{std::vector<float>(kCount, 2)}, y{kCount};
  std::vector<float> made() { return y.download(stream); }
  Arguments arguments() { return {x.data(), y.data()}; }
  static std::vector<float> all(float value) { return std::vector<float>(kCount, value); }
};

TEST_F(CompilerTest, IsThereAtOnceIfAsked) {
  Compiler compiler(0, {.when = When::at_once});
  const auto kernel = compiler.find(source("3"));
  ASSERT_TRUE(kernel && kernel->is_ready());
  launch(stream, {kernel, kCount, arguments()});
  EXPECT_EQ(made(), all(6));
  EXPECT_EQ(Compiler(0, {.when = When::in_background}).find(source("3")), kernel) << "kernels are the process's";
}

TEST_F(CompilerTest, IsCaptured) {
  Compiler compiler(0, {.when = When::at_once});
  begin_capture(stream, CaptureMode::thread_local_);
  const auto kernel = compiler.find(source("4"));
  ASSERT_TRUE(kernel && kernel->is_ready());
  launch(stream, {kernel, kCount, arguments()});
  const GraphExec exec = end_capture(stream).instantiate();
  for (float value : {5.f, 7.f}) {
    x.upload(stream, all(value));
    exec.launch(stream);
    EXPECT_EQ(made(), all(4 * value));
  }
}

// Both executables are of one graph, which is gone when they exchange.
TEST_F(CompilerTest, TakesAnothersPlaceInGraphs) {
  Compiler first(0, {.when = When::at_once}), compiler(0, {.when = When::in_background});
  const auto stand_in = first.find(source("5"));
  begin_capture(stream, CaptureMode::thread_local_);
  const auto kernel = compiler.find(source("6"));
  ASSERT_TRUE(kernel);
  launch(stream, {stand_in, kCount, arguments()});
  exchange_latest(stream, {kernel, kCount, arguments()});
  Graph graph = end_capture(stream);
  const GraphExec one = graph.instantiate(), other = graph.instantiate();
  graph = {};
  kernel->wait();
  ASSERT_TRUE(kernel->is_ready());
  for (const GraphExec* exec : {&one, &one, &other}) {
    fill(stream, y.data(), 0, sizeof(float) * kCount);
    exec->launch(stream);
    EXPECT_EQ(made(), all(12));
  }
}

TEST_F(CompilerTest, WhatDoesNotCompileLeavesGraphsAsTheyAre) {
  std::string warning;
  Compiler compiler(0, {.when = When::in_background, .warn = [&](const std::string& said) { warning = said; }});
  const auto stand_in = Compiler(0, {.when = When::at_once}).find(source("7"));
  begin_capture(stream, CaptureMode::thread_local_);
  const auto kernel = compiler.find(source("nonsense"));
  ASSERT_TRUE(kernel);
  launch(stream, {stand_in, kCount, arguments()});
  exchange_latest(stream, {kernel, kCount, arguments()});
  const GraphExec exec = end_capture(stream).instantiate();
  kernel->wait();
  exec.launch(stream);
  EXPECT_EQ(made(), all(14));
  EXPECT_EQ(compiler.find(source("nonsense")), nullptr);
  EXPECT_NE(warning.find("nonsense"), std::string::npos) << warning;
}

TEST_F(CompilerTest, NothingIsCompiledIfNobodyWantsIt) {
  EXPECT_EQ(Compiler(0, {.when = When::never}).find(source("8")), nullptr);
}

#ifdef ENCORE_VIRTUAL
TEST_F(CompilerTest, EveryThreadWaits) {
  std::string text = source("10");
  text.erase(text.find("wait();"), 7);
  const auto kernel = Compiler(0, {.when = When::at_once}).find(text);
  ASSERT_TRUE(kernel && kernel->is_ready());
  launch(stream, {kernel, kCount, arguments()});
  EXPECT_ERROR(stream.ref().synchronize(), Code::device_failed);
  clear_error(0);
}

TEST_F(CompilerTest, ASessionKeepsTheCompilerThatItWasMadeWith) {
  Compiler compiler(0, {.when = When::at_once});
  unsetenv("ENCORE_VIRTUAL_COMPILER");
  const auto kernel = compiler.find(source("11"));
  SetUpTestSuite();
  EXPECT_TRUE(kernel && kernel->is_ready());
}
#endif

TEST_F(CompilerTest, IsKeptForLaterProcesses) {
  const std::string path = std::filesystem::path(::testing::TempDir()) / "compiled";
  std::filesystem::remove(path);
  const auto cache = std::make_shared<TuningCache>(path);
  Compiler(0, {.when = When::at_once, .kept = cache}).find(source("9"));
  EXPECT_EQ(cache->size(), 1u);
  EXPECT_TRUE(std::filesystem::exists(path)) << "written when the session ends";
  const std::string elsewhere = path + " of another session";
  std::filesystem::remove(elsewhere);
  const auto other = std::make_shared<TuningCache>(elsewhere);
  Compiler(0, {.when = When::at_once, .kept = other}).find(source("9"));
  EXPECT_EQ(other->size(), 1u) << "what the process has is in each session's file";
}

}  // namespace
}  // namespace encore::device::tests
