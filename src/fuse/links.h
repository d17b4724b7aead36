// Chains of steps that only move elements, or scale them, and what they come to.
#pragma once
#include <optional>
#include <span>
#include <vector>

#include "fuse/shape_symbols.h"
#include "ops/shape/viewed.h"

namespace encore::fuse {

// x from `begin` to `end` along an axis of `size`.
struct Part {
  int x, axis;
  int64_t begin, end, size;
};
// What Slice or Split makes, if it is that.
std::optional<Part> part_of(const Match& match, int v);

// What makes a value of another.
struct Link {
  std::vector<int> steps;
  std::vector<int> shapes;  // steps that compute what it is given
  int from = -1;
  std::optional<ops::ViewStep> view;
  double factor = 1;
};

class Links {
 public:
  explicit Links(const Match& match) : match_(match), symbols_(match) {}

  enum class Factors { left, taken };
  std::optional<Link> to(int v) const;
  // Upwards from a value, the nearest first.
  std::vector<Link> above(int v, Factors factors = Factors::left) const;

  // A Reshape's numbers, where it asks for dimensions that are there before: zero says that one stays, -1 is one that
  // is left.
  static std::optional<std::vector<int64_t>> kept(const std::optional<Dims>& wanted, const std::optional<Dims>& before);

 private:
  std::optional<Link> swap_to(int v) const;
  std::optional<Link> roll_to(int v) const;
  std::optional<ops::ViewStep> repetition(const Step& step, std::vector<int>& shapes) const;

  const Match& match_;
  const ShapeSymbols symbols_;
};

// Steps that only move elements.
// What there is from `begin` to `end` along the axis.
Step slice(Match& match, int64_t begin, int64_t end, int64_t axis, std::string name, int from, int to);
Step transposition(const Match& match, const std::vector<int64_t>& order, std::string name, int from, int to);
Step view(const Match& match, const std::vector<ops::ViewStep>& steps, std::string name, int from, int to);

// How often elements are copied by steps that are one, told by an example of the dimensions; none if that can't be
// told.
std::optional<int> copies(const Symbols& symbols, const Dims& dims, const std::vector<ops::ViewStep>& steps);

// How a value is best made of what lies above it, if `last` is done to it besides.
class ViewChain {
 public:
  // `is_kept`: others read the value too.
  ViewChain(const Match& match, int v, std::optional<ops::ViewStep> last = {}, bool is_kept = false);

  // What is read, and what becomes of it.
  int from() const { return links_ ? chain_[links_ - 1].from : v_; }
  std::vector<ops::ViewStep> steps() const;
  // Copies that are gone then, less those that are made. `last` takes one where nothing is above.
  int saved() const { return saved_; }

 private:
  std::vector<ops::ViewStep> steps(size_t links) const;
  static bool has_others(const Match& match, const Link& link);
  bool is_only_read_below(const Match& match, size_t link) const;

  const int v_;
  const std::optional<ops::ViewStep> last_;
  const std::vector<Link> chain_;
  size_t links_ = 0;
  int saved_ = 0;
};

}  // namespace encore::fuse
