// Recurrences as one persistent kernel. A block has some units: the weights of all their gates, and their states, stay
// in its shared memory, and in each step it gets all units' states, makes its own products and cells, and puts the next
// states of its units. Layers on top of one another are a wavefront: in a step a layer takes what the one below it made
// in the step before, by products with W and R together.
#include "ops/recurrent/persistent.h"

#include <algorithm>
#include <bit>

#include "device/copy_async.h"
#include "device/device.h"
#include "device/divide_small.h"
#include "device/fast_math.h"
#include "device/memory.h"
#include "device/persistent.h"
#include "device/scatter_groups.h"
#include "ops/recurrent/cells.h"
#include "ops/recurrent/stacked.h"

namespace encore::ops {
namespace {

using device::Pack;
using device::SmallDivider;
using device::StepValues;

constexpr int kMostThreads = 512, kMostLayers = kMostStacked;
constexpr int64_t kMostSequences = 32, kMostHidden = 4096;

// Of floats, halves or bfloats, which is known when the kernel runs.
struct Values {
  void* at;
  Type type;

  // As it lies in memory, so that nobody waits for it before it is needed.
  DEVICE_FN uint32_t bits(int64_t i) const {
    return type == Type::f32 ? static_cast<const uint32_t*>(at)[i] : static_cast<const uint16_t*>(at)[i];
  }
  DEVICE_FN float value_of(uint32_t bits) const {
    const auto half = uint16_t(bits);
    switch (type) {
      case Type::f16: return float(std::bit_cast<device::Half>(half));
      case Type::bf16: return float(std::bit_cast<device::BFloat16>(half));
      default: return std::bit_cast<float>(bits);
    }
  }
  DEVICE_FN float operator[](int64_t i) const { return value_of(bits(i)); }
  DEVICE_FN void set(int64_t i, float value) const {
    switch (type) {
      case Type::f16: static_cast<device::Half*>(at)[i] = device::Half(value); break;
      case Type::bf16: static_cast<device::BFloat16*>(at)[i] = device::BFloat16(value); break;
      default: static_cast<float*>(at)[i] = value;
    }
  }
  DEVICE_FN float rounded(float value) const {
    switch (type) {
      case Type::f16: return float(device::Half(value));
      case Type::bf16: return float(device::BFloat16(value));
      default: return value;
    }
  }
};

struct Layer {
  Values w, r, bias, peepholes, initial_h, initial_c, y_h, y_c;  // w: of the layers above the first
};

// A block's dynamic shared memory, in floats.
struct Layout {
  int rows;    // gates of units
  int width;   // of all layers' states
  int stride;  // of a sequence's states: no two are in the same banks
  int parts;   // products of hidden states by weights: R of the first layer, W and R of each above it
  int states, sums, end;

  Layout(int gates, int units, int hidden, int sequences, int layers)
      : rows(gates * units),
        width(layers * hidden),
        stride((width + 15) / 16 * 16 + 8),
        parts(2 * layers - 1),
        states(rows * hidden * parts),
        sums(states + sequences * stride),
        end(sums + rows * sequences * parts) {}
};
// The layer whose states a part multiplies, and the one whose gates it makes.
DEVICE_FN int layer_below(int part) { return part / 2; }
DEVICE_FN int layer_of(int part) { return (part + 1) / 2; }

// What all variants of the kernel know.
struct PersistentRecurrence {
  SequencePlaces sequences;
  Layout layout;
  int layers, units, hidden, batch;
  int blocks;  // of a direction
  int groups;  // of a block
  bool is_relu;
  float clip;
  Values x, y;
  StepValues values;
  Layer layer[kMostLayers];
  SmallDivider by_batch, by_units, by_width, by_row_packs, by_sequence_tiles;
};

// One unit of one sequence, which a thread has from the first step to the last.
template <int kGates>
struct PersistentCell {
  bool is_there;
  int layer, sums;  // where those of its first part are: R's, or W's in layers above the first
  int64_t slot;
  int steps;          // of its sequence
  int64_t x, y, end;  // where its values lie, x and y in the first step
  float h, c;
  float biases[2 * kGates], peepholes[3];
};

// A cell's in one step.
template <int kGates>
struct PersistentView {
  const PersistentRecurrence& of;
  const PersistentCell<kGates>& cell;
  const float* inputs;
  float* c;

