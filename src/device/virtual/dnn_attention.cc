// There is no cuDNN for the virtual GPU.
#include "device/dnn_attention.h"

#include "device/error.h"

namespace encore::device {

std::optional<size_t> prepare_attention(Dnn&, StreamRef, const FusedAttention&) { return std::nullopt; }
void run_attention(Dnn&, StreamRef, const FusedAttention& problem, const AttentionAddresses&, void*, bool) {
  fail(Code::library_missing, describe(problem), ": the virtual GPU has no cuDNN");
}

}  // namespace encore::device
