// onnxruntime's logger, of a session or of the environment.
#pragma once
#include <string>

#include "plugin/host/api_version.h"

namespace encore::plugin {

class Log {
 public:
  Log() = default;
  explicit Log(const OrtLogger* logger) : logger_(logger) {}

  void verbose(const std::string& message) const noexcept { write(ORT_LOGGING_LEVEL_VERBOSE, message); }
  void info(const std::string& message) const noexcept { write(ORT_LOGGING_LEVEL_INFO, message); }
  void warning(const std::string& message) const noexcept { write(ORT_LOGGING_LEVEL_WARNING, message); }
  void error(const std::string& message) const noexcept { write(ORT_LOGGING_LEVEL_ERROR, message); }

 private:
  void write(OrtLoggingLevel level, const std::string& message) const noexcept {
    if (logger_ == nullptr) return;
    OrtStatus* failed = ort().api->Logger_LogMessage(logger_, level, message.c_str(), "encore", 0, "Encore");
    if (failed != nullptr) ort().api->ReleaseStatus(failed);  // there is nowhere left to report to
  }

  const OrtLogger* logger_ = nullptr;
};

}  // namespace encore::plugin