  DEVICE_FN const Layer& layer() const { return of.layer[cell.layer]; }
  DEVICE_FN float input(const Place&, int gate) const { return inputs[gate]; }
  DEVICE_FN float bias_of(const Place&, int gate, bool recurrent) const {
    return cell.biases[(recurrent ? kGates : 0) + gate];
  }
  DEVICE_FN float both_biases(const Place& at, int gate) const {
    return bias_of(at, gate, false) + bias_of(at, gate, true);
  }
  DEVICE_FN float squashed(const Place&, int which, float value) const {
    if (which == 0 && kGates > 1) return device::fast_sigmoid(value);
    return of.is_relu ? relu(value) : 2 * device::fast_sigmoid(2 * value) - 1;  // which is tanh
  }
  DEVICE_FN float activated(const Place& at, int which, float value) const {
    return squashed(at, which, clipped(value, of.clip));
  }
  DEVICE_FN float peephole(const Place&, int which, float c) const { return cell.peepholes[which] * c; }
  DEVICE_FN float cell_of(const Place&) const { return *c; }
  DEVICE_FN void keep_cell(const Place& at, float value) const {
    *c = value;
    if (at.last && layer().y_c.at) layer().y_c.set(cell.end, value);
  }
  DEVICE_FN void store(const Place& at, float h, float* next_h) const {
    *next_h = of.x.rounded(h);
    if (cell.layer == of.layers - 1 && of.y.at) of.y.set(at.time, h);
    if (at.last && layer().y_h.at) layer().y_h.set(cell.end, h);
  }
};

// A group of kLanes threads makes a part of the products of one unit's gates, with kSequences sequences. Then threads
// make a cell each.
template <class CellOf, int kSequences, int kLanes>
struct PersistentSteps {
  static constexpr int kMaxThreads = kMostThreads, kGates = CellOf::kGates;
  static constexpr int kPairs = kSequences == 1 ? 2 : 8;  // of states that a thread asks for at once
  static constexpr int kKept = kSequences == 1 ? 4 : 0;   // packs of each row that a thread has in registers
  struct Shared {
    bool any;  // what is shared lies in the launch's memory
  };
  struct Weights {
    Pack<float, 4> of[kKept > 0 ? kKept : 1][kGates];
  };
  struct Own {
    PersistentCell<kGates> cell;
    Weights weights;
  };
  using Owns = device::PerThread<Own, kMaxThreads>;
  struct Inputs {
    uint32_t of[kGates];
  };
  struct Sums {
    float of[kGates];
  };
  struct Add {
    DEVICE_FN Sums operator()(const Sums& a, const Sums& b) const {
      Sums all;
      UNROLL for (int gate = 0; gate < kGates; ++gate) all.of[gate] = a.of[gate] + b.of[gate];
      return all;
    }
  };

  PersistentRecurrence p;
  CellOf cell;

  DEVICE_FN void begin(device::Block<Shared>& b, const Shared&, Owns& own) const {
    const int way = direction(b), first = int(b.index() - way * p.blocks) * p.units;
    const int units = p.hidden - first < p.units ? p.hidden - first : p.units;  // the last block may have fewer
    b.threads([&](int t, Shared& s) {
      float* const at = b.template dynamic<float>(s);
      load_weights(t, b.size(), at, way, first, units);
      for (int i = p.layout.states + t; i < p.layout.end; i += b.size()) at[i] = 0;  // of sequences that are none
      own[t].cell = cell_of(t, way, first, units);
      if (own[t].cell.is_there) p.values.put(own[t].cell.slot, -1, own[t].cell.h);
      device::wait_for_copies();
    });
    if constexpr (kKept > 0)
      b.threads([&](int t, Shared& s) { keep_weights(own[t].weights, b.template dynamic<float>(s), t); });
  }

