// Runs of a region that are captured: they launch nothing.
#pragma once
#include <optional>
#include <utility>
#include <vector>

#include "automatic/longer.h"
#include "automatic/runs.h"
#include "device/error.h"
#include "ops/room.h"

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
class CapturedRun final : public OnCapture<PlannedRun>, public ops::HasRoom {
 public:
  // `counts` are for what is collected.
  CapturedRun(ops::Context& outer, const std::vector<Longer>& longer, const std::vector<void*>& at,
              device::StreamRef stream, const Record& record, const MemoryPlan& plan, void* memory, int64_t* counts)
      : OnCapture(stream, longer, at, outer, record, plan, memory), counts_(counts) {}
  ops::Tensor output(int i, const ops::Shape& shape) override;
  ops::Room room(int i, const ops::Parts& parts) override;

 private:
  int64_t* const counts_;

  void* unplanned(size_t) override { fail(Code::internal, "its scratch is not that of the first run"); }
};

// Is for what it records: all ways between which data decides as the graph runs. Its capture is dropped.
class Rehearsal final : public OnCapture<RecordedRun>, public ops::HasRoom {
 public:
  // Of a run that has been recorded with one of them.
  Rehearsal(ops::Context& outer, const std::vector<Longer>& longer, const std::vector<void*>& at,
            device::StreamRef stream, const Record& one_way, size_t most);
  ~Rehearsal() override;
  ops::Tensor output(int i, const ops::Shape& shape) override;
  ops::Room room(int i, const ops::Parts& parts) override;
  void* scratch(size_t bytes) override;
  bool is_too_long() { return record().is_too_long; }

 private:
  ops::Tensor make(int i, const ops::Shape& shape);

  const Record& one_way_;
  std::vector<void*> counts_;
  std::vector<std::optional<ops::Tensor>> outputs_;
};

}  // namespace encore::automatic
