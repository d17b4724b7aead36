// What examples/cpp uses of onnxruntime's C++ header, over the C ABI as abi/ has it. No package that CI can have brings
// the header itself. With it, the test of examples/cpp is ENCORE_OFFICIAL_ORT_INCLUDE=FOLDER pytest tests/examples.
#pragma once
#include <algorithm>
#include <cstdlib>
#include <exception>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ort_abi.h"

extern "C" const OrtApiBase* OrtGetApiBase() noexcept;

namespace Ort {

inline const OrtApi& GetApi() {
  static const OrtApi* const api = [] {
    const OrtApiBase* const base = OrtGetApiBase();
    const auto minor = uint32_t(std::atoi(std::string(base->GetVersionString()).substr(2).c_str()));
    return base->GetApi(std::min(minor, ort_abi::kNewestApi));
  }();
  return *api;
}

class Exception : public std::exception {
 public:
  Exception(std::string message, OrtErrorCode code) : message_(std::move(message)), code_(code) {}
  const char* what() const noexcept override { return message_.c_str(); }
  OrtErrorCode GetOrtErrorCode() const { return code_; }

 private:
  std::string message_;
  OrtErrorCode code_;
};

inline void ThrowOnError(OrtStatus* status) {
  if (!status) return;
  const Exception error(GetApi().GetErrorMessage(status), GetApi().GetErrorCode(status));
  GetApi().ReleaseStatus(status);
  throw error;
}

// An object of onnxruntime's, which `Release` lets go of; null for what somebody else has.
template <class T, auto Release>
class Base {
 public:
  explicit Base(T* object = nullptr) : p_(object) {}
  Base(Base&& other) noexcept : p_(std::exchange(other.p_, nullptr)) {}
  ~Base() {
    if constexpr (Release != nullptr) (GetApi().*Release)(p_);
  }
  operator T*() const { return p_; }

 protected:
  T* p_;
};
template <class T>
class Unowned {
 public:
  Unowned(T* object) : p_(object) {}
  operator T*() const { return p_; }

 protected:
  T* p_;
};

using ConstMemoryInfo = Unowned<const OrtMemoryInfo>;

struct MemoryInfo : Base<OrtMemoryInfo, &OrtApi::ReleaseMemoryInfo> {
  static MemoryInfo CreateCpu(OrtAllocatorType type, OrtMemType memory) {
    MemoryInfo made;
    ThrowOnError(GetApi().CreateCpuMemoryInfo(type, memory, &made.p_));
    return made;
  }
};

struct ConstEpDevice : Unowned<const OrtEpDevice> {
  using Unowned::Unowned;
  const char* EpName() const { return GetApi().EpDevice_EpName(p_); }
  ConstMemoryInfo GetMemoryInfo(OrtDeviceMemoryType type) const { return GetApi().EpDevice_MemoryInfo(p_, type); }
};

struct Env : Base<OrtEnv, &OrtApi::ReleaseEnv> {
  Env(OrtLoggingLevel level, const char* name) { ThrowOnError(GetApi().CreateEnv(level, name, &p_)); }
  Env& RegisterExecutionProviderLibrary(const char* name, const std::string& path) {
    ThrowOnError(GetApi().RegisterExecutionProviderLibrary(p_, name, path.c_str()));
    return *this;
  }
  std::vector<ConstEpDevice> GetEpDevices() const {
    const OrtEpDevice* const* found = nullptr;
    size_t count = 0;
    ThrowOnError(GetApi().GetEpDevices(p_, &found, &count));
    return {found, found + count};
  }
};

struct SessionOptions : Base<OrtSessionOptions, &OrtApi::ReleaseSessionOptions> {
  SessionOptions() { ThrowOnError(GetApi().CreateSessionOptions(&p_)); }
  SessionOptions& AppendExecutionProvider_V2(Env& env, const std::vector<ConstEpDevice>& devices,
                                             const std::unordered_map<std::string, std::string>& options) {
    const std::vector<const OrtEpDevice*> pointers(devices.begin(), devices.end());
    std::vector<const char*> keys, values;
    for (const auto& [key, value] : options) keys.push_back(key.c_str()), values.push_back(value.c_str());
    ThrowOnError(GetApi().SessionOptionsAppendExecutionProvider_V2(p_, env, pointers.data(), pointers.size(),
                                                                   keys.data(), values.data(), keys.size()));
    return *this;
  }
};

struct RunOptions : Base<OrtRunOptions, &OrtApi::ReleaseRunOptions> {
  RunOptions() { ThrowOnError(GetApi().CreateRunOptions(&p_)); }
  RunOptions& AddConfigEntry(const char* key, const char* value) {
    ThrowOnError(GetApi().AddRunConfigEntry(p_, key, value));
    return *this;
  }
};

struct IoBinding;

struct Session : Base<OrtSession, &OrtApi::ReleaseSession> {
  Session(const Env& env, const char* model, const SessionOptions& options) {
    ThrowOnError(GetApi().CreateSession(env, model, options, &p_));
  }
  void Run(const RunOptions& options, const IoBinding& binding);
};

struct Allocator : Base<OrtAllocator, &OrtApi::ReleaseAllocator> {
  Allocator(const Session& session, const OrtMemoryInfo* memory) {
    ThrowOnError(GetApi().CreateAllocator(session, memory, &p_));
  }
};

struct Value : Base<OrtValue, &OrtApi::ReleaseValue> {
  template <class T>
  static Value CreateTensor(OrtAllocator* allocator, const int64_t* shape, size_t rank) {
    Value made;
    ThrowOnError(GetApi().CreateTensorAsOrtValue(allocator, shape, rank, type_of<T>(), &made.p_));
    return made;
  }
  template <class T>
  static Value CreateTensor(const OrtMemoryInfo* memory, T* data, size_t count, const int64_t* shape, size_t rank) {
    Value made;
    ThrowOnError(
        GetApi().CreateTensorWithDataAsOrtValue(memory, data, count * sizeof(T), shape, rank, type_of<T>(), &made.p_));
    return made;
  }

 private:
  template <class T>
  static ONNXTensorElementDataType type_of() {
    static_assert(std::is_same_v<T, float>);
    return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
  }
};

struct IoBinding : Base<OrtIoBinding, &OrtApi::ReleaseIoBinding> {
  explicit IoBinding(Session& session) { ThrowOnError(GetApi().CreateIoBinding(session, &p_)); }
  void BindInput(const char* name, const Value& value) { ThrowOnError(GetApi().BindInput(p_, name, value)); }
  void BindOutput(const char* name, const Value& value) { ThrowOnError(GetApi().BindOutput(p_, name, value)); }
};

inline void Session::Run(const RunOptions& options, const IoBinding& binding) {
  ThrowOnError(GetApi().RunWithBinding(p_, options, binding));
}

}  // namespace Ort
