// NonMaxSuppression: a sort by score, and a block for each class of each image, which goes through its boxes in tiles.
#include <algorithm>

#include "device/launch.h"
#include "ops/choice.h"
#include "ops/index/prefix_sum.h"
#include "ops/index/sort_rows.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

using device::Block;

struct Box {
  float x0, y0, x1, y1;
  DEVICE_FN float area() const { return (x1 - x0) * (y1 - y0); }
};

struct Boxes {
  const float* data;  // [batch, count, 4]
  int64_t count;
  bool center;  // x, y, width, height; else two opposite corners, y first
  DEVICE_FN Box operator()(int64_t batch, int64_t i) const {
    const float* const v = data + (batch * count + i) * 4;
    if (center) return {v[0] - v[2] / 2, v[1] - v[3] / 2, v[0] + v[2] / 2, v[1] + v[3] / 2};
    return {fminf(v[1], v[3]), fminf(v[0], v[2]), fmaxf(v[1], v[3]), fmaxf(v[0], v[2])};
  }
};

DEVICE_FN bool overlap(const Box& a, const Box& b, float threshold) {
  const float width = fminf(a.x1, b.x1) - fmaxf(a.x0, b.x0), height = fminf(a.y1, b.y1) - fmaxf(a.y0, b.y0);
  if (!(width > 0 && height > 0)) return false;
  const float both = width * height, of_a = a.area(), of_b = b.area(), all = of_a + of_b - both;
  return both > 0 && of_a > 0 && of_b > 0 && all > 0 && both / all > threshold;
}

struct SuppressBoxes {
  static constexpr int kThreads = 256, kMaxThreads = kThreads;
  struct Shared {
    Box boxes[kThreads];
    bool alive[kThreads];
  };
  Boxes boxes;
  const float* scores;    // [rows, boxes]
  const int32_t* places;  // in all of the scores, best first in each row
  int64_t classes;
  int most;  // boxes to keep of a row
  float overlap_threshold, score_threshold;
  bool has_score_threshold;
  int32_t* kept;    // [rows, most]
  int64_t* counts;  // [rows]

  DEVICE_FN void operator()(Block<Shared>& b, const Shared& s) const {
    const int64_t row = b.index(), batch = row / classes;
    int32_t* const mine = kept + row * most;
    int count = 0;
    for (int64_t first = 0; first < boxes.count && count < most; first += kThreads) {
      // In what order NaN comes is open, but not that nothing follows what is too low.
      const int worth = b.reduce(
          0,
          [&](int t) {
            if (first + t >= boxes.count) return 0;
            const float score = scores[places[row * boxes.count + first + t]];
            return int(!has_score_threshold || !(score <= score_threshold));
          },
          [](int u, int v) { return u > v ? u : v; });
      if (!worth) break;
      b.threads([&](int t, Shared& s) {
        s.alive[t] = false;
        if (first + t >= boxes.count) return;
        const int32_t place = places[row * boxes.count + first + t];
        if (has_score_threshold && !(scores[place] > score_threshold)) return;
        const Box box = boxes(batch, place - row * boxes.count);
        for (int k = 0; k < count; ++k)
          if (overlap(boxes(batch, mine[k]), box, overlap_threshold)) return;
        s.boxes[t] = box;
        s.alive[t] = true;
      });
      for (int from = 0; count < most;) {
        const int next = b.reduce(
            kThreads, [&](int t) { return t >= from && s.alive[t] ? t : int(kThreads); },
            [](int u, int v) { return u < v ? u : v; });
        if (next == kThreads) break;
        b.threads([&](int t, Shared& s) {
          if (t == next) mine[count] = int32_t(places[row * boxes.count + first + t] - row * boxes.count);
          if (t > next && s.alive[t] && overlap(s.boxes[next], s.boxes[t], overlap_threshold)) s.alive[t] = false;
        });
        ++count;
        from = next + 1;
      }
    }
    b.threads([&](int t, Shared&) {
      if (t == 0) counts[row] = count;
    });
  }
};