  DEVICE_FN void operator()(device::Block<Shared>& b, const Shared& shared, Owns& own, int64_t step) const {
    const int way = direction(b);
    const bool turned = p.sequences.is_turned(way);
    device::PerThread<Inputs, kMaxThreads> inputs;
    b.threads([&](int t, Shared& s) {
      const PersistentCell<kGates>& cell = own[t].cell;
      if (cell.is_there && cell.layer == 0 && step < cell.steps) {
        const int64_t at = cell.x + (turned ? -step : step) * p.sequences.x_time;
        UNROLL for (int gate = 0; gate < kGates; ++gate) inputs[t].of[gate] = p.x.bits(at + gate * int64_t(p.hidden));
      }
      get_states(t, b.size(), b.template dynamic<float>(s, p.layout.states * int64_t(sizeof(float))), way, step);
    });
    device::PerThread<Sums, kMaxThreads> sums;
    device::scatter_groups<kLanes, kSequences>(
        b, sums, [&](int t, Sums* parts) { multiply(b.template dynamic<float>(shared), own[t].weights, t, parts); },
        Add{});
    b.threads([&](int t, Shared& s) {
      const int group = t / kLanes, lane = t % kLanes;
      if (lane >= kSequences || group >= p.groups) return;
      auto* const to = b.template dynamic<Sums>(s, p.layout.sums * int64_t(sizeof(float)));
      to[group * kSequences + lane] = sums[t];
    });
    b.threads([&](int t, Shared& s) {
      PersistentCell<kGates>& cell = own[t].cell;
      if (!cell.is_there) return;
      const int64_t made = step - cell.layer;
      if (made >= 0 && made < cell.steps)
        take(cell, made, turned, inputs[t], b.template dynamic<Sums>(s, p.layout.sums * int64_t(sizeof(float))));
      p.values.put(cell.slot, step, cell.h);
    });
  }

 private:
  DEVICE_FN int direction(const device::Block<Shared>& b) const { return b.index() >= p.blocks ? 1 : 0; }
  // Where states of a direction are put: all layers' of a sequence, then those of the next.
  DEVICE_FN int64_t slots_of(int direction) const { return int64_t(direction) * p.batch * p.layout.width; }

  struct Tile {
    int part, unit, sequence;  // of the block's units; the first sequence
  };
  DEVICE_FN Tile tile_of(int group) const {
    Tile tile;
    tile.part = p.by_units(p.by_sequence_tiles(group, tile.sequence), tile.unit);
    tile.sequence *= kSequences;
    return tile;
  }
  // Of a part of all units.
  DEVICE_FN int sums_of_part() const { return p.units * p.by_sequence_tiles.divisor() * kSequences; }

