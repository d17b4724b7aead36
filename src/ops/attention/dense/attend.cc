#include "ops/attention/dense/attend.h"

#include <algorithm>

#include "ops/attention/dense/attend_tf32.h"

namespace encore::ops {

Shape bias_shape(Context& context, const Attend& problem) {
  if (problem.k_codes || suits_grouped_decode(problem) || suits_decode(problem) || suits_short(context, problem))
    return Shape{0};
  return dnn_bias_shape(context, problem);
}

Shape blind_shape(const Shape& bias) { return bias.count() == 0 ? Shape{0} : Shape{bias[0], bias[1], bias[2]}; }

void check_sizes(const Attend& p) {
  require(p.queries < kSizeCap && p.keys < kSizeCap && p.heads < kSizeCap && p.head_size < kSizeCap &&
              p.value_size < kSizeCap && p.queries * (p.heads / p.kv_heads) < kSizeCap,
          "attention of ", p.heads, " heads of ", p.head_size, " and ", p.value_size, ", ", p.queries, " queries and ",
          p.keys, " keys is more than there are kernels for");
}

void attend(Context& context, const Attend& problem) {
  check_sizes(problem);
  if (problem.batch == 0 || problem.heads == 0 || problem.queries == 0) return;
  if (problem.k_codes) {
    if (suits_quantized_cache(problem)) return attend_quantized_cache(context, problem);
    return attend(context, dequantized_cache(context, problem));
  }
  if (suits_grouped_decode(problem)) return attend_grouped_decode(context, problem);
  if (suits_decode(problem)) return attend_decode(context, problem);
  if (suits_short(context, problem)) return attend_short(context, problem);
  if (suits_tf32(problem)) return attend_tf32(context, problem);
  if (attend_dnn(context, problem)) return;
  // With 32 rows at a time keys are read often, with larger heads too often.
  const bool narrow = std::max(problem.head_size, problem.value_size) <= 128;
  if (narrow && fits_grouped_decode(problem)) return attend_grouped_decode(context, problem);
  attend_prefill(context, problem);
}

}  // namespace encore::ops
