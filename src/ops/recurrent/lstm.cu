#include "ops/recurrent/step.h"

namespace encore::ops {

void run_lstm(Context& context, const Recurrence& r) {
  dispatch(FloatList{}, r.type, [&]<class T>() {
    Steps<T> steps(context, r);
    T* const rounded = r.in_bytes ? static_cast<T*>(context.scratch(size_t(r.states()) * sizeof(T))) : nullptr;
    for (int64_t step = 0; step < r.longest; ++step) {
      if constexpr (std::is_same_v<T, float>)
        if (rounded) round_to_bytes(context.stream(), steps.h(step), r.directions, r.batch * r.hidden, rounded);
      steps.run(LstmCell<T>{r.coupled}, step, 0, rounded ? rounded : steps.h(step));
    }
  });
}

}  // namespace encore::ops
