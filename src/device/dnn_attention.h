// Attention of f16 and bf16 through cuDNN's graph API. Like convolutions it is an offer: where cuDNN is not there, as
// on the virtual GPU, or has no engine for a problem, prepare_attention() says so, and the ops room's own kernels
// serve.
#pragma once
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "device/dnn.h"

namespace encore::device {

// y = softmax(scale * q kT + bias) v for each batch and head.
struct FusedAttention {
  struct Strides {  // in elements; the last dimension's is 1
    int64_t batch = 0, head = 0, row = 0;
    auto operator<=>(const Strides&) const = default;
  };

  Type type = Type::f16;
  int64_t batch = 0, heads = 0, kv_heads = 0;  // heads is a multiple of kv_heads, neighbours share one
  int64_t queries = 0, keys = 0, head_size = 0, value_size = 0;
  Strides q, k, v, y;
  float scale = 1;
  // A query sees keys from `left` before its position to `right` after it; below zero: all of them. Query i is at the
  // position i, or with bottom_right as far from the last key as it is from the last query.
  int64_t left = -1, right = -1;
  bool bottom_right = false;
  bool has_lengths = false;  // of each batch; the last key is then that of the length
  // The bias is [bias_batch, bias_heads, bias_queries, keys], where these are 1 or all; zero: there is none.
  int64_t bias_batch = 0, bias_heads = 0, bias_queries = 0;

  auto operator<=>(const FusedAttention&) const = default;
};
std::string describe(const FusedAttention& problem);

// Every address must be aligned to 16 bytes.
struct AttentionAddresses {
  const void *q, *k, *v;
  const void* bias = nullptr;
  const int32_t *query_lengths = nullptr, *key_lengths = nullptr;  // one for each batch, if it has lengths
  void* y;
};

// How many bytes of workspace its plan needs, which is built if it is new; nothing if cuDNN can't or may not serve.
// What cuDNN makes of a query that sees no key is not said: the caller sets these rows. During a capture a plan must be
// there already: Error{capture_forbidden} asks for a warm-up with these shapes.
std::optional<size_t> prepare_attention(Dnn& dnn, StreamRef stream, const FusedAttention& problem);
// `is_cleared`: the workspace holds zeros, each time that what is captured now is replayed.
void run_attention(Dnn& dnn, StreamRef stream, const FusedAttention& problem, const AttentionAddresses& addresses,
                   void* workspace, bool is_cleared = false);

}  // namespace encore::device
