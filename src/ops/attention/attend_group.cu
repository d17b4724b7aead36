#include "ops/attention/attend_group.h"

namespace encore::ops {
bool fits_group(const Attend& p) {
  constexpr int64_t kMostSize = 256, kMostRows = int64_t(1) << 24;  // so that blocks are counted in 32 bits
  return (p.type == Type::f16 || p.type == Type::bf16) && !p.scores.data && p.keys > 0 && p.value_size > 0 &&
         std::max(p.head_size, p.value_size) <= kMostSize && p.batch <= kMostRows &&
         p.batch * p.heads <= kMostRows / p.queries && packs_fit<8, Half>(p.q, p.head_size) &&
         packs_fit<8, Half>(p.k, p.head_size) && packs_fit<8, Half>(p.v, p.value_size);
}

bool suits_group(const Attend& p) {
  return (p.queries <= 8 || p.queries * (p.heads / p.kv_heads) <= 32) && fits_group(p);
}

void attend_group(Context& context, const Attend& problem) {
  dispatch(TypeList<Half, BFloat16>{}, problem.type,
           [&]<class T> { launch_group<T>(context, problem, EveryKey<T>(problem)); });
}

}  // namespace encore::ops
