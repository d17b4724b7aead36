// A model on Encore by onnxruntime's C++ API: everything stays bound in device memory, and runs are one CUDA graph.
//
//   application model.onnx [OPTION=VALUE ...]
//
// The options are Encore's (docs/options.md), besides enable_cuda_graph=1. The model is that of examples/make_model.py.
#include <onnxruntime_cxx_api.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <string>
#include <unordered_map>
#include <vector>

namespace {

constexpr const char* kProvider = "CUDAExecutionProvider";  // the name to register Encore under
constexpr std::array<int64_t, 2> kInput{16, 64}, kOutput{16, 10};
constexpr int kRuns = 100;

// The library is registered once in a process; the first device that it offers.
Ort::ConstEpDevice register_encore(Ort::Env& env) {
  env.RegisterExecutionProviderLibrary(kProvider, ENCORE_LIBRARY);
  for (const Ort::ConstEpDevice& device : env.GetEpDevices())
    if (device.EpName() == std::string(kProvider)) return device;
  throw Ort::Exception("Encore offers no device here; the log above says why", ORT_FAIL);
}

// Between host and device; waits.
void copy(const Ort::Env& env, const Ort::Value& from, Ort::Value& to) {
  const OrtValue* const source = from;
  OrtValue* const target = to;
  Ort::ThrowOnError(Ort::GetApi().CopyTensors(env, &source, &target, nullptr, 1));
}

Ort::Value view_of(std::vector<float>& values, const std::array<int64_t, 2>& shape) {
  const auto cpu = Ort::MemoryInfo::CreateCpu(OrtDeviceAllocator, OrtMemTypeDefault);
  return Ort::Value::CreateTensor<float>(cpu, values.data(), values.size(), shape.data(), shape.size());
}

void run(const char* model, const std::unordered_map<std::string, std::string>& options) {
  Ort::Env env(ORT_LOGGING_LEVEL_WARNING, "application");
  const Ort::ConstEpDevice device = register_encore(env);
  Ort::SessionOptions session_options;
  session_options.AppendExecutionProvider_V2(env, {device}, options);
  Ort::Session session(env, model, session_options);  // throws if Encore refuses an option or the model

  // A graph reads and writes the memory that it was captured with, which stays.
  Ort::Allocator on_device(session, device.GetMemoryInfo(OrtDeviceMemoryType_DEFAULT));
  Ort::Value x = Ort::Value::CreateTensor<float>(on_device, kInput.data(), kInput.size());
  Ort::Value y = Ort::Value::CreateTensor<float>(on_device, kOutput.data(), kOutput.size());
  Ort::IoBinding binding(session);
  binding.BindInput("x", x);
  binding.BindOutput("y", y);
  Ort::RunOptions run_options;
  run_options.AddConfigEntry("gpu_graph_id", "1");  // each binding has a graph of its own; -1 runs without

  std::vector<float> input(16 * 64), output(16 * 10);
  const Ort::Value host_x = view_of(input, kInput);
  Ort::Value host_y = view_of(output, kOutput);
  for (int i = 0; i < kRuns; ++i) {
    std::fill(input.begin(), input.end(), float(i) / kRuns);
    copy(env, host_x, x);
    session.Run(run_options, binding);  // the first one warms up and captures, the others replay
    copy(env, y, host_y);
  }
  const auto best = std::max_element(output.begin(), output.begin() + 10);
  std::printf("%d runs: class %d, %.0f %% sure\n", kRuns, int(best - output.begin()), 100 * *best);
}

}  // namespace

int main(int count, char** arguments) {
  std::unordered_map<std::string, std::string> options{{"enable_cuda_graph", "1"}};
  for (int i = 2; i < count; ++i) {
    const std::string option = arguments[i];
    const size_t middle = std::min(option.find('='), option.size());
    options[option.substr(0, middle)] = option.substr(std::min(middle + 1, option.size()));
  }
  try {
    run(count > 1 ? arguments[1] : "model.onnx", options);
    return 0;
  } catch (const Ort::Exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
