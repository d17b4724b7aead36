#include "profile/recorder.h"

#include <algorithm>
#include <exception>
#include <iterator>
#include <utility>

#include "device/device.h"
#include "device/error.h"
#include "device/graph.h"

namespace encore::profile {

namespace {

double between(device::EventRef from, device::EventRef to) {
  const auto time = device::elapsed_us(from, to);
  if (!time) fail(Code::internal, "an event of a profile has not happened");
  return *time;
}

}  // namespace

std::unique_ptr<Recorder::Profile> Recorder::start() {
  auto profile = std::make_unique<Profile>(shared_from_this());
  std::function<void()> switched;
  if (!is_on()) set_anchor();
  {
    const std::lock_guard lock(mutex_);
    if (profiles_.empty()) switched = switched_;
    profiles_.push_back(profile.get());
    on_ = true;
  }
  if (switched) switched();
  return profile;
}

void Recorder::stop(Profile& profile) {
  std::function<void()> switched;
  std::vector<device::Event> idle;
  std::deque<Pending> pending;
  {
    const std::lock_guard lock(mutex_);
    std::erase(profiles_, &profile);
    if (!profiles_.empty()) return;
    on_ = false;
    switched = switched_;
    idle.swap(idle_);
    pending.swap(pending_);
    pending_marks_ = 0;
  }
  if (switched) switched();
}

void Recorder::when_switched(std::function<void()> then) {
  const std::lock_guard lock(mutex_);
  switched_ = std::move(then);
}

std::shared_ptr<Timeline> Recorder::timeline(device::StreamRef stream, Timeline::Of of) {
  return std::make_shared<Timeline>(shared_from_this(), stream, of);
}

void Recorder::add(std::shared_ptr<Timeline> of_run) noexcept {
  bool is_much = false;
  {
    const std::lock_guard lock(mutex_);
    if (profiles_.empty() || of_run->marks_.empty()) return;
    pending_marks_ += of_run->marks_.size();
    pending_.push_back({std::move(of_run), 0});
    is_much = pending_marks_ > kMostPendingMarks;
  }
  if (is_much) collect(Wait::yes);
}

device::Event Recorder::take_event() {
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      device::Event event = std::move(idle_.back());
      idle_.pop_back();
      return event;
    }
  }
  const device::RelaxedCapture relaxed;
  return device::Event(device_, device::Timing::on);
}

void Recorder::wait_for(device::EventRef event) noexcept {
  try {
    const device::Current current(device_);
    const device::RelaxedCapture relaxed;
    event.synchronize();
  } catch (const std::exception&) {  // nothing runs any more
  }
}

void Recorder::give_back(std::vector<device::Event>& events) noexcept {
  const std::lock_guard lock(mutex_);
  if (profiles_.empty() || idle_.size() > kMostIdleEvents) return;
  std::ranges::move(events, std::back_inserter(idle_));
}

void Recorder::note_lost() noexcept {
  bool is_new = false;
  {
    const std::lock_guard lock(mutex_);
    for (Profile* profile : profiles_) is_new |= !std::exchange(profile->has_lost_, true);
  }
  if (is_new)
    warn_("a profile of the device has become too long, or could not be read: some of what nodes took is missing");
}

// ---- reading

void Recorder::note_launch(Timeline& timeline) {
  if (!timeline.launched_.ref().native()) timeline.launched_ = device::Event(device_);
  timeline.launched_.record(timeline.stream_);
  const std::lock_guard lock(mutex_);
  if (profiles_.empty()) return;
  ++timeline.launches_;
  pending_.push_back({timeline.shared_from_this(), timeline.launches_});
}

void Recorder::read_launch(Timeline& timeline) {
  if (timeline.read_ == timeline.launches_) return;
  timeline.read_ = timeline.launches_;
  try {
    const device::RelaxedCapture relaxed;
    timeline.launched_.synchronize();
    renew_anchor();
    read(timeline);
  } catch (const std::exception&) {
    note_lost();
  }
}

void Recorder::collect(Wait wait) noexcept {
  try {
    collect_all(wait);
  } catch (const std::exception&) {
    note_lost();
  }
}

void Recorder::collect_all(Wait wait) {
  const std::lock_guard turn(collecting_);
  std::deque<Pending> all;
  {
    const std::lock_guard lock(mutex_);
    all.swap(pending_);
    pending_marks_ = 0;
  }
  if (all.empty()) return;
  const device::Current current(device_);
  std::deque<Pending> later;
  std::vector<std::shared_ptr<Timeline>> over;  // of runs
  for (Pending& one : all) {
    Timeline& timeline = *one.timeline;
    const bool is_graph = timeline.of_ == Timeline::Of::graph;
    std::unique_lock of_graph(timeline.mutex_, std::defer_lock);
    if (is_graph) of_graph.lock();
    if (is_graph && timeline.read_ >= one.launch) continue;
    if (!is_over(one, wait))
      later.push_back(std::move(one));
    else if (is_graph)
      read_launch(timeline);
    else
      over.push_back(one.timeline);
  }
  if (!over.empty()) renew_anchor();
  for (const auto& timeline : over) try {
      read(*timeline);
    } catch (const std::exception&) {
      note_lost();
    }
  const std::lock_guard lock(mutex_);
  for (const Pending& one : later)
    if (!one.launch) pending_marks_ += one.timeline->marks_.size();
  pending_.insert(pending_.begin(), std::make_move_iterator(later.begin()), std::make_move_iterator(later.end()));
}

