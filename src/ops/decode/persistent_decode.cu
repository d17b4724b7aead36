#include "ops/decode/persistent_decode.h"

#include <algorithm>
#include <bit>
#include <initializer_list>
#include <tuple>

#include "device/device.h"
#include "device/memory.h"
#include "ops/decode/persistent_decode_kernel.h"
#include "ops/dispatch.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

using AnyKernel = PersistentDecode<Half, PlainColumns<Half>, 2>;
constexpr int64_t kColumns = AnyKernel::kColumns, kUnit = PlainColumns<Half>::kUnit;
// Of a row, and of a block: with these, rings, residual and sums take less than kSharedBytes.
constexpr int64_t kMostDepth = 24576, kMostTiles = 256, kSharedBytes = 220 * 1024;

bool are_aligned(uintptr_t bytes, std::initializer_list<const void*> addresses) {
  return std::ranges::all_of(addresses, [&](const void* at) { return reinterpret_cast<uintptr_t>(at) % bytes == 0; });
}

bool suits(int device, const ProductLink& p) {
  const int64_t tiles = p.columns / kColumns;
  if (device::shared_bytes(device) < kSharedBytes) return false;
  if (!kHalves.has(p.type) || p.columns % kColumns != 0 || p.depth % 8 != 0 || p.depth > kMostDepth || p.depth == 0 ||
      tiles == 0 || tiles > kMostTiles * device::multiprocessors(device))
    return false;
  if (p.gamma && p.depth > kMostNormedDepth) return false;
  if (!are_aligned(16, {p.x, p.weights, p.gamma, p.skip, p.sum, p.y})) return false;
  if (p.weights) return p.depth % kUnit == 0;
  return p.codes.bits == 4 && p.woven.codes && p.woven.scales && (!p.codes.zeros || p.woven.zeros) &&
         p.codes.rows == p.columns && Weave<4>::units(p.codes) * Weave<4>::kUnit <= kMostDepth;
}

// decode_step() has looked at the rest.
bool suits(const AttendLink& link) {
  const auto& [e, a, fault] = link;
  return kHalves.has(a.type) && e.batch == 1 && !a.mask.data && a.head_size == a.value_size && a.head_size % 8 == 0 &&
         a.y.head == a.head_size && e.past_keys == e.keys && e.past_values == e.values && are_aligned(4, {a.y.data});
}

int parts_log2(int device, const Attend& a) {
  const int most = std::min(device::multiprocessors(device) / int(a.kv_heads), AnyKernel::kMostParts);
  return most > 0 ? std::bit_width(unsigned(most)) - 1 : -1;
}

// What the kernel is compiled for.
struct Variant {
  Type type;
  bool woven, zeros;
  bool operator==(const Variant&) const = default;
};
Variant variant_of(const ProductLink& p) { return {p.type, !p.weights, p.woven.zeros != nullptr}; }

// Along the depth, of tiles that are 16 columns wide.
int64_t units_of(const ProductLink& p) { return p.weights ? p.depth / kUnit : Weave<4>::units(p.codes); }

// How wide a tile is, in 16 columns: as wide as memory is read best, unless blocks would have more or less to do for
// it.
int width_log2_of(const ProductLink& p, int64_t blocks) {
  if (!p.weights) return 0;
  constexpr double kCost[] = {1.1, 1.04, 1};  // of reading 32, 64 or 128 bytes of a row at a time
  int best = 0;
  double least = 0;
  for (int log2 = 0; log2 < 3 && p.columns % (kColumns << log2) == 0; ++log2) {
    const int64_t tiles = p.columns / (kColumns << log2);
    const double cost = kCost[log2] * double((tiles + blocks - 1) / blocks * blocks) / double(tiles);
    if (log2 == 0 || cost <= least) best = log2, least = cost;
  }
  return best;
}

// Where queries, keys and values are in what the product made.
int64_t values_between(const void* from, const void* to) {
  return (static_cast<const char*>(to) - static_cast<const char*>(from)) / int64_t(sizeof(Half));
}

// Where in a block's shared memory is what. Products and attention share what lies behind the residual.
struct Layout {
  int64_t row, sums, acc, end;
};

