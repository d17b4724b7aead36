// The edge between Encore's exceptions and onnxruntime's statuses. Nothing is thrown across it in either direction.
#pragma once
#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>

#include "device/device.h"
#include "device/error.h"
#include "plugin/host/api_version.h"

namespace encore::plugin {

// What one of onnxruntime's own functions answered.
class OrtError : public std::runtime_error {
 public:
  OrtError(OrtErrorCode code, const std::string& what) : std::runtime_error(what), code_(code) {}
  OrtErrorCode code() const { return code_; }

 private:
  OrtErrorCode code_;
};

// Throws what the status says, and releases it.
[[noreturn]] inline void raise(OrtStatus* status) {
  const OrtError error(ort().api->GetErrorCode(status), ort().api->GetErrorMessage(status));
  ort().api->ReleaseStatus(status);
  throw error;
}
inline void check(OrtStatus* status) {
  if (status) [[unlikely]]
    raise(status);
}

// Never EP_FAIL: onnxruntime's Python answers that with a silent rerun on the CPU.
inline OrtErrorCode ort_code(Code code) {
  switch (code) {
    case Code::invalid_input: return ORT_INVALID_ARGUMENT;
    case Code::not_supported: return ORT_NOT_IMPLEMENTED;
    default: return ORT_FAIL;
  }
}

// The exception in flight as a status; null only if onnxruntime has no memory for it.
inline OrtStatus* status_of_current_exception(const OrtApi* api, const char* where) noexcept {
  try {
    const auto status = [api](OrtErrorCode code, const std::string& what) {
      return api->CreateStatus(code, what.c_str());
    };
    try {
      throw;
    } catch (const Error& error) {
      return status(ort_code(error.code()), error.what());
    } catch (const OrtError& error) {
      return status(error.code() == ORT_EP_FAIL ? ORT_FAIL : error.code(), error.what());
    } catch (const std::bad_alloc&) {
      return status(ORT_FAIL, text("host memory is exhausted [in ", where, "]"));
    } catch (const std::exception& error) {
      return status(ORT_FAIL, text(error.what(), " [in ", where, "]"));
    } catch (...) {
      return status(ORT_FAIL, text("an exception of unknown type [in ", where, "]"));
    }
  } catch (...) {
    return api->CreateStatus(ORT_FAIL, "Encore failed and could not say why: host memory is exhausted");
  }
}

// Runs `body`, which returns nothing; `where` appears in the message of exceptions that don't speak for themselves.
template <class Body>
OrtStatus* guarded(const char* where, Body&& body) noexcept {
  try {
    body();
    return nullptr;
  } catch (...) {
    return status_of_current_exception(ort().api, where);
  }
}

// Likewise, with the device current.
template <class Body>
OrtStatus* guarded_on(int device, const char* where, Body&& body) noexcept {
  return guarded(where, [&] {
    const device::Current current(device);
    body();
  });
}

// Does what may wait for the device, with the device current unless the process is ending.
template <class F>
void on_device_at_the_end(int device, F work) noexcept {
  std::optional<device::Current> current;
  try {
    current.emplace(device);
  } catch (const std::exception&) {  // so is the driver
  }
  work();
}
template <class T>
void delete_on(int device, T* thing) noexcept {
  on_device_at_the_end(device, [&] { delete thing; });
}

// Owns what onnxruntime hands out or takes back by a release function.
template <class T>
struct OrtDeleter {
  void (*release)(T*) noexcept = nullptr;
  void operator()(T* thing) const noexcept { release(thing); }
};
template <class T>
using OrtPtr = std::unique_ptr<T, OrtDeleter<T>>;
template <class T>
OrtPtr<T> owned(T* thing, void (*release)(T*) noexcept) {
  return OrtPtr<T>(thing, {release});
}

}  // namespace encore::plugin
