// The one exception type below the plugin room. The plugin's fence turns it into a status with the node's name.
#pragma once
#include <sstream>
#include <stdexcept>
#include <string>

namespace encore {

enum class Code {
  invalid_input,      // what the caller or the model gave cannot be used
  not_supported,      // valid, but not something Encore does
  out_of_memory,      // device or pinned memory is exhausted
  capture_forbidden,  // the call is illegal while a stream captures; the capture is now invalid
  capture_failed,     // a capture was invalidated, or could not be ended or instantiated
  library_missing,    // a shared library could not be opened or lacks a symbol
  no_device,          // no usable device or driver
  device_failed,      // the device or its driver reported a failure
  internal,           // a defect of Encore
};
const char* name(Code code);

// Joins its arguments into one string: text("axis ", axis, " is outside ", rank).
template <class... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

class Error : public std::runtime_error {
 public:
  // `call` is the library call or the function which failed; empty where the message says it all.
  Error(Code code, const std::string& what, std::string call = {})
      : std::runtime_error(call.empty() ? what : what + " [in " + call + "]"), code_(code), call_(std::move(call)) {}
  Code code() const { return code_; }
  const std::string& call() const { return call_; }

 private:
  Code code_;
  std::string call_;
};

template <class... Parts>
[[noreturn]] void fail(Code code, const Parts&... parts) {
  throw Error(code, text(parts...));
}
// Refuses bad input: require(axis < rank, "axis ", axis, " is outside rank ", rank).
template <class... Parts>
void require(bool ok, const Parts&... parts) {
  if (!ok) throw Error(Code::invalid_input, text(parts...));
}

}  // namespace encore
