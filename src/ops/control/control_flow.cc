// If, Loop and Scan. Whoever calls runs their bodies, so no op stands behind these rows: they say which nodes can be
// run so, since their values are moved and never computed with.
#include "ops/control/scan.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

constexpr TypeRule kOutputs{.output = true, .index = 0, .types = kFixedSize, .and_following = true};

}  // namespace

std::vector<bool> scanned_backward(const NodeInfo& node, const char* attribute, size_t count) {
  const auto given = node.find_ints(attribute);
  if (!given) return std::vector<bool>(count);
  require(given->size() == count, attribute, " has ", given->size(), " values for ", count);
  for (int64_t value : *given) require(value == 0 || value == 1, attribute, " has ", value, "; 0 or 1 is wanted");
  return {given->begin(), given->end()};
}

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
