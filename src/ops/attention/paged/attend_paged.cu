#include "ops/attention/paged/paged_rows.h"
#include "ops/dispatch.h"

namespace encore::ops {

void attend_pages(Context& context, const AttendPages& problem) {
  if (problem.pages.latent) return attend_latent_pages(context, problem);
  if (problem.pages.type == Type::i8) return attend_int8_pages(context, problem);
  if (problem.pages.type == Type::i4) return attend_int4_pages(context, problem);
  if (problem.pages.type == Type::f8e4m3) return attend_float8_pages(context, problem);
  dispatch(TypeList<Half, BFloat16>{}, problem.type, [&]<class T> { run_paged_sizes<T, T>(context, problem); });
}

}  // namespace encore::ops
