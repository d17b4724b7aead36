// If, Loop and Scan. Whoever calls runs their bodies, so no op stands behind these rows: they say which nodes can be
// run so, since their values are moved and never computed with.
#include "ops/rooms.h"

namespace encore::ops {
namespace {

constexpr TypeRule kOutputs{.output = true, .index = 0, .types = kFixedSize, .and_following = true};

}  // namespace

std::vector<OpRow> control_rows() {
  return {
      {kOnnx, "If", 1, kNewestOpset, {in(0, kBool), kOutputs}, nullptr, {0}},
      {kOnnx,
       "Loop",
       1,
       kNewestOpset,
       {in(0, {Type::i64}), in(1, kBool), in_all(2, kFixedSize), kOutputs},
       nullptr,
       {0, 1}},
      {kOnnx, "Scan", 9, kNewestOpset, {in_all(0, kFixedSize), kOutputs}, nullptr},
  };
}

}  // namespace encore::ops
