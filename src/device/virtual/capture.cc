#include "device/virtual/capture.h"

#include <algorithm>
#include <iterator>

#include "device/error.h"
#include "device/label.h"
#include "device/virtual/forked.h"
#include "device/virtual/stream_state.h"

namespace encore::device {

namespace virtual_gpu {
namespace {

// Captures under way, for calls which know no stream.
struct UnderWay {
  std::mutex mutex;
  std::vector<std::shared_ptr<Capture>> captures;
  std::atomic<int> count{0};
};
UnderWay& under_way() {
  static auto& under_way = *new UnderWay;
  return under_way;
}

thread_local int relaxed_depth = 0;

void remove_from_under_way(const Capture& capture) {
  std::lock_guard lock(under_way().mutex);
  under_way().count -= int(std::erase_if(under_way().captures, [&](auto& each) { return each.get() == &capture; }));
}

// "synchronizing ... (node Conv_1)"
std::string with_label(std::string_view what) {
  const std::string_view label = Label::current();
  return label.empty() ? std::string(what) : text(what, " (node ", label, ")");
}

void add_all(std::vector<int>& to, const std::vector<int>& nodes) {
  std::vector<int> all;
  std::set_union(to.begin(), to.end(), nodes.begin(), nodes.end(), std::back_inserter(all));
  to = std::move(all);
}

}  // namespace

void Capture::invalidate(std::string_view why) {
  std::lock_guard lock(mutex_);
  if (status_ != CaptureStatus::active) return;
  why_ = with_label(why);
  status_ = CaptureStatus::invalidated;
}

void Capture::forbid(std::string_view what) {
  invalidate(what);
  throw Error(Code::capture_forbidden, text(with_label(what), " is forbidden; the capture is now invalid"));
}

void Capture::check() {
  std::lock_guard lock(mutex_);
  check_held();
}

void Capture::check_held() const {
  if (status_ == CaptureStatus::invalidated)
    fail(Code::capture_failed, "the stream's capture is invalid, because of ", why_, "; end it first");
  if (status_ == CaptureStatus::none) fail(Code::capture_failed, "the capture was ended by another thread");
}

void Capture::add(int lane, NodeKind kind, std::string_view name, Work work) {
  std::lock_guard lock(mutex_);
  add_held(lane, {kind, name, Label::current(), std::move(work), {}, lane});
}

void Capture::add(int lane, std::shared_ptr<const Conditional> decided) {
  std::lock_guard lock(mutex_);
  add_held(lane, {NodeKind::graph, {}, Label::current(), {}, {}, lane, std::move(decided)});
}

void Capture::add_held(int lane, Program::Node node) {
  check_held();
  node.after = std::move(tails_[lane]);
  tails_[lane] = {int(program_.nodes.size())};
  program_.nodes.push_back(std::move(node));
}

std::vector<int> Capture::tail(int lane) {
  std::lock_guard lock(mutex_);
  check_held();
  return tails_[lane];
}

std::optional<int> Capture::latest_kernel(int lane) {
  const std::vector<int> nodes = tail(lane);
  std::lock_guard lock(mutex_);
  if (is_body || nodes.size() != 1 || program_.nodes[size_t(nodes[0])].kind != NodeKind::kernel) return std::nullopt;
  return nodes[0];
}

int Capture::fork(const std::vector<int>& after) {
  std::lock_guard lock(mutex_);
  check_held();
  tails_.push_back(after);
  return int(tails_.size()) - 1;
}

void Capture::join(int lane, const std::vector<int>& after) {
  std::lock_guard lock(mutex_);
  check_held();
  add_all(tails_[lane], after);
}

int Capture::go_on(int lane, std::vector<int> after) {
  std::lock_guard lock(mutex_);
  check_held();
  std::ranges::sort(after);
  const std::vector<int>& tail = tails_[size_t(lane)];
  if (tail == after) return lane;
  left_.insert(left_.end(), tail.begin(), tail.end());
  tails_.push_back(std::move(after));
  return int(tails_.size()) - 1;
}

void Capture::keep(std::shared_ptr<void> memory) {
  std::lock_guard lock(mutex_);
  check_held();
  program_.memory.push_back(std::move(memory));
}

void Capture::exchange(Exchange exchange) {
  std::lock_guard lock(mutex_);
  check_held();
  program_.exchanges.push_back(std::move(exchange));
}

bool Capture::keeps(const void* memory) {
  std::lock_guard lock(mutex_);
  return std::ranges::any_of(program_.memory, [&](auto& each) { return each.get() == memory; });
}

void Capture::started(const std::shared_ptr<Capture>& capture) {
  std::lock_guard lock(under_way().mutex);
  under_way().captures.push_back(capture);
  ++under_way().count;
}

std::shared_ptr<const Program> Capture::end() {
  remove_from_under_way(*this);
  std::lock_guard lock(mutex_);
  const CaptureStatus was = status_.exchange(CaptureStatus::none);
  if (was == CaptureStatus::invalidated) fail(Code::capture_failed, "the capture was invalidated by ", why_);
  if (was == CaptureStatus::none) fail(Code::capture_failed, "the capture was ended by another thread");

  check_joined_held();
  program_.lanes = int(tails_.size());
  return std::make_shared<const Program>(std::move(program_));
}

void Capture::check_joined() {
  std::lock_guard lock(mutex_);
  check_held();
  check_joined_held();
}

// Every node must come before the end of the origin.
void Capture::check_joined_held() const {
  const auto& nodes = program_.nodes;
  std::vector<bool> joined(nodes.size());
  for (const auto* known : {&tails_[size_t(origin->lane)], &left_})
    for (int last : *known) joined[size_t(last)] = true;
  for (size_t n = nodes.size(); n-- > 0;) {
    if (!joined[n])
      fail(Code::capture_failed,
           "the capture was unjoined at its end: ", nodes[n].name.empty() ? "a copy" : nodes[n].name,
           nodes[n].label.empty() ? "" : " of node ", nodes[n].label,
           " runs on a forked stream for whose work the first stream does not wait");
    for (int before : nodes[n].after) joined[size_t(before)] = true;
  }
}

void Capture::abandon() {
  remove_from_under_way(*this);
  std::lock_guard lock(mutex_);
  status_ = CaptureStatus::none;
  program_ = {};
}

namespace {

template <class Forbids>
void check_call(std::string_view what, const Forbids& forbids) {
  std::vector<std::shared_ptr<Capture>> broken;
  {
    std::lock_guard lock(under_way().mutex);
    std::ranges::copy_if(under_way().captures, std::back_inserter(broken), forbids);
  }
  if (broken.empty()) return;
  for (auto& capture : broken) capture->invalidate(what);
  throw Error(Code::capture_forbidden, text(with_label(what), " is forbidden; the capture is now invalid"));
}

}  // namespace

void check_unsafe_call(std::string_view what) {
  check_not_forked();
  if (relaxed_depth > 0 || under_way().count.load() == 0) return;
  check_call(what, [self = std::this_thread::get_id()](const auto& capture) {
    return capture->mode == CaptureMode::global ||
           (capture->mode == CaptureMode::thread_local_ && capture->owner == self);
  });
}

void check_device_wait(int device, std::string_view what) {
  check_call(what, [device](const auto& capture) {
    return capture->origin->device == device && !capture->origin->for_captures;
  });
}

}  // namespace virtual_gpu

using namespace virtual_gpu;

RelaxedCapture::RelaxedCapture() noexcept : previous_(relaxed_depth) { ++relaxed_depth; }
RelaxedCapture::~RelaxedCapture() { relaxed_depth = previous_; }

}  // namespace encore::device
