// Sparse attention to the top-k keys that an indexer has chosen for each token, and to the last ones before it.
#pragma once
#include "ops/attention/dense/attend.h"

namespace encore::ops {

// Of tokens [batch, row], all on the device.
struct TopkKeys {
  int64_t batch = 0, rows = 0;
  const int32_t* last_keys = nullptr;  // of each batch; its rows end there
  int64_t window = 0;                  // how many of the last keys are seen, the token's own among them
  const int32_t* indices = nullptr;    // [token, most]
  const int32_t* counts = nullptr;     // [token]: how many of them there are
  int64_t most = 0;
  // They are of other keys, [batch, kv_head, others, size], or of the same, up to the token's own.
  bool of_others = false;
  const void *other_keys = nullptr, *other_values = nullptr;
  int64_t others = 0;
};

// The problem's batches are the tokens, with a query each; its k and v are [batch, kv_head, key, size] with the real
// batches, and `keys` is how many there is room for. An index out of range is reported, and not seen.
void attend_topk(Context& context, const Attend& problem, const TopkKeys& chosen);

}  // namespace encore::ops
