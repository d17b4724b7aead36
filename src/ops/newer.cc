#include "ops/newer.h"

#include <limits>
#include <utility>
#include <vector>

#include "ops/registry.h"

namespace encore::ops {
namespace {

struct Grown {
  const char* name;
  int inputs = std::numeric_limits<int>::max();  // how many it had before
  int outputs = std::numeric_limits<int>::max();
  std::vector<std::pair<const char*, int64_t>> numbers = {};  // attributes, with the value that changes nothing
};

// Of com.microsoft; since schemas of September 2026. Why each is left:
// - states that are captured token by token and taken back (CausalConvWithState, VarlenCausalConvWithState,
//   PackedSparseAttentionIndexer) belong to speculative decoding. With them are left the operators that do nothing
//   else: ConvStateReplay, GatedDeltaNetStateReplay, Mamba2Verify, SpeculativePrefixCommit,
//   PackedSparseAttentionIndexerMerge.
// - DynamicSparseAttention's newer inputs are of caches in bytes, GatedAdd's of a gate that is a product in bfloat16,
//   and GroupQueryAttention's lets sequences of a batch have queries of different lengths: no kernel here knows of
//   them.
// Other operators that are new and have no row: MatMulNBitsMlp and MatMulNBitsQkv are made by a host's own fusion for
// another kind of device, MoEPacked has weights in other programs' formats, and HyperConnectionLowRankMix and
// RMSNormRotary say in one what models here say in several.
const std::vector<Grown>& grown() {
  static const std::vector<Grown> all = {
      {.name = "CausalConvWithState",
       .outputs = 2,
       .numbers = {{"input_channel_offset", 0},
                   {"input_channels", 0},
                   {"state_channels_last", -1},
                   {"state_length", 0},
                   {"state_update_capacity", 0}}},
      {.name = "DynamicSparseAttention", .inputs = 17, .outputs = 3, .numbers = {{"output_bf16", 0}}},
      {.name = "GatedAdd", .inputs = 3},
      {.name = "GroupQueryAttention", .inputs = 16},
      {.name = "PackedSparseAttentionIndexer", .inputs = 18, .outputs = 7, .numbers = {{"max_output_entries", 0}}},
      {.name = "VarlenCausalConvWithState", .inputs = 6},
  };
  return all;
}

}  // namespace

std::string why_too_new(const NodeInfo& node) {
  if (node.domain() != kMicrosoft) return {};
  for (const Grown& op : grown()) {
    if (op.name != node.op_type()) continue;
    for (int i = op.inputs; i < node.input_count(); ++i)
      if (node.has_input(i)) return text("input ", i, " is newer than Encore's ", op.name);
    for (int i = op.outputs; i < node.output_count(); ++i)
      if (node.has_output(i)) return text("output ", i, " is newer than Encore's ", op.name);
    for (const auto& [attribute, neutral] : op.numbers)
      if (node.get_int(attribute, neutral) != neutral)
        return text("attribute ", attribute, " is newer than Encore's ", op.name);
  }
  return {};
}

}  // namespace encore::ops
