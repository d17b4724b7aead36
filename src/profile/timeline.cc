#include "profile/timeline.h"

#include <exception>
#include <utility>

#include "profile/recorder.h"

namespace encore::profile {

Timeline::Timeline(std::shared_ptr<Recorder> recorder, device::StreamRef stream, Of of)
    : recorder_(std::move(recorder)), stream_(stream), of_(of) {}

// A graph's events are to be there as long as a launch is under way.
Timeline::~Timeline() {
  if (launched_.ref().native()) recorder_->wait_for(launched_);
  recorder_->give_back(marks_);
}

int Timeline::mark() noexcept {
  if (is_finished_ || has_lost_) return -1;
  try {
    if (marks_.size() == kMostMarks) {
      recorder_->note_lost();
      has_lost_ = true;
      return -1;
    }
    device::Event event = recorder_->take_event();
    of_ == Of::graph ? event.ref().record_at_launch(stream_) : event.record(stream_);
    marks_.push_back(std::move(event));
    return int(marks_.size()) - 1;
  } catch (const std::exception&) {  // a capture that has become invalid, say
    has_lost_ = true;
    return -1;
  }
}

void Timeline::begin(const Node& node) { begin_at(mark(), node); }
void Timeline::end() noexcept { end_at(mark()); }
void Timeline::next(const Node& node) {
  const int between = mark();
  end_at(between);
  begin_at(between, node);
}

void Timeline::begin_at(int mark, const Node& node) {
  if (is_finished_) return;
  if (mark >= 0) laps_.push_back({node, mark, -1, open_.empty() ? -1 : open_.back()});
  open_.push_back(mark >= 0 ? int(laps_.size()) - 1 : -1);
}

void Timeline::end_at(int mark) noexcept {
  if (open_.empty()) return;
  if (open_.back() >= 0) laps_[size_t(open_.back())].end = mark;
  open_.pop_back();
}

void Timeline::finish() noexcept {
  const int last = open_.empty() ? -1 : mark();
  while (!open_.empty()) end_at(last);
  is_finished_ = true;
}

void Timeline::launch(const device::GraphExec& exec, device::StreamRef stream) {
  const std::lock_guard lock(mutex_);
  recorder_->read_launch(*this);
  begun_ = Clock::now();
  exec.launch(stream);
  stream_ = stream;
  recorder_->note_launch(*this);
}

}  // namespace encore::profile
