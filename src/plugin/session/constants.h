// A model's constants on the device, each once, whichever fused nodes of which of its graphs read it.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "ops/op.h"

namespace encore::plugin {

class Constants {
 public:
  using Block = std::shared_ptr<void>;
  // Copies bytes from the device, and waits for them.
  using Read = std::function<void(void* host, const void* device, size_t bytes)>;

  // The block that holds what the constant, on the host, does; null if there is none.
  Block find(const ops::Tensor& constant, const Read& read);
  void add(const ops::Tensor& constant, const Block& block);
  // onnxruntime may put others where constants were on the host.
  void forget_addresses() { by_address_.clear(); }

 private:
  std::map<std::pair<const void*, size_t>, std::weak_ptr<void>> by_address_;  // on the host, and size
  std::multimap<std::pair<size_t, size_t>, std::weak_ptr<void>> by_look_;     // see look_of()
};

}  // namespace encore::plugin
