// Inputs that are made longer, where no output tells: so that those which grow from run to run need few graphs.
#pragma once
#include <optional>
#include <set>
#include <vector>

#include "automatic/runs.h"
#include "device/copy_many.h"
#include "ops/growing.h"

namespace encore::automatic {

inline constexpr size_t kMostStagedBytes = size_t(4) << 20;  // of a tensor that is copied wherever it is

// An input of a run, with zeros behind what there is.
struct Longer {
  int input;
  ops::Tensor tensor;  // as it is to be, and where it is as it was
  size_t row_bytes, pitch, rows;

  device::Copy copy(const void* from, void* to) const { return {from, to, row_bytes, pitch, rows}; }
};

// Null if that input stays as it is.
const Longer* find_longer(const std::vector<Longer>& longer, int input);

// Of a run's inputs; none where one is absent.
using Outlines = std::vector<std::optional<ops::Context::Outline>>;

// A dimension that grows, and what has become of it.
class Growth {
 public:
  explicit Growth(ops::GrowingDim dim) : dim_(std::move(dim)) {}

  // Adds the inputs that are to be longer in this run: none before there have been two lengths.
  void lengthen(ops::Context& run, const Outlines& inputs, std::vector<Longer>& longer);
  const std::string& name() const { return dim_.name; }
  const std::set<int64_t>& lengths() const { return lengths_; }  // that there have been instead

 private:
  int64_t length_in(const Outlines& inputs) const;  // of all masks, or 0
  int64_t room_in(const Outlines& inputs) const;
  bool is_prompt(const Outlines& inputs, int64_t length) const;

  ops::GrowingDim dim_;
  int64_t first_ = 0;
  bool grows_ = false;
  std::set<int64_t> lengths_;
};

// A run with these inputs longer, which it puts into memory of its own.
class LongerRun final : public SameRun {
 public:
  LongerRun(ops::Context& outer, std::vector<Longer> longer);
  const ops::Tensor* find_input(int i) override;

 private:
  std::vector<Longer> longer_;
};

}  // namespace encore::automatic