  // i = (layer * units + unit) * batch + sequence
  DEVICE_FN PersistentCell<kGates> cell_of(int i, int way, int first, int units) const {
    int sequence, unit;
    const int l = p.by_units(p.by_batch(i, sequence), unit);
    PersistentCell<kGates> cell{};
    cell.is_there = l < p.layers && unit < units;
    if (!cell.is_there) return cell;
    const Layer& layer = p.layer[l];
    const Place place = p.sequences.place(way, sequence, first + unit, 0);
    cell.layer = l;
    cell.sums =
        (l == 0 ? 0 : 2 * l - 1) * sums_of_part() + unit * p.by_sequence_tiles.divisor() * kSequences + sequence;
    cell.slot = slots_of(way) + sequence * int64_t(p.layout.width) + l * p.hidden + place.unit;
    cell.x = p.sequences.x_at(place), cell.y = p.sequences.y_at(place), cell.end = p.sequences.end_at(place);
    cell.steps = p.sequences.lengths ? p.sequences.lengths[sequence] : int(p.sequences.steps);
    if (cell.steps == 0) {  // there is no last one, which would write them
      if (layer.y_h.at) layer.y_h.set(cell.end, 0);
      if (layer.y_c.at) layer.y_c.set(cell.end, 0);
    }
    if (layer.initial_h.at) cell.h = layer.initial_h[cell.end];
    if (layer.initial_c.at) cell.c = layer.initial_c[cell.end];
    UNROLL for (int k = 0; k < 2 * kGates; ++k) {
      if (layer.bias.at) cell.biases[k] = layer.bias[(way * 2 * kGates + k) * int64_t(p.hidden) + place.unit];
    }
    UNROLL for (int k = 0; k < 3; ++k) {
      if (layer.peepholes.at) cell.peepholes[k] = layer.peepholes[(way * 3 + k) * int64_t(p.hidden) + place.unit];
    }
    return cell;
  }

  DEVICE_FN void load_weights(int t, int threads, float* at, int way, int first, int units) const {
    const int packs = p.layout.rows * p.hidden / 4;
    for (int part = 0; part < p.layout.parts; ++part) {
      const Layer& layer = p.layer[layer_of(part)];
      const Values& from = part % 2 == 0 ? layer.r : layer.w;
      for (int pack = t; pack < packs; pack += threads) {
        int k;
        const int row = p.by_row_packs(pack, k), unit = row / kGates, gate = row % kGates;
        const int64_t place = ((int64_t(way) * kGates + gate) * p.hidden + first + unit) * int64_t(p.hidden) + k * 4;
        float* const into = at + (part * packs + pack) * 4;
        if (unit < units && from.type == Type::f32) {
          device::copy_async<16>(into, static_cast<const float*>(from.at) + place);
        } else {
          UNROLL for (int i = 0; i < 4; ++i) into[i] = unit < units ? from[place + i] : 0.f;
        }
      }
    }
  }

  DEVICE_FN const float* weights_of(const float* at, const Tile& tile) const {
    return at + (tile.part * p.layout.rows + tile.unit * kGates) * p.hidden;
  }
  DEVICE_FN void keep_weights(Weights& weights, const float* at, int t) const {
    const Tile tile = tile_of(t / kLanes);
    UNROLL for (int i = 0; i < kKept; ++i) {
      const int k = (i * kLanes + t % kLanes) * 4;
      UNROLL for (int gate = 0; gate < kGates; ++gate) {
        weights.of[i][gate] = {};
        if (k < p.hidden && t / kLanes < p.groups)
          weights.of[i][gate] = device::load_aligned<4>(weights_of(at, tile) + gate * p.hidden + k);
      }
    }
  }

  DEVICE_FN void get_states(int t, int threads, float* states, int way, int64_t step) const {
    const int64_t begin = slots_of(way);
    const int count = p.batch * p.layout.width;
    for (int i = 2 * t; i < count; i += 2 * threads * kPairs) {
      Pack<float, 2> pairs[kPairs];
      p.values.get_pairs<kPairs>(begin + i, 2 * threads, begin + count, step - 1, pairs);
      UNROLL for (int k = 0; k < kPairs; ++k) {
        const int value = i + k * 2 * threads;
        if (value >= count) continue;
        int place = value, sequence = 0;
        if (kSequences > 1) sequence = p.by_width(value, place);
        device::store_aligned(states + sequence * p.layout.stride + place, pairs[k]);
      }
    }
  }

