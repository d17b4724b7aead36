#include "ops/index/sort_rows.h"

#include <algorithm>
#include <bit>

#include "device/divide.h"
#include "device/launch.h"
#include "device/sort.h"
#include "ops/dispatch.h"

namespace encore::ops {
namespace {

template <class Key>
struct KeysAndPlaces {
  const Key* x;
  SortedAs<Key>* keys;
  int32_t* places;
  Ordering order;
  DEVICE_FN void operator()(int64_t i) const {
    keys[i] = order(x[i]);
    places[i] = int32_t(i);
  }
};

struct RowsOfPlaces {
  const int32_t* places;
  uint32_t* rows;
  device::Divider by_columns;
  DEVICE_FN void operator()(int64_t i) const {
    int64_t column;
    rows[i] = uint32_t(by_columns(places[i], column));
  }
};

}  // namespace

Sorter::Sorter(Context& context, int64_t count, size_t key_bytes) : context_(context), count_(count) {
  require(count < (int64_t(1) << 31), "sorting ", count, " elements at once; fewer than 2^31 are supported");
  keys_ = context.scratch(size_t(count) * key_bytes);
  sorted_keys_ = context.scratch(size_t(count) * key_bytes);
  places_ = static_cast<int32_t*>(context.scratch(size_t(count) * sizeof(int32_t)));
  other_places_ = static_cast<int32_t*>(context.scratch(size_t(count) * sizeof(int32_t)));
}

void Sorter::sort(size_t key_bytes, int bits) {
  const device::SortPairs sort{count_, int(key_bytes), bits};
  if (const size_t bytes = device::sort_scratch(sort); bytes > scratch_bytes_)
    scratch_ = context_.scratch(scratch_bytes_ = bytes);
  device::sort_pairs(context_.stream(), sort, keys_, sorted_keys_, places_, other_places_, scratch_);
  std::swap(places_, other_places_);
}

// All at once by key and then, which is stable, by row: some passes more than sorts of single rows would take, but over
// everything at the speed of memory, however many rows there are.
const int32_t* sorted_places(Context& context, const Ordering& order, const void* x, size_t bytes, int64_t rows,
                             int64_t columns) {
  const int64_t count = checked_product(rows, columns);
  Sorter sorter(context, count, std::max(bytes, sizeof(uint32_t)));
  dispatch_size(bytes, [&]<class Key>() {
    if constexpr (sizeof(Key) <= 8)
      device::for_each_index(context.stream(), count,
                             KeysAndPlaces<Key>{static_cast<const Key*>(x), static_cast<SortedAs<Key>*>(sorter.keys()),
                                                sorter.places(), order});
  });
  sorter.sort(std::max(bytes, sizeof(uint32_t)), int(8 * bytes));
  if (rows > 1) {
    device::for_each_index(
        context.stream(), count,
        RowsOfPlaces{sorter.places(), static_cast<uint32_t*>(sorter.keys()), device::Divider(columns, count)});
    sorter.sort(sizeof(uint32_t), int(std::bit_width(uint64_t(rows - 1))));
  }
  return sorter.places();
}

}  // namespace encore::ops
