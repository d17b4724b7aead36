// A run through a program's branches: what each action waits for in a graph, and where its memory is.
#pragma once
#include <vector>

#include "device/branches.h"
#include "fuse/branches.h"
#include "ops/op.h"

namespace encore::fuse {

// Among branches a block of memory that was given back is for those alone that come after all who have used it. That is
// so in eager runs, too: a graph takes the memory that they took.
class BranchedRun {
 public:
  BranchedRun(const std::vector<Branches>& all, ops::Context& outer)
      : outer_(outer), next_(all.data()), end_(all.data() + all.size()) {}

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
    Branches::Actions users;
    bool is_free;
  };
  // What an action comes after, in the graph.
  struct Ended {
    std::vector<int> after;  // actions that have captured something
    device::CaptureEnd end;
  };

  void open();
  void close();
  Block* find(const void* block);
  // Without those that others of these come after.
  std::vector<int> latest(std::vector<int> actions) const;
  void go_on_after(Ended wanted);

  ops::Context& outer_;
  const Branches* next_;
  const Branches* const end_;
  const Branches* inside_ = nullptr;  // of which an action runs
  size_t current_ = 0;                // that action, counted from the first one inside
  std::vector<Block> blocks_;
  std::vector<void*> held_;  // blocks from before
  bool is_captured_ = false;
  device::CaptureEnd entry_;
  Ended wanted_;
  std::vector<Ended> ended_;  // by action
};

}  // namespace encore::fuse