  // A thread's share.
  DEVICE_FN void multiply(const float* at, const Weights& kept, int t, Sums* sums) const {
    UNROLL for (int i = 0; i < kSequences; ++i) sums[i] = {};
    if (t / kLanes >= p.groups) return;
    const Tile tile = tile_of(t / kLanes);
    const float* const weights = weights_of(at, tile);
    const float* const states =
        at + p.layout.states + tile.sequence * p.layout.stride + layer_below(tile.part) * p.hidden;
    const auto add = [&](const Pack<float, 4>* weight, int k) {
      UNROLL for (int i = 0; i < kSequences; ++i) {
        const auto state = device::load_aligned<4>(states + i * p.layout.stride + k);
        UNROLL for (int gate = 0; gate < kGates; ++gate) {
          UNROLL for (int e = 0; e < 4; ++e) sums[i].of[gate] += weight[gate].at[e] * state.at[e];
        }
      }
    };
    int k = t % kLanes * 4;
    UNROLL for (int i = 0; i < kKept; ++i, k += kLanes * 4) {
      if (k < p.hidden) add(kept.of[i], k);
    }
    UNROLL for (; k < p.hidden; k += kLanes * 4) {
      Pack<float, 4> weight[kGates];
      UNROLL for (int gate = 0; gate < kGates; ++gate) weight[gate] =
          device::load_aligned<4>(weights + gate * p.hidden + k);
      add(weight, k);
    }
  }