template <class Kernel, class T>
Layout layout_of(const PersistentSteps<T>& steps, const Attend& attend) {
  int64_t row = 0, residual = 0, sixteens = 0;
  for (const PersistentProduct<T>& p : std::span(steps.products).first(size_t(steps.products_count))) {
    row = std::max(row, p.units * kUnit >> p.width_log2);
    if (p.gamma) residual = std::max<int64_t>(residual, p.depth);
    sixteens = std::max<int64_t>(sixteens, (p.tiles + (p.more > 0) + Kernel::kWarps) << p.width_log2);
  }
  const int64_t fresh = (attend.heads / attend.kv_heads + 2) * attend.head_size;
  const auto behind = [](int64_t at, int64_t halves) { return at + (halves * int64_t(sizeof(Half)) + 15) / 16 * 16; };
  Layout layout{.row = behind(Kernel::kRingBytes, residual)};
  layout.sums = behind(layout.row, row), layout.acc = behind(layout.row, fresh);
  layout.end =
      std::max(layout.sums + sixteens * kTilePitch * int64_t(sizeof(float)), layout.acc + Kernel::Share::kAccBytes);
  return layout;
}

template <class T>
PersistentProduct<T> product_of(const LinkPutOff& link, int64_t blocks) {
  const ProductLink& p = std::get<ProductLink>(link.link);
  const auto values = [](const void* at) { return static_cast<const T*>(at); };
  const int log2 = width_log2_of(p, blocks);
  const int64_t tiles = p.columns / (kColumns << log2);
  return {.weights = p.weights ? p.weights : p.woven.codes,
          .scales = p.woven.scales,
          .zeros = p.woven.zeros,
          .bias = values(p.bias),
          .gamma = values(p.gamma),
          .x = link.x_from_memory ? values(p.x) : nullptr,
          .skip = link.skip_from_memory ? values(p.skip) : nullptr,
          .sum = link.sum_to_memory ? static_cast<T*>(p.sum) : nullptr,
          .y = link.y_to_memory ? static_cast<T*>(p.y) : nullptr,
          .depth = int(p.depth),
          .columns = int(p.columns),
          .units = int(units_of(p) << log2),
          .width_log2 = log2,
          .tiles = int(tiles / blocks),
          .more = int(tiles % blocks),
          .per_value = 1 / float(p.depth),
          .epsilon = p.epsilon,
          .takes_skip = !link.skip_from_memory,
          .keeps_sum = p.sum != nullptr,
          .one_scale = !p.weights && Weave<4>::shares(p.codes) == 1,
          .gated = p.gated};
}

template <class T>
PersistentAttend<T> attend_of(const LinkPutOff& link, const AttendLink& first) {
  const AttendLink& own = std::get<AttendLink>(link.link);
  return {.keys = values_between(first.cache.keys, own.cache.keys),
          .values = values_between(first.cache.values, own.cache.values),
          .y = link.y_to_memory ? static_cast<T*>(const_cast<void*>(own.attend.y.data)) : nullptr,
          .sinks = static_cast<const T*>(own.attend.sinks),
          .q_weights = static_cast<const T*>(own.cache.q_weights),
          .k_weights = static_cast<const T*>(own.cache.k_weights)};
}

