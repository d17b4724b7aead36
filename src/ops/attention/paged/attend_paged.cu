#include "ops/attention/paged/paged_rows.h"
#include "ops/dispatch.h"

namespace encore::ops {

void attend_paged(Context& context, const AttendPaged& problem) {
  if (problem.pages.latent) return attend_paged_latent(context, problem);
  if (problem.pages.type == Type::i8) return attend_paged_int8(context, problem);
  if (problem.pages.type == Type::i4) return attend_paged_int4(context, problem);
  if (problem.pages.type == Type::f8e4m3) return attend_paged_float8(context, problem);
  dispatch(TypeList<Half, BFloat16>{}, problem.type, [&]<class T> { run_paged_sizes<T, T>(context, problem); });
}

}  // namespace encore::ops
