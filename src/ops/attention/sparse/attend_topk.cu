#include "ops/attention/sparse/attend_topk.h"

#include "ops/attention/dense/attend_decode.h"
#include "ops/attention/sparse/slot_rows.h"
#include "ops/attention/sparse/topk_slots.h"

namespace encore::ops {

void attend_topk(Context& context, const Attend& p, const TopkKeys& chosen) {
  if (p.batch == 0 || p.heads == 0) return;
  const int64_t size = std::max(p.head_size, p.value_size);
  require(size <= 512, "heads of ", size, " values are more than there are kernels for");
  dispatch(TypeList<float, Half, BFloat16>{}, p.type, [&]<class T> {
    const TopkSlots<T> look(p, chosen);
    if constexpr (sizeof(T) == 2) {
      if (look.template fits<8>() && fits_grouped_decode(p)) return launch_slots<T>(context, p, look);
    }
    if (size > 256) return launch_decode<T, 32, 2, 16>(context, p, look);
    launch_decode<T>(context, p, look);
  });
}

}  // namespace encore::ops
