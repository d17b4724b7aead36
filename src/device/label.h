// Attribution: launches, copies and errors inside the scope belong to the named ONNX node, and so does a range that
// profilers see.
#pragma once
#include <string>

#include "device/range.h"

namespace encore::device {

class Label {
 public:
  // `text` must outlive every graph captured in the scope; kernels own their names.
  explicit Label(const char* text) : previous_(current_) {
    current_ = text;
    if (may_be_seen()) [[unlikely]]
      begin_range(text);
  }
  ~Label() {
    if (may_be_seen()) [[unlikely]]
      end_range();
    current_ = previous_;
  }
  Label(const Label&) = delete;
  // Never null.
  static const char* current() { return current_ ? current_ : ""; }

 private:
  static bool may_be_seen() { return ranges_may_be_seen.load(std::memory_order_relaxed) && *current_; }

  const char* previous_;
  static inline thread_local const char* current_ = nullptr;
};

// One copy of each text, until the process ends: memory is attributed to its node by name, and may outlive the session
// in the arena that sessions share.
const char* kept(const std::string& text);

}  // namespace encore::device
