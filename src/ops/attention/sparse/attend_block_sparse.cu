#include "ops/attention/sparse/attend_block_sparse.h"

#include "ops/attention/dense/attend_decode.h"
#include "ops/attention/sparse/block_sparse_slots.h"
#include "ops/attention/sparse/slot_rows.h"

namespace encore::ops {

void attend_block_sparse(Context& context, const Attend& p, const BlockSparseLayout& blocks) {
  if (p.batch == 0 || p.heads == 0 || p.queries == 0) return;
  require(std::max(p.head_size, p.value_size) <= 256, "heads of ", std::max(p.head_size, p.value_size),
          " values are more than there are kernels for");
  dispatch(TypeList<float, Half, BFloat16>{}, p.type, [&]<class T> {
    const BlockSparseSlots<T> look(p, blocks);
    if constexpr (sizeof(T) == 2) {
      if (fits_grouped_decode(p)) return launch_slots<T>(context, p, look);
    }
    launch_decode<T>(context, p, look);
  });
}

}  // namespace encore::ops