bool Recorder::is_over(const Pending& pending, Wait wait) {
  const Timeline& timeline = *pending.timeline;
  const device::Event& last = pending.launch ? timeline.launched_ : timeline.marks_.back();
  try {
    const device::RelaxedCapture relaxed;
    if (wait == Wait::yes) last.synchronize();
    return last.done();
  } catch (const std::exception&) {  // reading it tells
    return true;
  }
}

// The best of several: the host sees only that the event has happened by now.
void Recorder::set_anchor() {
  constexpr int kTries = 100;
  constexpr auto kGood = std::chrono::microseconds(20);
  const device::Current current(device_);
  const device::RelaxedCapture relaxed;
  const std::lock_guard lock(anchoring_);
  if (!stream_.ref()) {
    stream_ = device::Stream(device_);
    anchor_.event = device::Event(device_, device::Timing::on);
    next_anchor_ = device::Event(device_, device::Timing::on);
  }
  Clock::duration best = Clock::duration::max();
  for (int i = 0; i < kTries && best > kGood; ++i) {
    const Clock::time_point before = Clock::now();
    next_anchor_.record(stream_);
    next_anchor_.synchronize();
    const Clock::duration took = Clock::now() - before;
    if (took >= best) continue;
    best = took;
    std::swap(anchor_.event, next_anchor_);
    anchor_.time = before + took / 2;
  }
}

// From event to event it is the device that tells the time, so that what it did is told in its order. An anchor is as
// late as can be, so that no interval is so long that its parts get lost.
void Recorder::renew_anchor() {
  const device::RelaxedCapture relaxed;
  const std::lock_guard lock(anchoring_);
  next_anchor_.record(stream_);
  next_anchor_.synchronize();
  anchor_.time += Span::as_duration(between(anchor_.event, next_anchor_));
  std::swap(anchor_.event, next_anchor_);
}
Clock::time_point Recorder::time_of(device::EventRef event) {
  const std::lock_guard lock(anchoring_);
  return anchor_.time - Span::as_duration(between(event, anchor_.event));
}

// All of it is over.
void Recorder::read(const Timeline& timeline) {
  if (timeline.marks_.empty()) return;
  const device::RelaxedCapture relaxed;
  std::vector<double> at{0};  // by mark, from the first one
  for (size_t i = 1; i < timeline.marks_.size(); ++i)
    at.push_back(at.back() + between(timeline.marks_[i - 1], timeline.marks_[i]));
  const Clock::time_point first = time_of(timeline.marks_[0]);
  std::vector<Span> spans(timeline.laps_.size());
  for (size_t i = 0; i < spans.size(); ++i) {
    const Timeline::Lap& lap = timeline.laps_[i];
    Span& span = spans[i];
    const double begin = at[size_t(lap.begin)];
    span = {lap.node.name, lap.node.op, timeline.of_ == Timeline::Of::graph, 0, timeline.stream_.native()};
    span.begin = first + Span::as_duration(begin);
    span.us = span.own_us = lap.end < 0 ? 0 : at[size_t(lap.end)] - begin;
    if (lap.end < 0) span.name = nullptr;  // that was lost
    if (lap.outer < 0) continue;
    spans[size_t(lap.outer)].own_us -= span.us;
    span.depth = spans[size_t(lap.outer)].depth + 1;
  }
  std::erase_if(spans, [](const Span& span) { return !span.name; });
  tell(spans, timeline.begun_);
}

void Recorder::tell(const std::vector<Span>& spans, Clock::time_point begun) {
  bool has_lost = false;
  {
    const std::lock_guard lock(mutex_);
    for (Profile* profile : profiles_) {
      if (begun < profile->since_) continue;
      const size_t room = std::min(spans.size(), kMostSpans - profile->spans_.size());
      profile->spans_.insert(profile->spans_.end(), spans.begin(), spans.begin() + ptrdiff_t(room));
      has_lost |= room < spans.size();
    }
  }
  if (has_lost) note_lost();
}

std::vector<Span> Recorder::Profile::take() {
  recorder_->collect(Wait::yes);
  const std::lock_guard lock(recorder_->mutex_);
  std::ranges::stable_sort(spans_, {}, &Span::begin);
  return std::move(spans_);
}

}  // namespace encore::profile
