#include "device/label.h"

#include <mutex>
#include <set>

namespace encore::device {

const char* kept(const std::string& text) {
  static auto& texts = *new std::set<std::string>;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  return texts.insert(text).first->c_str();
}

}  // namespace encore::device
