#include "ops/attention/dense/attend_decode.h"

namespace encore::ops {

bool suits_decode(const Attend& p) {
  return p.queries <= 8 && std::max(p.head_size, p.value_size) <= 256 && p.value_size > 0 && p.type != Type::f64 &&
         !p.scores.data;
}

void attend_decode(Context& context, const Attend& problem) {
  dispatch(TypeList<float, Half, BFloat16>{}, problem.type,
           [&]<class T> { launch_decode<T>(context, problem, EveryKey<T>(problem)); });
}

}  // namespace encore::ops
