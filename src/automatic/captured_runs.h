// Runs of a region that are captured: they launch nothing.
#pragma once
#include <optional>
#include <utility>
#include <vector>

#include "automatic/longer.h"
#include "automatic/runs.h"
#include "device/error.h"

namespace encore::automatic {

// What such runs have in common.
template <class Run>
class OnCapture : public Run {
 public:
  const ops::Tensor* find_input(int i) override;
  device::StreamRef stream() const override { return stream_; }
  void read_back(void*, const void*, size_t) override;
  bool waits() const { return waits_; }

 protected:
  // Inputs are at `at`.
  template <class... Args>
  OnCapture(device::StreamRef stream, const std::vector<Longer>& longer, const std::vector<void*>& at, Args&&... args)
      : Run(std::forward<Args>(args)...), at_(at), stream_(stream), longer_(longer) {}

  const std::vector<void*>& at_;

 private:
  const device::StreamRef stream_;
  const std::vector<Longer>& longer_;
  std::vector<std::optional<ops::Tensor>> inputs_;
  bool waits_ = false;
};

// Has its scratch where the plan says, and its border where the graph has it, outputs behind inputs.
class CapturedRun final : public OnCapture<PlannedRun> {
 public:
  CapturedRun(ops::Context& outer, const std::vector<Longer>& longer, const std::vector<void*>& at,
              device::StreamRef stream, const Record& record, const MemoryPlan& plan, void* memory)
      : OnCapture(stream, longer, at, outer, record, plan, memory) {}
  ops::Tensor output(int i, const ops::Shape& shape) override;

 private:
  void* unplanned(size_t) override { fail(Code::internal, "its scratch is not that of the first run"); }
};

// Is for what it records: all ways between which data decides as the graph runs. Its capture is dropped.
class Rehearsal final : public OnCapture<RecordedRun> {
 public:
  // Of a run that has been recorded with one of them.
  Rehearsal(ops::Context& outer, const std::vector<Longer>& longer, const std::vector<void*>& at,
            device::StreamRef stream, const Record& one_way, size_t most)
      : OnCapture(stream, longer, at, outer, most), one_way_(one_way) {}
  ~Rehearsal() override;
  ops::Tensor output(int i, const ops::Shape& shape) override;

 private:
  const Record& one_way_;
  std::vector<std::optional<ops::Tensor>> outputs_;
};

}  // namespace encore::automatic
