#include "ops/reduce/any.h"

#include <algorithm>
#include <bit>

#include "device/atomic.h"
#include "device/cluster.h"
#include "device/memory.h"
#include "device/warp.h"
#include "ops/dispatch.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

// One cluster, whose blocks tell one another.
template <class T>
struct FindTogether {
  static constexpr int kThreads = 512, kMaxThreads = kThreads;
  static constexpr int64_t kMost = 64 * kThreads;  // packs of a block
  static constexpr bool kBeginsEarly = true;
  struct Shared {
    int found[kThreads / 32];  // by warp
  };

  SearchedPacks<T> packs;
  int blocks;
  bool* y;

  DEVICE_FN void operator()(device::Block<Shared>& b, const Shared&) const {
    device::for_each_warp(b, [&](const device::Warp& warp, Shared& s) {
      device::PerThread<bool, 32> found;
      warp.lanes([&](int lane) {
        b.wait();
        found[lane] = packs.has_any(b.index() * kThreads + 32 * warp.index() + lane, blocks * kThreads);
      });
      const uint32_t votes = warp.votes([&](int lane) { return found[lane]; });
      warp.lanes([&](int lane) {
        if (lane == 0) s.found[warp.index()] = votes != 0;
      });
    });
  }
  DEVICE_FN void join(device::Block<Shared>& b, const Shared&, const device::Cluster<Shared>& cluster) const {
    b.threads([&](int t, Shared&) {
      if (t > 0 || cluster.rank() > 0) return;
      int found = 0;
      NO_UNROLL for (int block = 0; block < cluster.size(); ++block)
          UNROLL for (const int one : cluster.shared(block).found) found |= one;
      *y = found != 0;
    });
  }
};

// Of more than a cluster reads in time: says so if there is one, where nothing is said yet.
template <class T>
struct FindApart {
  SearchedPacks<T> packs;
  bool* y;
  DEVICE_FN void operator()(int64_t pack) const {
    if (packs.has_any(pack)) device::atomic_update(y, [](bool) { return true; });
  }
};

class Any : public Op {
 public:
  explicit Any(const NodeInfo& node) : keep_dims_(node.get_int("keepdims", 1) != 0) {
    if (node.get_int(kOfNan, 0) != 0)
      odd_ = {true, false, false};
    else
      odd_ = {false, node.get_int("detect_positive", 1) != 0, node.get_int("detect_negative", 1) != 0};
  }
  void run(Context& context) const override {
    const Tensor& x = context.input(0);
    Shape shape;
    for (int i = 0; keep_dims_ && i < x.shape.rank(); ++i) shape = i == 0 ? x.shape.with(0, 1) : shape.with(i, 1);
    find_any(context.stream(), x, odd_, context.output(0, shape).as<bool>());
  }

 private:
  Odd odd_;
  bool keep_dims_;
};

}  // namespace

void find_any(StreamRef stream, const Tensor& x, const Odd& odd, bool* y) {
  dispatch(TypeList<float, Half, BFloat16>{}, x.type, [&]<class T> {
    using Kernel = FindTogether<T>;
    const SearchedPacks<T> packs(x.as<const T>(), x.count(), odd);
    constexpr int64_t kAtOnce = int64_t(packs.kAtOnce) * Kernel::kThreads;
    const int most = device::most_in_cluster<typename Kernel::Shared, Kernel>(stream.device());
    const int64_t wanted = std::max<int64_t>((packs.packs + kAtOnce - 1) / kAtOnce, 1);
    const int blocks = int(std::min<int64_t>(int64_t(std::bit_ceil(uint64_t(wanted))), most));
    if (packs.packs <= blocks * Kernel::kMost)
      return device::cluster_kernel<typename Kernel::Shared>(stream, {1, blocks, Kernel::kThreads},
                                                             Kernel{packs, blocks, y});
    device::fill(stream, y, 0, sizeof(bool));
    device::for_each_index(stream, packs.packs, FindApart<T>{packs, y});
  });
}

std::unique_ptr<Op> make_any(const NodeInfo& node) { return std::make_unique<Any>(node); }

}  // namespace encore::ops
