// Attention of few rows in a batch of equal lengths.
#include "ops/attention/dense/dense_rows.h"
#include "ops/dispatch.h"

namespace encore::ops {
bool fits_grouped_decode(const Attend& p) {
  return fits_grouped_decode_but_keys(p) && packs_fit<8, Half>(p.k, p.head_size) &&
         packs_fit<8, Half>(p.v, p.value_size);
}

bool suits_grouped_decode(const Attend& p) { return has_few_rows(p) && fits_grouped_decode(p); }

void attend_grouped_decode(Context& context, const Attend& problem) {
  dispatch(TypeList<Half, BFloat16>{}, problem.type,
           [&]<class T> { launch_dense<T>(context, problem, [](const auto& rows) { return rows; }); });
}

}  // namespace encore::ops
