#include "device/exchange.h"

#include <algorithm>

#include "device/error.h"

namespace encore::device {

void Exchanges::launch(const GraphExec& exec, const std::function<void()>& launch) {
  const std::lock_guard lock(mutex_);
  const auto is_settled = [](const Exchange& one) { return one.kernel->state() != CompiledKernel::State::awaited; };
  if (std::ranges::all_of(exchanges_, is_settled)) {
    try {
      for (const Exchange& one : exchanges_)
        if (one.kernel->is_ready()) apply(exec, one);
    } catch (const Error&) {  // what the graph has does the same
    }
    exchanges_.clear();
    graph_.reset();
    awaited_.store(false, std::memory_order_release);
  }
  launch();
}

}  // namespace encore::device
