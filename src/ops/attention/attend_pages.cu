#include "ops/attention/paged_rows.h"
#include "ops/dispatch.h"

namespace encore::ops {

void attend_pages(Context& context, const AttendPages& problem) {
  if (problem.pages.type != problem.type) return attend_coded_pages(context, problem);
  dispatch(TypeList<Half, BFloat16>{}, problem.type, [&]<class T> { run_paged_sizes<T, false>(context, problem); });
}

}  // namespace encore::ops
