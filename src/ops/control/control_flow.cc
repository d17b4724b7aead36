// If, Loop and Scan. Whoever calls runs their bodies, so no op stands behind these rows: they say which nodes can be
// run so, since their values are moved and never computed with.
#include "ops/registry.h"

namespace encore::ops {
namespace {

constexpr TypeRule kOutputs{.output = true, .index = 0, .types = kFixedSize, .and_following = true};

}  // namespace

std::vector<OpRow> control_flow_rows() {
  return {
      {.name = "If", .since = 1, .types = {in(0, kBool), kOutputs}, .host_inputs = {0}},
      {.name = "Loop",
       .since = 1,
       .types = {in(0, {Type::i64}), in(1, kBool), in_all(2, kFixedSize), kOutputs},
       .host_inputs = {0, 1}},
      {.name = "Scan", .since = 9, .types = {in_all(0, kFixedSize), kOutputs}},
  };
}

}  // namespace encore::ops
