// A decode step of grouped heads: the new row of each batch is rotated, put into the KV cache and attended at once.
#pragma once
#include "ops/attention/dense/attend.h"
#include "ops/attention/kv_cache/extend_cache.h"

namespace encore::ops {

// Both in one launch, for which the keys of a head are looked at by the blocks of a cluster; false if it does not
// serve. Rows of q are those of the extension; the problem's are not looked at.
bool decode_step(Context& context, const CacheExtension& extension, const Attend& problem);

}  // namespace encore::ops
