#include "ops/attention/sparse/attend_block_sparse.h"

#include "ops/attention/dense/attend_decode.h"
#include "ops/attention/sparse/block_sparse_slots.h"
#include "ops/attention/sparse/slot_rows.h"

namespace encore::ops {

void attend_blocks(Context& context, const Attend& p, const KeyBlocks& blocks) {
  if (p.batch == 0 || p.heads == 0 || p.queries == 0) return;
  require(std::max(p.head_size, p.value_size) <= 256, "heads of ", std::max(p.head_size, p.value_size),
          " values are more than there are kernels for");
  dispatch(TypeList<float, Half, BFloat16>{}, p.type, [&]<class T> {
    const BlockLook<T> look(p, blocks);
    if constexpr (sizeof(T) == 2) {
      if (fits_group(p)) return launch_slots<T>(context, p, look);
    }
    launch_few<T>(context, p, look);
  });
}

}  // namespace encore::ops
