#include "device/error.h"

#include <cstdio>

namespace encore {

const char* name(Code code) {
  switch (code) {
    case Code::invalid_input: return "invalid input";
    case Code::not_supported: return "not supported";
    case Code::out_of_memory: return "out of memory";
    case Code::capture_forbidden: return "forbidden during capture";
    case Code::capture_failed: return "capture failed";
    case Code::library_missing: return "library missing";
    case Code::no_device: return "no device";
    case Code::device_failed: return "device failed";
    case Code::internal: return "internal error";
  }
  return "unknown";
}

void Part::append_to(std::string& sentence) const {
  char number[32];
  switch (kind_) {
    case Kind::words: sentence += words_; return;
    case Kind::letter: sentence += letter_; return;
    case Kind::integer: std::snprintf(number, sizeof number, "%lld", integer_); break;
    case Kind::natural: std::snprintf(number, sizeof number, "%llu", static_cast<unsigned long long>(integer_)); break;
    case Kind::real: std::snprintf(number, sizeof number, "%g", real_); break;
    case Kind::address: std::snprintf(number, sizeof number, "%p", address_); break;
  }
  sentence += number;
}

std::string join(std::initializer_list<Part> parts) {
  std::string sentence;
  for (const Part& part : parts) part.append_to(sentence);
  return sentence;
}

void fail_with(Code code, std::initializer_list<Part> parts) { throw Error(code, join(parts)); }

}  // namespace encore
