// Decode: a token's products and attention, each of which takes what the one before it made. They are put off until it
// is known what comes behind them, and then launched as one persistent kernel (persistent_decode.h), which reads
// weights on and on, where a kernel each would wait for the one before to end.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <variant>
#include <vector>

#include "ops/attention/dense/attend.h"
#include "ops/attention/kv_cache/extend_cache.h"
#include "ops/quantize/block_weights.h"

namespace encore::ops {

// One row by constant weights, which may be normed on its way to them.
struct ProductLink {
  Type type = Type::f16;
  const void* x = nullptr;
  int64_t depth = 0, columns = 0;
  const void* weights = nullptr;  // [depth, columns], or null:
  BlockCodes codes;               // without codes, which are woven
  WovenCodes woven;
  const void* bias = nullptr;
  // With gamma: (x + skip) / sqrt(mean of the squares + epsilon) * gamma; skip may be null.
  const void *gamma = nullptr, *skip = nullptr;
  float epsilon = 0;
  void* sum = nullptr;  // x + skip, if it is wanted
  bool gated = false;   // as in elementwise/gate.h
  void* y = nullptr;
};

// A decode step, whose queries, keys and values one product made.
struct AttendLink {
  CacheExtension cache;
  Attend attend;
  device::FaultRef fault;
};

using DecodeLink = std::variant<ProductLink, AttendLink>;
// How a link is launched by itself.
using LaunchAlone = std::function<void(StreamRef)>;

// What was put off.
struct LinkPutOff {
  DecodeLink link;
  LaunchAlone alone;
  const char* label;
  bool x_from_memory = true;     // of a product; else it is what the link before made
  bool skip_from_memory = true;  // else the sum of the last product that had one
  bool y_to_memory = true, sum_to_memory = true;
};

class DecodeChain {
 public:
  // Memory comes from the context, and launches go to its stream.
  explicit DecodeChain(Context& context) : context_(context) {}
  ~DecodeChain();
  DecodeChain(const DecodeChain&) = delete;

  int device() const { return context_.stream().device(); }
  // Puts it off. False, and nothing is done, if it is nothing for the kernel.
  bool add(DecodeLink link, LaunchAlone alone);
  // Nobody will read what was put off there.
  void forget(const void* value);
  // The context's scratch is not needed any more once all is launched.
  void give_back(void* scratch);
  // Launches what was put off.
  void launch();

 private:
  // Memory from `begin` on.
  struct Extent {
    const void* begin;
    size_t bytes;
    bool has(const void* at) const { return at >= begin && at < static_cast<const char*>(begin) + bytes; }
  };
  static Extent made_by(const DecodeLink& link);
  bool continues(const DecodeLink& link) const;
  bool is_put_off(const void* read) const;

  Context& context_;
  std::vector<LinkPutOff> links_;
  std::vector<Extent> written_;  // by them
  const void* sum_ = nullptr;    // the last that is among it
  std::vector<void*> given_back_;
};

// Of a run whose launches may be put off, without launching what was.
inline int device_of(const Context& context, const DecodeChain* chain) {
  return chain ? chain->device() : context.stream().device();
}

}  // namespace encore::ops
