// com.microsoft's attention of what a projection has made of its input: all but the projection.
#pragma once
#include <functional>
#include <vector>

#include "ops/attention/inputs/projection.h"

namespace encore::ops {

class ProjectedAttention : public Op {
 protected:
  // Which inputs are what; below zero: there is none.
  struct Slots {
    int mask, past, score_bias = -1, past_length = -1;
  };
  ProjectedAttention(const NodeInfo& node, const Slots& slots);
  // `input` and `weights` are looked at for their shapes; `type` is that of the heads which `make` makes.
  void attend_projected(Context& context, const Tensor& input, const Tensor& weights, Type type,
                        const std::function<ProjectedHeads()>& make) const;

  int64_t heads_;
  std::vector<int64_t> sizes_;
  bool tf32_;

 private:
  struct Caches {
    Cache k, v;
  };
  Caches caches(Context& context, Type type, int64_t batch, int64_t rows, int64_t size, int64_t value_size) const;

  Slots slots_;
  int64_t rotated_;
  float scale_, filter_;
  bool causal_, rotary_, shares_;
};

}  // namespace encore::ops
