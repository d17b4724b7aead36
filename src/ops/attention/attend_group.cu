// Attention of few rows in a batch of equal lengths.
#include "ops/attention/dense_rows.h"
#include "ops/dispatch.h"

namespace encore::ops {
namespace {

template <class T, int kChunks, int kTiles>
void run(Context& context, const Attend& p) {
  launch_dense<T, kChunks, kTiles>(context, p, [](const auto& rows) { return rows; });
}

template <class T, int kChunks>
void run_rows(Context& context, const Attend& p) {
  const int64_t rows = p.queries * (p.heads / p.kv_heads);
  if (rows <= 8 || kChunks > 4)
    run<T, kChunks, 1>(context, p);
  else if constexpr (kChunks <= 4) {
    if (rows <= 16)
      run<T, kChunks, 2>(context, p);
    else
      run<T, kChunks, 4>(context, p);
  }
}

}  // namespace

bool fits_group(const Attend& p) {
  return fits_group_but_keys(p) && packs_fit<8, Half>(p.k, p.head_size) && packs_fit<8, Half>(p.v, p.value_size);
}

bool suits_group(const Attend& p) { return has_few_rows(p) && fits_group(p); }

void attend_group(Context& context, const Attend& problem) {
  dispatch(TypeList<Half, BFloat16>{}, problem.type, [&]<class T> {
    const int64_t size = std::max(problem.head_size, problem.value_size);
    if (size <= 64)
      run_rows<T, 2>(context, problem);
    else if (size <= 128)
      run_rows<T, 4>(context, problem);
    else
      run_rows<T, 8>(context, problem);
  });
}

}  // namespace encore::ops
