// Apart from other pages, since they take a compiler as long again.
#include "ops/attention/paged/paged_rows.h"
#include "ops/dispatch.h"

namespace encore::ops {

void attend_paged_int4(Context& context, const AttendPaged& problem) {
  dispatch(TypeList<Half, BFloat16>{}, problem.type, [&]<class T> { run_paged_sizes<T, CodePair>(context, problem); });
}

}  // namespace encore::ops
