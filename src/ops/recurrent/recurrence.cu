// What comes before the steps: the product with all inputs, and the first state.
#include "ops/recurrent/recurrence.h"

#include <algorithm>

#include "device/divide.h"
#include "device/launch.h"
#include "device/memory.h"
#include "ops/dispatch.h"
#include "ops/recurrent/persistent.h"

namespace encore::ops {
namespace {

using device::Compute;
using device::Divider;

// States lie in [direction, batch, hidden] while the steps run. A sequence without steps has no last one: its outputs
// are written here, and are zero.
template <class T>
struct Begin {
  Divider by_hidden, by_batch;
  const T *initial_h, *initial_c;
  T *h, *y_h, *y_c;
  Compute<T>* c;
  int64_t states, direction_stride, batch_stride;
  const int32_t* lengths;
  bool no_steps;
  DEVICE_FN void operator()(int64_t i) const {
    int64_t unit, sequence;
    const int64_t direction = by_batch(by_hidden(i, unit), sequence);
    const int64_t outside = direction * direction_stride + sequence * batch_stride + unit;
    h[i] = initial_h ? initial_h[outside] : T(0.f);
    if (lengths) h[i + states] = h[i];  // where a sequence that has ended writes nothing
    if (c) c[i] = initial_c ? Compute<T>(initial_c[outside]) : Compute<T>(0);
    if (!no_steps && (!lengths || lengths[sequence] > 0)) return;
    if (y_h) y_h[outside] = T(0.f);
    if (y_c) y_c[outside] = T(0.f);
  }
};

struct CheckLengths {
  const int32_t* lengths;
  int32_t* checked;
  int64_t steps;
  device::FaultRef fault;
  DEVICE_FN void operator()(int64_t i) const {
    const int64_t length = lengths[i];
    const bool is_good = length >= 0 && length <= steps;
    if (!is_good) fault.report(device::FaultKind::bad_value, length, steps);
    checked[i] = is_good ? int32_t(length) : 0;
  }
};

void begin(Context& context, Recurrence& r) {
  const size_t bytes = device::size_bytes(r.type), wide = r.type == Type::f64 ? sizeof(double) : sizeof(float);
  r.h = context.scratch(2 * size_t(r.states()) * bytes);  // the last and the next
  if (r.cell == Cell::lstm) r.c = context.scratch(size_t(r.states()) * wide);
  dispatch(FloatList{}, r.type, [&]<class T>() {
    Begin<T> begin{};
    begin.by_hidden = Divider(r.hidden, r.states());
    begin.by_batch = Divider(r.batch, r.states());
    begin.initial_h = static_cast<const T*>(r.initial_h);
    begin.initial_c = static_cast<const T*>(r.initial_c);
    begin.h = static_cast<T*>(r.h);
    begin.c = static_cast<Compute<T>*>(r.c);
    begin.y_h = static_cast<T*>(r.y_h);
    begin.y_c = static_cast<T*>(r.y_c);
    begin.states = r.states();
    begin.direction_stride = r.batch_first ? r.hidden : r.batch * r.hidden;
    begin.batch_stride = r.batch_first ? r.directions * r.hidden : r.hidden;
    begin.lengths = r.lengths;
    begin.no_steps = r.longest == 0;
    device::for_each_index(context.stream(), r.states(), begin);
  });
}

// The product with all inputs.
void multiply_inputs(Context& context, Recurrence& r) {
  const int64_t rows = r.steps * r.batch, columns = int64_t(r.directions) * gates_of(r.cell) * r.hidden;
  device::Gemm gemm;
  gemm.type = gemm.output = r.type;
  gemm.m = rows, gemm.n = columns, gemm.k = r.input;
  gemm.transpose_b = true;
  gemm.lda = gemm.ldb = std::max<int64_t>(r.input, 1);
  gemm.ldc = columns;
  gemm.tf32 = r.tf32;
  void* const x_gates = context.scratch(size_t(checked_product(rows, columns)) * device::size_bytes(r.type));
  ScratchWorkspace workspace(context);
  context.blas().gemm(context.stream(), gemm, r.x, r.w, x_gates, nullptr, workspace);
  r.x_gates = x_gates;
}

}  // namespace

const int32_t* checked_lengths(Context& context, const Recurrence& r, const int32_t* lengths) {
  auto* const checked = static_cast<int32_t*>(context.scratch(size_t(r.batch) * sizeof(int32_t)));
  device::for_each_index(context.stream(), r.batch, CheckLengths{lengths, checked, r.steps, context.fault()});
  return checked;
}

void run_recurrence(Context& context, std::span<const Recurrence> layers) {
  Recurrence r = layers[0];
  if (r.states() == 0) return;
  if (r.y && (r.lengths || r.longest < r.steps))  // past their ends sequences are zero
    device::fill(context.stream(), r.y, 0, size_t(r.steps * r.states()) * device::size_bytes(r.type));
  const bool persists = r.longest > 0 && may_persist(context.stream().device(), layers);
  if (!persists) begin(context, r);
  if (r.longest == 0) return;
  multiply_inputs(context, r);
  if (persists) return run_persistent(context, layers, r.x_gates);
  switch (r.cell) {
    case Cell::rnn: return run_rnn(context, r);
    case Cell::gru: return run_gru(context, r);
    case Cell::lstm: return run_lstm(context, r);
  }
}

}  // namespace encore::ops
