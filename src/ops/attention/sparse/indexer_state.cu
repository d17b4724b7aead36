// What indexers keep from one run to the next, beside entries.
#include "ops/attention/sparse/indexer.h"
#include "ops/dispatch.h"
#include "ops/next_state.h"
#include "ops/shape.h"

namespace encore::ops {
namespace {

template <class T>
struct KeepPending {
  Requests requests;
  PendingView<T> pending;
  T* to;
  device::Divider by_width, by_rows;

  DEVICE_FN void operator()(int64_t i) const {
    int64_t channel, row;
    const int request = int(by_rows(by_width(i, channel), row));
    const Request r = requests.at(request);
    if (row < r.left)
      to[i] = pending.at(request, r, r.left_from + int(row))[channel];
    else if (row < pending.rows)
      to[i] = pending.buffer[(int64_t(request) * pending.rows + row) * pending.width + channel];
  }
};

template <class T>
struct CaptureUpdates {
  Requests requests;
  const int32_t *wanted, *active;
  const T *keys, *entries;
  int64_t key_token;
  T* to;
  int slots, size;
  device::Divider by_size, by_slots;

  DEVICE_FN void operator()(int64_t i) const {
    int64_t channel, slot;
    const int request = int(by_slots(by_size(i, channel), slot));
    const Request r = requests.at(request);
    to[i] = T(0.f);
    if ((active && *active == 0) || r.full || slot >= wanted[request] || slot >= r.tokens) return;
    const int filled = r.buffered + int(slot) + 1, ratio = requests.ratio;
    if (filled % ratio != 0)
      to[i] = keys[(r.first + slot) * key_token + channel];
    else
      to[i] = entries[(int64_t(request) * requests.capacity + r.entries + filled / ratio - 1) * size + channel];
  }
};

struct WriteLengths {
  Requests requests;
  int32_t* to;
  DEVICE_FN void operator()(int64_t i) const {
    const Request r = requests.at(int(i));
    to[2 * i] = r.entries + r.made;
    to[2 * i + 1] = r.left;
  }
};

using Floats = TypeList<float, Half, BFloat16>;

}  // namespace

void keep_pending(Context& context, Type type, const Requests& requests, const Pending& pending, void* to, int rows) {
  const int64_t count = checked_product(checked_product(requests.count, rows), pending.width);
  if (count == 0) return;
  const NextState next(context, to, pending.buffer, device::size_bytes(type, count));
  dispatch(Floats{}, type, [&]<class T> {
    device::for_each_index(context.stream(), count,
                           KeepPending<T>{requests, pending, static_cast<T*>(next.data()),
                                          device::Divider(pending.width, count), device::Divider(rows, count)});
  });
  next.settle(context.stream());
}

void capture_updates(Context& context, const Indexing& p, const Updates& updates) {
  const int64_t count = checked_product(checked_product(p.requests.count, updates.slots), p.size);
  dispatch(Floats{}, p.type, [&]<class T> {
    device::for_each_index(context.stream(), count,
                           CaptureUpdates<T>{p.requests, updates.wanted, updates.active,
                                             static_cast<const T*>(p.keys.fresh), static_cast<const T*>(p.entries),
                                             p.keys.fresh_token, static_cast<T*>(updates.to), updates.slots, p.size,
                                             device::Divider(p.size, count), device::Divider(updates.slots, count)});
  });
}

void write_lengths(Context& context, const Requests& requests, int32_t* lengths) {
  device::for_each_index(context.stream(), requests.count, WriteLengths{requests, lengths});
}

}  // namespace encore::ops
