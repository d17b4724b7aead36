// One step of a recurrence, in one of two ways. Few sequences: one kernel, where a group of threads makes the products
// of one hidden unit and its cell. Many: a matrix product, and a kernel for the cells.
//
// A cell is a functor `cell(sequences, at, products, last_h, next_h)` with the number of its gates, kGates.
#pragma once
#include <algorithm>

#include "device/divide.h"
#include "device/launch.h"
#include "device/transform.h"
#include "ops/dispatch.h"
#include "ops/recurrent/cells.h"

namespace encore::ops {

using device::Divider;

// What the kernels see of a recurrence.
template <class T>
struct RecurrenceView : SequencePlaces {
  using C = Compute<T>;
  int gates;
  C clip;
  Squash squash[2][3];
  const T *x, *bias, *peepholes;
  T *y, *y_h, *y_c;
  C* c;

  explicit RecurrenceView(const Recurrence& r)
      : SequencePlaces(r),
        gates(gates_of(r.cell)),
        clip(C(r.clip)),
        x(static_cast<const T*>(r.x_gates)),
        bias(static_cast<const T*>(r.b)),
        peepholes(static_cast<const T*>(r.p)),
        y(static_cast<T*>(r.y)),
        y_h(static_cast<T*>(r.y_h)),
        y_c(static_cast<T*>(r.y_c)),
        c(static_cast<C*>(r.c)) {
    for (int d = 0; d < 2; ++d) std::copy_n(r.squash[d], 3, squash[d]);
  }

  // X W' of a gate.
  DEVICE_FN C input(const Place& at, int gate) const { return C(x[x_at(at) + gate * hidden]); }
  // The bias of X W', or of the product with R.
  DEVICE_FN C bias_of(const Place& at, int gate, bool recurrent) const {
    if (!bias) return C(0);
    return C(bias[((at.direction * 2 + (recurrent ? 1 : 0)) * gates + gate) * hidden + at.unit]);
  }
  DEVICE_FN C both_biases(const Place& at, int gate) const {
    return bias_of(at, gate, false) + bias_of(at, gate, true);
  }
  DEVICE_FN C squashed(const Place& at, int which, C value) const { return squash[at.direction][which](value); }
  DEVICE_FN C activated(const Place& at, int which, C value) const { return squashed(at, which, clipped(value, clip)); }
  DEVICE_FN C peephole(const Place& at, int which, C cell) const {
    return peepholes ? C(peepholes[(at.direction * 3 + which) * hidden + at.unit]) * cell : C(0);
  }
  DEVICE_FN C cell_of(const Place& at) const { return c[at.state]; }
  DEVICE_FN void keep_cell(const Place& at, C cell) const {
    c[at.state] = cell;
    if (at.last && y_c) y_c[end_at(at)] = T(cell);
  }
  DEVICE_FN void store(const Place& at, T h, T* next_h) const {
    next_h[at.state] = h;
    if (y) y[y_at(at)] = h;
    if (at.last && y_h) y_h[end_at(at)] = h;
  }
};

template <class T, class CellOf>
struct CellStep {
  RecurrenceView<T> sequences;
  CellOf cell;
  int64_t step;
  Divider by_hidden, by_batch;
  const T *products, *last_h;
  T* next_h;
  DEVICE_FN void operator()(int64_t i) const {
    int64_t unit, sequence;
    const int64_t row = by_hidden(i, unit), direction = by_batch(row, sequence);
    const Place at = sequences.place(int(direction), sequence, unit, step);
    if (!at.alive) return;
    Compute<T> product[CellOf::kGates];
    const T* const from = products + row * CellOf::kGates * sequences.hidden + unit;
    UNROLL for (int gate = 0; gate < CellOf::kGates; ++gate) product[gate] = Compute<T>(from[gate * sequences.hidden]);
    cell(sequences, at, product, last_h, next_h);
  }
};

template <class T, class CellOf>
struct ProductStep {
  static constexpr int kMaxThreads = 128, kGroup = 32, kUnits = kMaxThreads / kGroup;  // units of a block
  static constexpr int kRows = 4;                                                      // sequences at once
  static constexpr int kGates = CellOf::kGates, kPack = device::pack_size<T>();
  using C = Compute<T>;
  struct Sums {
    C of[kGates][kRows];
  };

  RecurrenceView<T> sequences;
  CellOf cell;
  int64_t step, units;
  Divider by_hidden;
  const T *r, *vectors, *last_h;
  T* next_h;
  int64_t r_direction;
  bool aligned;

  DEVICE_FN void operator()(device::Block<device::NoShared>& block, const device::NoShared&) const {
    device::PerThread<Sums, kMaxThreads> sums;
    for (int64_t first = 0; first < sequences.batch; first += kRows) {
      const int rows = sequences.batch - first < kRows ? int(sequences.batch - first) : kRows;
      block.template reduce_groups<kGroup>(
          sums, [&](int t) { return part_of(block.index() * kUnits + t / kGroup, t % kGroup, first, rows); }, Add{});
      block.threads([&](int t, device::NoShared&) {
        const int64_t at = block.index() * kUnits + t / kGroup;
        const int row = t % kGroup;
        if (at >= units || row >= rows) return;
        int64_t unit;
        const int64_t direction = by_hidden(at, unit);
        const Place place = sequences.place(int(direction), first + row, unit, step);
        if (!place.alive) return;
        C product[kGates];
        UNROLL for (int gate = 0; gate < kGates; ++gate) {
          product[gate] = sums[t].of[gate][0];
          UNROLL for (int k = 1; k < kRows; ++k) product[gate] = k == row ? sums[t].of[gate][k] : product[gate];
        }
        cell(sequences, place, product, last_h, next_h);
      });
    }
  }

