// The one exception type below the plugin room. The plugin's fence turns it into a status with the node's name.
#pragma once
#include <concepts>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <string_view>

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
// A piece of a sentence, as it is while the sentence is put together.
class Part {
 public:
  Part(std::string_view words) : words_(words) {}
  Part(const char* words) : words_(words) {}
  Part(char letter) : kind_(Kind::letter), letter_(letter) {}
  template <std::integral T>
  Part(T value)
      : kind_(std::signed_integral<T> ? Kind::integer : Kind::natural), integer_(static_cast<long long>(value)) {}
  Part(double value) : kind_(Kind::real), real_(value) {}
  Part(const void* address) : kind_(Kind::address), address_(address) {}
  void append_to(std::string& sentence) const;

 private:
  enum class Kind { words, letter, integer, natural, real, address };
  Kind kind_ = Kind::words;
  union {
    std::string_view words_;
    char letter_;
    long long integer_;
    double real_;
    const void* address_;
  };
};
std::string join(std::initializer_list<Part> parts);

template <class... Parts>
std::string text(const Parts&... parts) {
  return join({Part(parts)...});
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
