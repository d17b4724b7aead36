#include "ops/attention/dense/attend.h"

#include <algorithm>

namespace encore::ops {

Shape bias_shape(Context& context, const Attend& problem) {
  if (problem.k_codes || suits_grouped_decode(problem) || suits_decode(problem) || suits_short(context, problem))
    return Shape{0};
  return dnn_bias_shape(context, problem);
}

Shape blind_shape(const Shape& bias) { return bias.count() == 0 ? Shape{0} : Shape{bias[0], bias[1], bias[2]}; }

void attend(Context& context, const Attend& problem) {
  require(problem.queries < kSizeCap && problem.keys < kSizeCap && problem.heads < kSizeCap &&
              problem.queries * (problem.heads / problem.kv_heads) < kSizeCap,
          "attention of ", problem.queries, " queries and ", problem.keys, " keys is more than there are kernels for");
  if (problem.batch == 0 || problem.heads == 0 || problem.queries == 0) return;
  if (problem.k_codes) {
    if (suits_quantized_cache(problem)) return attend_quantized_cache(context, problem);
    return attend(context, dequantized_cache(context, problem));
  }
  if (suits_grouped_decode(problem)) return attend_grouped_decode(context, problem);
  if (suits_decode(problem)) return attend_decode(context, problem);
  if (suits_short(context, problem)) return attend_short(context, problem);
  if (attend_dnn(context, problem)) return;
  // With 32 rows at a time keys are read often, with larger heads too often.
  const bool narrow = std::max(problem.head_size, problem.value_size) <= 128;
  if (narrow && fits_grouped_decode(problem)) return attend_grouped_decode(context, problem);
  attend_prefill(context, problem);
}

}  // namespace encore::ops
