// What com.microsoft's Longformer attentions share.
#pragma once
#include "ops/op.h"

namespace encore::ops {

class Longformer : public Op {
 protected:
  explicit Longformer(const NodeInfo& node);

  struct Sizes {
    int64_t batch, rows, hidden;
    int64_t all_rows() const { return checked_product(batch, rows); }
  };
  // Error{invalid_input} if they don't fit together.
  Sizes sizes_of(const Tensor& input, const Tensor& mask, const Tensor& flags) const;

  // `local` and `global` are queries, keys and values of heads, [row, 3 * hidden].
  void attend_projected(Context& context, const Sizes& sizes, const void* local, const void* global, const Tensor& mask,
                        const Tensor& flags, void* y) const;

 private:
  int64_t heads_, window_;
};

}  // namespace encore::ops