 private:
  struct Add {
    DEVICE_FN Sums operator()(const Sums& a, const Sums& b) const {
      Sums all;
      UNROLL for (int gate = 0; gate < kGates; ++gate) {
        UNROLL for (int row = 0; row < kRows; ++row) all.of[gate][row] = a.of[gate][row] + b.of[gate][row];
      }
      return all;
    }
  };
  // A thread's share of the products of one unit with `rows` sequences.
  DEVICE_FN Sums part_of(int64_t at, int lane, int64_t first, int rows) const {
    Sums sums{};
    if (at >= units) return sums;
    int64_t unit;
    const int64_t direction = by_hidden(at, unit), hidden = sequences.hidden;
    const T* const weights = r + direction * r_direction + unit * hidden;
    const T* const states = vectors + (direction * sequences.batch + first) * hidden;
    UNROLL for (int64_t k = lane * kPack; k < hidden; k += kGroup * kPack) {  // so that more is loaded at once
      const int count = hidden - k < kPack ? int(hidden - k) : kPack;
      device::Pack<T, kPack> weight[kGates];
      UNROLL for (int gate = 0; gate < kGates; ++gate) weight[gate] =
          device::load_pack<kPack>(weights + gate * hidden * hidden + k, aligned, count);
      UNROLL for (int row = 0; row < kRows; ++row) {
        if (row < rows) {
          const auto state = device::load_pack<kPack>(states + row * hidden + k, aligned, count);
          UNROLL for (int i = 0; i < kPack; ++i) {
            const C value = i < count ? C(state.at[i]) : C(0);
            UNROLL for (int gate = 0; gate < kGates; ++gate) sums.of[gate][row] += C(weight[gate].at[i]) * value;
          }
        }
      }
    }
    return sums;
  }
};

// The steps of one recurrence, for cells of one type of values.
template <class T>
class Steps {
 public:
  Steps(Context& context, const Recurrence& recurrence)
      : context_(context), r_(recurrence), sequences_(recurrence), workspace_(context) {
    if (!few())
      products_ = static_cast<T*>(context.scratch(size_t(r_.states()) * sizeof(T) * size_t(sequences_.gates)));
  }

  T* h(int64_t step) const { return static_cast<T*>(r_.h) + step % 2 * r_.states(); }  // before the step

  // The products of `vectors` with the gates of R from `first_gate` on, and their cells. Whatever cells write, no other
  // cell of the step reads.
  template <class CellOf>
  void run(const CellOf& cell, int64_t step, int first_gate, const T* vectors) {
    const int64_t hidden = r_.hidden, r_direction = sequences_.gates * hidden * hidden;
    const T* const weights = static_cast<const T*>(r_.r) + first_gate * hidden * hidden;
    if (few()) {
      using Kernel = ProductStep<T, CellOf>;
      const int64_t units = r_.directions * hidden;
      const bool aligned = hidden % Kernel::kPack == 0 && device::is_pack_aligned<Kernel::kPack>(weights) &&
                           device::is_pack_aligned<Kernel::kPack>(vectors);
      device::block_kernel<device::NoShared>(
          context_.stream(), {(units + Kernel::kUnits - 1) / Kernel::kUnits, Kernel::kMaxThreads},
          Kernel{sequences_, cell, step, units, Divider(hidden, units + Kernel::kUnits), weights, vectors, h(step),
                 h(step + 1), r_direction, aligned});
      return;
    }
    device::Gemm gemm;
    gemm.type = gemm.output = r_.type;
    gemm.m = r_.batch, gemm.n = CellOf::kGates * hidden, gemm.k = hidden;
    gemm.transpose_b = true;
    gemm.lda = gemm.ldb = hidden;
    gemm.ldc = gemm.n;
    gemm.batch = r_.directions;
    gemm.stride_a = r_.batch * hidden, gemm.stride_b = r_direction, gemm.stride_c = gemm.m * gemm.n;
    gemm.tf32 = r_.tf32;
    context_.blas().gemm(context_.stream(), gemm, vectors, weights, products_, nullptr, workspace_);
    device::for_each_index(context_.stream(), r_.states(),
                           CellStep<T, CellOf>{sequences_, cell, step, Divider(hidden, r_.states()),
                                               Divider(r_.batch, r_.states()), products_, h(step), h(step + 1)});
  }

 private:
  bool few() const { return is_few(r_.batch); }

  Context& context_;
  const Recurrence& r_;
  const RecurrenceView<T> sequences_;
  ScratchWorkspace workspace_;
  T* products_ = nullptr;
};

}  // namespace encore::ops