template <class T, class Weights, int kChunks>
void launch(Context& context, std::span<const LinkPutOff> links, const AttendLink& first) {
  using Kernel = PersistentDecode<T, Weights, kChunks>;
  const auto& [extension, attend, fault] = first;
  const int device = context.stream().device(), blocks = device::multiprocessors(device);
  const int log2 = parts_log2(device, attend);
  const auto share = share_decode_step<typename Kernel::Share>(fault, extension, attend, 1 << log2);
  if (!share) fail(Code::internal, "a decode step whose rows are no packs was put off");
  PersistentSteps<T> steps{};
  int64_t most = 0;  // pairs that a step makes for others
  const auto add_step = [&](DecodeStage stage, int number) {
    steps.stage[steps.count] = stage;
    steps.number[steps.count++] = uint8_t(number);
  };
  int attends = 0;
  for (const LinkPutOff& link : links) {
    const bool is_last = &link == &links.back();
    if (const auto* const p = std::get_if<ProductLink>(&link.link)) {
      steps.products[steps.products_count] = product_of<T>(link, blocks);
      add_step(DecodeStage::product, steps.products_count++);
      if (!is_last) most = std::max(most, p->columns / (p->gated ? 4 : 2));
      continue;
    }
    steps.attends[attends] = attend_of<T>(link, first);
    add_step(DecodeStage::attend, attends);
    add_step(DecodeStage::combine, attends++);
    most = std::max(most, attend.heads * attend.value_size / 2);
  }
  const int64_t pairs = (most + blocks + 2) / 2 * 2, partials = (attend.heads << log2) * (attend.value_size + 2);
  const auto pairs_bytes = size_t(decltype(Kernel::made)::bytes_of(pairs));
  const auto bytes = pairs_bytes + size_t(decltype(Kernel::partials)::bytes_of(partials));
  auto* const slots = static_cast<char*>(context.scratch(bytes));
  device::fill(context.stream(), slots, 0, bytes);
  const Layout layout = layout_of<Kernel>(steps, attend);
  device::persistent_kernel<typename Kernel::Shared>(context.stream(),
                                                     {blocks, Kernel::kThreads, steps.count, layout.end},
                                                     Kernel{.made = {slots, pairs},
                                                            .partials = {slots + pairs_bytes, partials},
                                                            .blocks = blocks,
                                                            .row_at = int(layout.row),
                                                            .sums_at = int(layout.sums),
                                                            .acc_at = int(layout.acc),
                                                            .parts_log2 = log2,
                                                            .kv_heads = int(attend.kv_heads),
                                                            .rows = int(attend.heads / attend.kv_heads),
                                                            .k_at = int(values_between(extension.q, extension.k)),
                                                            .v_at = int(values_between(extension.q, extension.v)),
                                                            .share = *share,
                                                            .steps = steps});
  context.give_back(slots);
}

template <class T, class Weights>
void launch(Context& context, std::span<const LinkPutOff> links) {
  const auto attend =
      std::ranges::find_if(links, [](const auto& each) { return std::holds_alternative<AttendLink>(each.link); });
  const AttendLink& first = std::get<AttendLink>(attend->link);
  first.attend.head_size <= 64 ? launch<T, Weights, 2>(context, links, first)
                               : launch<T, Weights, 4>(context, links, first);
}

}  // namespace

bool suits_persistent_decode(int device, const DecodeLink& link) {
  if (const auto* const product = std::get_if<ProductLink>(&link)) return suits(device, *product);
  const AttendLink& attend = std::get<AttendLink>(link);
  return suits(attend) && parts_log2(device, attend.attend) >= 0;
}

bool is_one_persistent_decode(const DecodeLink& link, const DecodeLink& other) {
  if (const auto* const product = std::get_if<ProductLink>(&link))
    return variant_of(*product) == variant_of(std::get<ProductLink>(other));
  const auto alike = [](const AttendLink& of) {
    const auto& [e, a, fault] = of;
    return std::tuple(a.type, a.heads, a.kv_heads, a.keys, a.head_size, a.scale, a.softcap, a.visible.before,
                      a.visible.after, a.visible.from_end, a.visible.beyond_last, e.capacity, e.beyond_last,
                      e.positions, e.rotated, e.rotated_from, e.interleaved, values_between(e.q, e.k),
                      values_between(e.q, e.v), e.cos, e.sin, e.position_ids, e.last_keys, a.sinks == nullptr,
                      e.q_epsilon, e.k_epsilon);
  };
  return alike(std::get<AttendLink>(link)) == alike(std::get<AttendLink>(other));
}

void run_persistent_decode(Context& context, std::span<const LinkPutOff> links) {
  const ProductLink& first = std::get<ProductLink>(links.front().link);
  dispatch(TypeList<Half, BFloat16>{}, first.type, [&]<class T> {
    if (first.weights) return launch<T, PlainColumns<T>>(context, links);
    first.woven.zeros ? launch<T, WovenColumns<T, true>>(context, links)
                      : launch<T, WovenColumns<T, false>>(context, links);
  });
}

}  // namespace encore::ops
