// A run through a program's branches: what each action waits for in a graph, and which memory it may have.
#pragma once
#include <vector>

#include "device/branches.h"
#include "fuse/branches.h"
#include "ops/op.h"

namespace encore::fuse {

// Among branches a block of memory that was given back is for those alone that come after all who have used it. A run
// that is recorded for a graph tells of that; one that is captured without a plan keeps such blocks meanwhile.
class BranchedRun {
 public:
  BranchedRun(const std::vector<Branches>& all, ops::Context& outer);

  // Around each action, in order.
  void begin(size_t action);
  void finish();

  // For the action that runs.
  void* scratch(size_t bytes);
  void give_back(void* block);
  void use(const void* block);  // it reads or writes what is there

 private:
  struct Block {
    void* at;
    size_t bytes;
    int number;                    // in the record
    Branches::Actions users = {};  // of those inside
    bool is_free = false;
  };
  // What an action comes after, in the graph.
  struct Ended {
    std::vector<int> after = {};  // actions that have captured something
    device::CaptureEnd end = {};
  };

  void open();
  void close();
  Block* find(const void* block);
  // That may be the current action's, though others work beside it.
  bool is_through(const Block& block) const;
  Block* find_spare(size_t bytes);
  // Without those that others of these come after.
  std::vector<int> latest(std::vector<int> actions) const;
  void go_on_after(std::vector<int> actions);

  ops::Context& outer_;
  const Branches *next_, *const end_;
  const Branches* inside_ = nullptr;  // of which an action runs
  size_t current_ = 0;                // that action, counted from the first one inside
  ops::ApartBlocks* record_ = nullptr;
  bool is_captured_ = false, keeps_ = false;
  std::vector<Block> blocks_;  // that are recorded or kept
  device::CaptureEnd entry_;
  Ended wanted_;
  std::vector<Ended> ended_;  // by action
};

}  // namespace encore::fuse
