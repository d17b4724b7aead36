#include "device/dnn_attention.h"

#include "device/error.h"

namespace encore::device {

std::string describe(const FusedAttention& p) {
  const auto strides = [](const char* of, const FusedAttention::Strides& s) {
    return text(" ", of, "[", s.batch, ",", s.head, ",", s.row, ",1]");
  };
  return text("attention of ", name(p.type), ", batch=", p.batch, " heads=", p.heads, "/", p.kv_heads,
              " queries=", p.queries, " keys=", p.keys, " sizes=", p.head_size, "/", p.value_size, ", strides",
              strides("q", p.q), strides("k", p.k), strides("v", p.v), strides("y", p.y), ", window=", p.left, "/",
              p.right, p.bottom_right ? " bottom-right" : "", p.has_lengths ? ", lengths" : "",
              p.bias_batch ? text(", bias[", p.bias_batch, ",", p.bias_heads, ",", p.bias_queries, "]") : "");
}

}  // namespace encore::device
