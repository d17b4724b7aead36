// What a session's nodes take on the device, for whoever has begun a profile. Timelines are read once the device is
// through with them: at the end of a run, before a graph's next launch, and at a profile's end.
#pragma once
#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "device/stream.h"
#include "profile/timeline.h"

namespace encore::profile {

// A node in one run, or a step inside of it.
struct Span {
  const char *name, *op;
  bool is_replay;
  int depth;           // how many nodes it is inside of
  const void* stream;  // StreamRef::native()
  Clock::time_point begin;
  double us, own_us;  // the latter without the nodes inside

  Clock::time_point end() const { return begin + as_duration(us); }
  static Clock::duration as_duration(double us) {
    return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double, std::micro>(us));
  }
};

class Recorder : public std::enable_shared_from_this<Recorder> {
 public:
  using Warn = std::function<void(const std::string&)>;
  Recorder(int device, Warn warn) : device_(device), warn_(std::move(warn)) {}
  Recorder(const Recorder&) = delete;

  bool is_on() const { return on_.load(std::memory_order_relaxed); }  // whether there is a profile
  // From its beginning to its end a profile is told of all that the session runs.
  class Profile;
  std::unique_ptr<Profile> start();
  // Whenever that becomes true or false: graphs of before are without what is wanted now.
  void when_switched(std::function<void()> then);

  std::shared_ptr<Timeline> timeline(device::StreamRef stream, Timeline::Of of);
  void add(std::shared_ptr<Timeline> of_run) noexcept;
  enum class Wait { no, yes };
  void collect(Wait wait) noexcept;  // reads what the device is through with, or all

 private:
  friend class Timeline;
  // Enough for the nodes of a few runs.
  static constexpr size_t kMostPendingMarks = 1 << 14, kMostIdleEvents = 1 << 12, kMostSpans = 1'000'000;
  struct Pending {
    std::shared_ptr<Timeline> timeline;
    int launch;  // of a graph
  };
  // A moment that the host and the device both know.
  struct Anchor {
    device::Event event;
    Clock::time_point time;
  };

  device::Event take_event();
  void wait_for(device::EventRef event) noexcept;
  void give_back(std::vector<device::Event>& events) noexcept;
  void note_lost() noexcept;
  void note_launch(Timeline& timeline);
  void read_launch(Timeline& timeline);  // with its mutex, as note_launch()
  void collect_all(Wait wait);
  bool is_over(const Pending& pending, Wait wait);
  void read(const Timeline& timeline);
  void set_anchor();
  void renew_anchor();
  Clock::time_point time_of(device::EventRef event);  // which has happened before the anchor
  void tell(const std::vector<Span>& spans, Clock::time_point begun);
  void stop(Profile& profile);

  const int device_;
  std::atomic<bool> on_{false};
  std::mutex collecting_;
  std::mutex anchoring_;  // guards the next three
  device::Stream stream_;
  Anchor anchor_;
  device::Event next_anchor_;
  std::mutex mutex_;  // guards the rest
  const Warn warn_;
  std::function<void()> switched_;
  std::vector<Profile*> profiles_;
  std::deque<Pending> pending_;
  size_t pending_marks_ = 0;
  std::vector<device::Event> idle_;
};

class Recorder::Profile {
 public:
  explicit Profile(std::shared_ptr<Recorder> recorder) : recorder_(std::move(recorder)) {}
  ~Profile() { recorder_->stop(*this); }
  Profile(const Profile&) = delete;
  // In the order in which they began. Waits for the device.
  std::vector<Span> take();

 private:
  friend class Recorder;
  const std::shared_ptr<Recorder> recorder_;
  const Clock::time_point since_ = Clock::now();
  std::vector<Span> spans_;  // guarded by the recorder's mutex, as is what comes
  bool has_lost_ = false;
};

}  // namespace encore::profile