  // The next states.
  DEVICE_FN void take(PersistentCell<kGates>& own, int64_t step, bool turned, const Inputs& bits,
                      const Sums* sums) const {
    float product[kGates], inputs[kGates];
    UNROLL for (int gate = 0; gate < kGates; ++gate) {
      const bool is_first = own.layer == 0;
      inputs[gate] = is_first ? p.x.value_of(bits.of[gate]) : sums[own.sums].of[gate];
      product[gate] = sums[is_first ? own.sums : own.sums + sums_of_part()].of[gate];
    }
    Place place{};
    place.time = own.y + (turned ? -step : step) * p.sequences.y_time;
    place.last = step == own.steps - 1;
    cell(PersistentView<kGates>{p, own, inputs, &own.c}, place, product, &own.h, &own.h);
  }
};

// Of how many sequences a group makes the products.
int64_t tile_sequences(int64_t batch) { return batch == 1 ? 1 : 4; }

// How many units a block has: as few as there are blocks for, so that each step's work is spread, but some.
int64_t units_of(int device, const Recurrence& r) {
  constexpr int64_t kFewest = 4;
  const int64_t blocks = std::max<int64_t>(device::multiprocessors(device) / r.directions, 1);
  return std::max((r.hidden + blocks - 1) / blocks, kFewest);
}

int64_t sequence_tiles(int64_t batch) { return (batch + tile_sequences(batch) - 1) / tile_sequences(batch); }

Layout layout_of(int device, const Recurrence& r, int layers) {
  const int64_t sequences = sequence_tiles(r.batch) * tile_sequences(r.batch);
  return {gates_of(r.cell), int(units_of(device, r)), int(r.hidden), int(sequences), layers};
}

int64_t groups_of(int device, const Recurrence& r, int64_t layers) {
  return (2 * layers - 1) * units_of(device, r) * sequence_tiles(r.batch);
}

template <int kSequences, int kLanes, class CellOf>
void launch(Context& context, const PersistentRecurrence& p, int directions, const CellOf& cell) {
  using Kernel = PersistentSteps<CellOf, kSequences, kLanes>;
  const int pairs = p.batch * p.layout.width / 2, cells = p.layers * p.units * p.batch;
  const int threads = std::max({p.groups * kLanes, pairs, cells}) + 31;
  device::persistent_kernel<typename Kernel::Shared>(
      context.stream(),
      {int64_t(directions) * p.blocks, std::clamp(threads / 32 * 32, 128, kMostThreads),
       p.sequences.steps + p.layers - 1, p.layout.end * int64_t(sizeof(float))},
      Kernel{p, cell});
}

template <class CellOf>
void launch(Context& context, const PersistentRecurrence& p, int directions, const CellOf& cell) {
  if (p.batch == 1) return launch<1, 32>(context, p, directions, cell);
  if (p.groups * 32 <= kMostThreads) return launch<4, 32>(context, p, directions, cell);
  return launch<4, 8>(context, p, directions, cell);
}

}  // namespace

bool may_persist(int device, std::span<const Recurrence> layers) {
  const Recurrence& r = layers[0];
  constexpr int64_t kFewestSteps = 4;  // else there is little to keep
  if (r.type == Type::f64 || r.in_bytes || !r.has_usual_activations() || (r.cell == Cell::gru && !r.reset_after))
    return false;
  if (r.batch < 1 || r.batch > kMostSequences || r.steps < kFewestSteps || r.hidden % 4 != 0 || r.hidden < 4 ||
      r.hidden > kMostHidden || layers.size() > size_t(kMostLayers))
    return false;
  for (const Recurrence& layer : layers)
    for (const void* weights : {layer.r, &layer == &r ? nullptr : layer.w})
      if (reinterpret_cast<uintptr_t>(weights) % 16 != 0) return false;
  const int64_t floats = layout_of(device, r, int(layers.size())).end;
  const int64_t lanes = r.batch == 1 ? 32 : 8, cells = int64_t(layers.size()) * units_of(device, r) * r.batch;
  return groups_of(device, r, int64_t(layers.size())) * lanes <= kMostThreads && cells <= kMostThreads &&
         floats * int64_t(sizeof(float)) <= device::shared_bytes(device) - device::kLanesBytes - 16;
}

int64_t most_persistent_bytes(const Recurrence& r, int layers) {
  return r.hidden > kMostHidden ? 0 : StepValues::bytes_of(r.directions * kMostSequences * r.hidden * layers);
}

void run_persistent(Context& context, std::span<const Recurrence> layers, const void* x_gates) {
  const Recurrence& r = layers[0];
  const int device = context.stream().device(), count = int(layers.size());
  const int64_t values = r.states() * count;
  const auto bytes = size_t(StepValues::bytes_of(values));
  const Context::Cleared slots = context.cleared_scratch(bytes);
  if (!slots.is_cleared) device::fill(context.stream(), slots.at, 0, bytes);
  PersistentRecurrence p{.sequences = SequencePlaces(r),
                         .layout = layout_of(device, r, count),
                         .layers = count,
                         .units = int(units_of(device, r)),
                         .hidden = int(r.hidden),
                         .batch = int(r.batch),
                         .blocks = 0,
                         .groups = int(groups_of(device, r, count)),
                         .is_relu = r.squash[0][0].kind == Squash::Kind::relu,
                         .clip = float(r.clip),
                         .x = {const_cast<void*>(x_gates), r.type},
                         .y = {layers.back().y, r.type},
                         .values = {slots.at, values},
                         .layer = {},
                         .by_batch = SmallDivider(int(r.batch)),
                         .by_units = {},
                         .by_width = SmallDivider(count * int(r.hidden)),
                         .by_row_packs = SmallDivider(int(r.hidden) / 4),
                         .by_sequence_tiles = SmallDivider(int(sequence_tiles(r.batch)))};
  p.blocks = (p.hidden + p.units - 1) / p.units;
  p.by_units = SmallDivider(p.units);
  for (int l = 0; l < count; ++l) {
    const Recurrence& from = layers[size_t(l)];
    const auto values = [&](const void* at) { return Values{const_cast<void*>(at), r.type}; };
    p.layer[l] = {values(from.w),         values(from.r),         values(from.b),   values(from.p),
                  values(from.initial_h), values(from.initial_c), values(from.y_h), values(from.y_c)};
  }
  switch (r.cell) {
    case Cell::rnn: return launch(context, p, r.directions, RnnCell<float>{});
    case Cell::gru: return launch(context, p, r.directions, GruCell<float>{});
    case Cell::lstm: return launch(context, p, r.directions, LstmCell<float>{r.coupled});
  }
}

}  // namespace encore::ops
