// Runs of a region: one that is recorded, and one that goes as an earlier one did.
#pragma once
#include <optional>
#include <vector>

#include "automatic/memory_plan.h"
#include "ops/inner_context.h"

namespace encore::automatic {

// An output that is as long as data says.
struct Collected {
  size_t output;
  ops::Shape of_none;  // its shape if nothing is collected
  bool is_enough;      // there is never more than there is room for
};

// What a run with certain shapes of its inputs does, and the next ones with the same shapes will do again.
struct Record {
  // With these shapes: each run goes so; data on the device decides, and one of the ways between which it does is so;
  // or it has the scratch of all of these ways.
  enum class Of { every_run, one_way, all_ways };

  Of of = Of::every_run;
  std::vector<ScratchEvent> scratch;
  std::vector<BlocksApart> apart;
  std::vector<std::optional<ops::Shape>> outputs;
  std::vector<ops::Type> types;      // of outputs
  std::vector<Collected> collected;  // of outputs, whose shapes are those of the room for them
  size_t output_bytes = 0;           // of those for which there was no memory yet
  bool is_too_long = false;
};

// Like the run around it.
class SameRun : public ops::InnerContext {
 public:
  using InnerContext::InnerContext;
  int input_count() const override { return outer_.input_count(); }
  int output_count() const override { return outer_.output_count(); }
  const ops::Tensor* find_input(int i) override { return outer_.find_input(i); }
  ops::Tensor output(int i, const ops::Shape& shape) override { return outer_.output(i, shape); }
  bool wants_output(int i) const override { return outer_.wants_output(i); }
};

// Blocks that a run has, and has not given back.
class LiveBlocks {
 public:
  void* add(void* at) {
    live_.push_back({at, count_++});
    return at;
  }
  int count() const { return count_; }  // of all that there were
  int remove(const void* at);           // which it was; -1 if it is none

 private:
  struct Live {
    void* at;
    int block;
  };
  std::vector<Live> live_;
  int count_ = 0;
};

class RecordedRun : public SameRun, public ops::ApartBlocks {
 public:
  // Of more events than `most` the record is too long, and ends.
  RecordedRun(ops::Context& outer, size_t most, bool is_for_captures)
      : SameRun(outer), most_(most), is_for_captures_(is_for_captures) {
    record_.outputs.resize(size_t(outer.output_count()));
    record_.types.resize(size_t(outer.output_count()));
  }
  Record take() { return std::move(record_); }

  ops::Tensor output(int i, const ops::Shape& shape) override;
  void* scratch(size_t bytes) override;
  void give_back(void* scratch) override;
  void read_back(void* host, const void* device, size_t bytes) override;
  bool is_planned() const override { return true; }
  ops::ApartBlocks* apart_blocks() override { return is_for_captures_ ? this : nullptr; }
  int taken() const override { return live_.count(); }
  void keep_apart(int block, int from) override;

 protected:
  Record& record() { return record_; }

 private:
  void note(const ScratchEvent& event);

  const size_t most_;
  const bool is_for_captures_;
  Record record_;
  LiveBlocks live_;
};

// Has its scratch where the plan says, as long as it goes as recorded.
class PlannedRun : public SameRun {
 public:
  // `memory` has the plan's bytes.
  PlannedRun(ops::Context& outer, const Record& record, const MemoryPlan& plan, void* memory)
      : SameRun(outer), record_(record), plan_(plan), memory_(static_cast<char*>(memory)) {}
  bool went_otherwise() const { return went_otherwise_; }

  void* scratch(size_t bytes) override;
  void give_back(void* scratch) override;
  bool is_planned() const override { return true; }

 protected:
  const Record& record() const { return record_; }
  // From where the run goes otherwise: what the plan knows nothing of.
  virtual void* unplanned(size_t bytes) { return outer_.scratch(bytes); }

 private:
  bool goes_on(const ScratchEvent& event);

  const Record& record_;
  const MemoryPlan& plan_;
  char* const memory_;
  LiveBlocks live_;
  size_t next_ = 0;  // event
  bool went_otherwise_ = false;
};

}  // namespace encore::automatic
