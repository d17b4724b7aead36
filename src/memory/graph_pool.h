// Memory private to one captured graph.
#pragma once
#include <cstddef>
#include <functional>
#include <memory>

namespace encore::memory {

class Source;

// What is allocated while the graph is captured. It goes back to the driver when the graph has let go of it, no tensor
// lives in it any more and the device's streams have run what they then held.
class GraphPool {
 public:
  // `grew(bytes)` is called in the allocating thread when more is needed than `first_chunk_bytes`, which may be zero.
  GraphPool(std::shared_ptr<Source> source, size_t first_chunk_bytes, std::function<void(size_t bytes)> grew = {});
  ~GraphPool();
  GraphPool(const GraphPool&) = delete;
  size_t held_bytes() const;
  // The graph is captured. What is still in use was handed out: outputs that were allocated by the run.
  void complete();
  bool is_given_back() const;  // by whoever had it then; in any thread
  // Things that live as long as the pool, such as host memory that the graph's copies read.
  void keep(std::shared_ptr<void> thing);

 private:
  friend class Arena;
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace encore::memory
