// Where the runs of a stream with the same shapes had their tensors: whether these are there again, and which of them a
// graph is to copy.
#pragma once
#include <cstddef>
#include <optional>
#include <vector>

namespace encore::automatic {

// Of the tensors that come in or go out: the inputs come first.
using Addresses = std::vector<void*>;

// Copied only where there are many places.
bool is_large(size_t bytes);
// How much of large tensors a graph of so many nodes may copy in each run.
size_t most_large_bytes(size_t nodes);

class Places {
 public:
  // Whether a run has been there with its large tensors, but for those that move. Notes which do: small ones that are
  // elsewhere, and large ones after many places. `bytes` is by tensor.
  bool was_seen(const Addresses& at, const std::vector<size_t>& bytes, size_t most_large);
  // A graph did not fit.
  void note_misfit(const std::vector<size_t>& bytes);
  // Whether tensors that a graph copies have been at the same places for so long that it may do without.
  bool stay(Addresses at);

  const std::vector<bool>& moving() const { return moves_; }
  // Why the latest run was not seen: a large tensor was elsewhere before. None: there was no run before.
  std::optional<size_t> stranger() const { return stranger_; }

 private:
  // Runs at the same places, until a graph without copies is captured; twice as many each time.
  static constexpr int kFirstStay = 16;

  bool let_move(const std::vector<size_t>& others, const std::vector<size_t>& bytes, size_t most_large);

  std::vector<bool> moves_;
  std::vector<Addresses> sightings_;  // the latest last
  std::optional<size_t> stranger_;
  int misfits_ = 0;
  Addresses latest_;                           // of the runs whose tensors a graph copied
  int stayed_ = 0, stay_wanted_ = kFirstStay;  // how many were there one after the other
};

}  // namespace encore::automatic
