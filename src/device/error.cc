#include "device/error.h"

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

}  // namespace encore