struct TellKept {
  static constexpr int kThreads = 128, kMaxThreads = kThreads;
  const int32_t* kept;
  const int64_t* sums;  // of the counts of the rows before, and of all
  int64_t classes;
  int most;
  int64_t* out;  // [all, 3]
  DEVICE_FN void operator()(Block<device::NoShared>& b, const device::NoShared&) const {
    const int64_t row = b.index(), first = sums[row], count = sums[row + 1] - first;
    b.threads([&](int t, device::NoShared&) {
      for (int64_t i = t; i < count; i += b.size()) {
        int64_t* const to = out + (first + i) * 3;
        to[0] = row / classes;
        to[1] = row % classes;
        to[2] = kept[row * most + i];
      }
    });
  }
};

class NonMaxSuppression : public Op {
 public:
  explicit NonMaxSuppression(const NodeInfo& node) : center_(read_flag(node, "center_point_box", false)) {}

  void run(Context& context) const override {
    const Tensor &boxes = context.input(0), &scores = context.input(1);
    require(boxes.shape.rank() == 3 && boxes.shape[2] == 4, "boxes have shape ", boxes.shape.str(),
            "; it must be [batch, boxes, 4]");
    require(scores.shape.rank() == 3 && scores.shape[0] == boxes.shape[0] && scores.shape[2] == boxes.shape[1],
            "scores have shape ", scores.shape.str(), ", which does not fit boxes of shape ", boxes.shape.str());
    const Tensor *const limit = context.find_input(2), *const overlap = context.find_input(3),
                        *const score = context.find_input(4);
    const int64_t count = boxes.shape[1], classes = scores.shape[1], rows = scores.shape[0] * classes;
    int64_t most = 0;
    if (limit) {
      require(limit->count() == 1, "max_output_boxes_per_class has ", limit->count(), " values; it must have one");
      most = std::clamp<int64_t>(host_ints(*limit, "max_output_boxes_per_class")[0], 0, count);
    }
    const float threshold = scalar(overlap, "iou_threshold");
    require(threshold >= 0 && threshold <= 1, "iou_threshold is ", threshold, "; it must be within [0, 1]");
    const float least = scalar(score, "score_threshold");
    if (most == 0 || scores.count() == 0) {
      context.output(0, Shape{0, 3});
      return;
    }
    require(most < (int64_t(1) << 31), "rows of ", count, " boxes");
    const int32_t* const places =
        sorted_places(context, ordering_of(Type::f32, true), scores.data, sizeof(float), rows, count);
    auto* const kept = static_cast<int32_t*>(context.scratch(size_t(rows * most) * sizeof(int32_t)));
    auto* const sums = static_cast<int64_t*>(context.scratch(size_t(rows + 1) * sizeof(int64_t)));
    device::block_kernel<SuppressBoxes::Shared>(context.stream(), {rows, SuppressBoxes::kThreads},
                                                SuppressBoxes{{boxes.as<const float>(), count, center_},
                                                              scores.as<const float>(),
                                                              places,
                                                              classes,
                                                              int(most),
                                                              threshold,
                                                              least,
                                                              score != nullptr,
                                                              kept,
                                                              sums});
    exclusive_sum(context.stream(), sums, rows);
    int64_t all = 0;
    context.read_back(&all, sums + rows, sizeof all);
    const Tensor out = context.output(0, Shape{all, 3});
    if (all > 0)
      device::block_kernel<device::NoShared>(context.stream(), {rows, TellKept::kThreads},
                                             TellKept{kept, sums, classes, int(most), out.as<int64_t>()});
  }

 private:
  static float scalar(const Tensor* given, const char* what) {
    if (!given) return 0;
    require(given->count() == 1, what, " has ", given->count(), " values; it must have one");
    return *given->as<const float>();
  }

  bool center_;
};

}  // namespace

std::vector<OpRow> non_max_suppression_rows() {
  return {{.name = "NonMaxSuppression",
           .since = 10,
           .types = {in(0, Types{Type::f32}), in(1, Types{Type::f32})},
           .make = make<NonMaxSuppression>,
           .host_inputs = {2, 3, 4},
           .reads_back = true}};
}

}  // namespace encore::ops
