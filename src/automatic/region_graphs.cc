#include "automatic/region_graphs.h"

#include <algorithm>
#include <iterator>
#include <mutex>
#include <utility>

#include "automatic/captured_runs.h"
#include "automatic/collected.h"
#include "device/device.h"
#include "device/error.h"
#include "device/label.h"
#include "device/rehearsal.h"
#include "graph/capture_gate.h"
#include "memory/block_index.h"

namespace encore::automatic {

namespace {

using ops::Tensor;

constexpr size_t kMostKeys = 1024;
constexpr size_t kMostEvents = 8192, kMostEventsOfNode = 32;  // of scratch, in what is planned and captured
constexpr const char* kHeldBack = "captures are held back (ep.cuda.captures=hold)";
constexpr uint64_t kFirstPatience = 16;  // runs, until a capture is tried again; twice as many each time

// Has the program's context for an eager run: says body(context).
template <class Body>
void run_eagerly(ops::Context& outer, const std::vector<Longer>& longer, const Body& body) {
  if (longer.empty()) return body(outer);
  LongerRun run(outer, longer);
  body(run);
}

}  // namespace

const Longer* RegionGraphs::Run::find_longer(size_t input) const { return automatic::find_longer(longer, int(input)); }

size_t RegionGraphs::Hash::operator()(const Key& key) const {
  size_t hash = 14695981039346656037u;
  for (int64_t word : key) hash = (hash ^ size_t(word)) * 1099511628211u;
  return hash;
}

RegionGraphs::RegionGraphs(Region region, const ops::Op& program, GraphStore& store)
    : program_(program), store_(store), inputs_(std::move(region.inputs)), outputs_(std::move(region.outputs)) {
  counts_.name = std::move(region.name), counts_.nodes = region.nodes;
  for (ops::GrowingDim& dim : region.growing) growths_.emplace_back(std::move(dim));
  if (!store_.captures()) refusal_ = "graphs are captured with auto_graph=1, or safe where the driver allows for it";
  store_.add(this);
}
RegionGraphs::~RegionGraphs() { store_.remove(this); }

void RegionGraphs::run(ops::Context& outer) {
  if (outer.stream().capture_status() != device::CaptureStatus::none) {
    note({&RegionReport::in_captures, {}});
    return program_.run(outer);
  }
  thread_local Border spare;  // memory of the run before
  Run run{std::exchange(spare, {}), outer, store_.now()};
  std::shared_ptr<const Known> known;
  bool goes_by_steps = false, has_room = false;  // the latter for outputs and scratch ahead
  try {
    run.read_inputs();
    if (!growths_.empty() && store_.captures()) lengthen(run);
    run.make_key();
    {
      const std::lock_guard lock(mutex_);
      Shapes& shapes = find(run.key, run.now);
      run.heat = shapes.heat.add(run.now);
      known = shapes.known;
      goes_by_steps = shapes.is_too_long;
    }
    if (known && known->record.of == Record::Of::one_way) {
      known = rehearsed(run, *known);
      goes_by_steps = !known;
    }
    has_room = known && store_.has_room(known->record.output_bytes + known->plan().bytes(), run.now);
    const size_t outputs = has_room && store_.captures() ? size_t(outer.output_count()) : 0;
    for (size_t i = 0; i < outputs; ++i)
      run.at.push_back(known->is_made_ahead(i) ? outer.output_address(int(i), *known->record.outputs[i]) : nullptr);
  } catch (const Error& error) {
    note({&RegionReport::refused, error.what()});
    return program_.run(outer);  // the node inside that wants it fails, and has its name in the error
  }
  if (goes_by_steps) return run_step_by_step(run, refused(run));
  if (!known) return record(run);
  if (!has_room) return run_step_by_step(run, crowded(known->record.output_bytes + known->plan().bytes()));
  store_.captures() ? run_with(run, known) : run_as_planned(run, *known, {&RegionReport::refused, {}});
  spare = std::move(static_cast<Border&>(run));
}

void RegionGraphs::Run::read_inputs() {
  inputs.clear(), at.clear();
  for (int i = 0, count = outer.input_count(); i < count; ++i) {
    const auto& input = inputs.emplace_back(outer.find_outline(i));
    at.push_back(input ? input->data : nullptr);
  }
}

void RegionGraphs::Run::make_key() {
  size_t words = 0;
  for (const auto& input : inputs) words += 1 + (input ? input->dims.size() : 0);
  key.resize(words);
  int64_t* word = key.data();
  for (const auto& input : inputs) {
    *word++ = input ? std::ssize(input->dims) : -1;
    if (!input) continue;
    for (const int64_t dim : input->dims) *word++ = dim;
  }
}

void RegionGraphs::lengthen(Run& run) {
  const std::lock_guard lock(mutex_);
  if (!refusal_.empty()) return;
  for (Growth& growth : growths_) growth.lengthen(run.outer, run.inputs, run.longer);
  for (const Longer& longer : run.longer) run.inputs[size_t(longer.input)]->dims = longer.tensor.shape.dims();
  counts_.grown += !run.longer.empty();
}

// By a graph, if there is one or can be.
void RegionGraphs::run_with(const Run& run, const std::shared_ptr<const Known>& shared) {
  const Known& known = *shared;
  const auto inputs = size_t(run.outer.input_count());
  if (may_be_lost(known.record, run.at, known.bytes, inputs))
    return run_step_by_step(run, {&RegionReport::refused,
                                  "an output lies where an input does, which a run that collects too much for its "
                                  "graph reads again"});
  std::shared_ptr<Replay> replay, wanted;  // what is wanted is to be captured
  bool replaces = false;
  Reason why;
  {
    const std::lock_guard lock(mutex_);
    Shapes& shapes = find(run.key, run.now);
    const bool may_capture = refusal_.empty() && run.now >= shapes.next_attempt;
    const auto want = [&](std::vector<bool> staged) {
      for (const Longer& longer : run.longer) staged[size_t(longer.input)] = true;
      wanted = std::make_shared<Replay>(run.outer.stream(), run.outer.fault().cell, run.at, std::move(staged));
      wanted->known = shared;
      wanted->copies = std::ranges::count(wanted->staged, true);
      wanted->spare = wanted->copies - int64_t(run.longer.size());
      wanted->nodes = shapes.nodes;
      replaces =
          std::ranges::any_of(shapes.replays, [&](const auto& other) { return is_replaced(*other, *wanted, known); });
    };
    if ((replay = find_replay(shapes, known, run))) {
      ++counts_.replays, counts_.staged += replay->copies;
      if (replay->spare && stays(shapes.places_on(replay->stream), run) && may_capture)
        want(std::vector<bool>(run.at.size()));
    } else {
      Places& places = shapes.places_on(run.outer.stream());
      const bool is_familiar = places.was_seen(run.at, known.bytes, most_large());
      if (!may_capture)
        why = {&RegionReport::refused, refusal(shapes)};
      else if (is_familiar)
        want(places.moving());
      else
        why = moved(places, known);
    }
  }
  const bool is_replay = bool(replay);
  if (wanted) wanted->layout = layout(*wanted, known);
  if (wanted && !store_.has_room(wanted->layout.bytes, run.now)) why = crowded(wanted->layout.bytes), wanted.reset();
  const auto makes_room = [&] {
    const std::string none =
        store_.make_room({run.heat, wanted->stream, wanted->layout.bytes, wanted->nodes, replaces}, run.now);
    if (!none.empty()) why = {&RegionReport::crowded, none};
    return none.empty();
  };
  if (wanted && makes_room()) {
    try {
      capture(run, known, *wanted);
      note_nodes(run, wanted->nodes);
      if (makes_room()) keep(wanted, run, known), replay = std::move(wanted);
    } catch (const std::exception& error) {
      why = {&RegionReport::refused, error.what()};
      refuse(run, error);
    }
  }
  if (!replay) return run_as_planned(run, known, why);
  const Record& record = replay->known->record;
  bool had_room = true;
  std::unique_lock launching(replay->workspace->launching());
  try {
    launch(*replay, run, known);
  } catch (const std::exception& error) {
    launching.unlock();
    if (!drop_failed(replay, is_replay, run, error)) throw;
    return run_as_planned(run, known, {&RegionReport::refused, error.what()});
  }
  if (!record.collected.empty())
    had_room = give_out(run.outer, record, std::span(replay->at).subspan(inputs), replay->counts);
  launching.unlock();
  if (!had_room) record_again(run);
}

RegionGraphs::Shapes& RegionGraphs::find(const Key& key, uint64_t now) {
  if (latest_ && latest_->first == key) return latest_->second;  // sooner than by its hash
  if (const auto found = shapes_.find(key); found != shapes_.end()) return (latest_ = &*found)->second;
  if (shapes_.size() >= kMostKeys) {
    std::vector<double> heats;
    for (const auto& [other, shapes] : shapes_) heats.push_back(shapes.heat.at(now));
    std::ranges::nth_element(heats, heats.begin() + kMostKeys / 2);
    const double median = heats[kMostKeys / 2];
    latest_ = nullptr;
    std::erase_if(shapes_,
                  [&](const auto& one) { return one.second.replays.empty() && one.second.heat.at(now) <= median; });
  }
  return (latest_ = &*shapes_.try_emplace(key).first)->second;
}

bool RegionGraphs::stays(Places& places, const Run& run) {
  Addresses at = run.at;
  for (const Longer& longer : run.longer) at[size_t(longer.input)] = nullptr;  // which are copied anyway
  return places.stay(std::move(at));
}

// Whether another graph makes this one useless. One without copies is for tensors that stay, beside it.
bool RegionGraphs::is_replaced(const Replay& replay, const Replay& by, const Known& known) {
  if (replay.stream != by.stream || replay.faults != by.faults || (replay.spare && !by.spare)) return false;
  for (size_t i = 0; i < known.bytes.size(); ++i)
    if (is_large(known.bytes[i]) && (replay.staged[i] != by.staged[i] || (!by.staged[i] && replay.at[i] != by.at[i])))
      return false;
  return true;
}

void RegionGraphs::note_nodes(const Run& run, size_t nodes) {
  const std::lock_guard lock(mutex_);
  find(run.key, run.now).nodes = nodes;
}

void RegionGraphs::keep(const std::shared_ptr<Replay>& replay, const Run& run, const Known& known) {
  std::vector<std::shared_ptr<Replay>> replaced;  // let go of after the lock
  const std::lock_guard lock(mutex_);
  auto& replays = find(run.key, run.now).replays;
  const auto goes = [&](const auto& other) { return is_replaced(*other, *replay, known); };
  std::ranges::copy_if(replays, std::back_inserter(replaced), goes);
  std::erase_if(replays, goes);
  if (store_.is_profiled() == bool(replay->timeline)) replays.push_back(replay);  // still, since the capture began
  ++counts_.captures;
  counts_.staged += replay->copies;
}

// With the fewest copies.
std::shared_ptr<RegionGraphs::Replay> RegionGraphs::find_replay(Shapes& shapes, const Known& known, const Run& run) {
  const Addresses& at = run.at;
  const device::StreamRef stream = run.outer.stream();
  const device::FaultCell* const faults = run.outer.fault().cell;
  bool moved = false;
  std::shared_ptr<Replay> best;
  for (const auto& replay : shapes.replays) {
    if (replay->stream != stream || replay->faults != faults) continue;
    if (replay->copies - replay->spare != std::ssize(run.longer)) continue;  // it copies otherwise
    bool fits = true;
    for (size_t i = 0; i < at.size() && fits; ++i)
      fits = replay->at[i] == at[i] || replay->staged[i] || known.bytes[i] == 0;
    if (fits && (!best || replay->copies < best->copies)) best = replay;
    moved |= !fits;
  }
  if (best) return best;
  if (moved) shapes.places_on(stream).note_misfit(known.bytes);
  return nullptr;
}

// False if the device can't be used any more.
bool RegionGraphs::refuse(const Run& run, const std::exception& error) {
  const bool is_usable = device::clear_error(store_.device());
  const auto* const known_error = dynamic_cast<const Error*>(&error);
  const std::lock_guard lock(mutex_);
  Shapes& shapes = find(run.key, run.now);
  shapes.refusal = error.what();
  shapes.patience = std::max(kFirstPatience, shapes.patience * 2);
  shapes.next_attempt = run.now + shapes.patience;
  if (!is_usable) refusal_ = error.what();
  if (known_error && known_error->code() == Code::internal) shapes.known.reset();  // it may go otherwise once tuned
  return is_usable;
}

// A launch failed, and has done nothing. False if the device has, too.
bool RegionGraphs::drop_failed(const std::shared_ptr<Replay>& replay, bool is_replay, const Run& run,
                               const std::exception& error) {
  const bool is_usable = refuse(run, error);
  const std::lock_guard lock(mutex_);
  counts_.replays -= is_replay, counts_.staged -= replay->copies;
  std::erase(find(run.key, run.now).replays, replay);
  return is_usable;
}

void RegionGraphs::record(const Run& run) {
  auto known = std::make_shared<Known>();
  Addresses at = run.at;
  const auto note = [&](const Tensor& tensor) { known->bytes.push_back(tensor.data ? tensor.bytes() : 0); };
  run_eagerly(run.outer, run.longer, [&](ops::Context& context) {
    RecordedRun recorded(context, most_events(), store_.captures());
    program_.run(recorded);
    known->record = recorded.take();
    for (int i = 0; i < context.input_count(); ++i) note(context.find_input(i) ? *context.find_input(i) : Tensor());
    for (int i = 0; i < context.output_count(); ++i) {
      const auto& shape = known->record.outputs[size_t(i)];
      const Tensor output = shape ? context.output(i, *shape) : Tensor();
      note(output);
      at.push_back(output.data);
    }
  });
  Record& record = known->record;
  if (record.of == Record::Of::one_way && record.is_too_long) record.scratch.clear(), record.is_too_long = false;
  const std::lock_guard lock(mutex_);
  ++counts_.first_runs;
  Shapes& shapes = find(run.key, run.now);
  if (known->record.is_too_long) return note_too_long(shapes);
  shapes.known = std::move(known);
  shapes.places_on(run.outer.stream()).was_seen(at, shapes.known->bytes, most_large());
}

// With more room for what it collects, of which there was more than its graphs have room for.
void RegionGraphs::record_again(const Run& run) {
  Run again = run;
  again.at.resize(size_t(run.outer.input_count()));
  std::vector<std::shared_ptr<Replay>> gone;  // let go of after the lock
  {
    const std::lock_guard lock(mutex_);
    gone.swap(find(run.key, run.now).replays);
  }
  record(again);
}

// Many times what the nodes take if each runs once.
size_t RegionGraphs::most_events() const { return kMostEvents + kMostEventsOfNode * counts_.nodes; }

void RegionGraphs::note_too_long(Shapes& shapes) {
  shapes.is_too_long = true;
  shapes.refusal = "it takes as many steps as long loops do";
}

// What `work` says to `run` on the stream.
template <class Captured>
device::Graph RegionGraphs::captured_on(device::StreamRef stream, const Captured& run,
                                        const std::function<void()>& work) {
  device::begin_capture(stream, device::CaptureMode::thread_local_);
  try {
    work();
    return device::end_capture(stream);
  } catch (const std::exception& error) {
    device::abandon_capture(stream);
    const std::lock_guard lock(mutex_);
    if (run.waits()) refusal_ = error.what();
    throw;
  }
}

// What is known once all ways between which data decides have been captured, and that dropped. Null: not in this run.
std::shared_ptr<const RegionGraphs::Known> RegionGraphs::rehearsed(const Run& run, const Known& one_way) {
  {
    const std::lock_guard lock(mutex_);
    if (!store_.captures() || !refusal_.empty() || run.now < find(run.key, run.now).next_attempt) return nullptr;
  }
  auto known = std::make_shared<Known>();
  known->bytes = one_way.bytes;
  try {
    known->record = rehearse(run, one_way.record);
  } catch (const std::exception& error) {
    refuse(run, error);
    return nullptr;
  }
  const std::lock_guard lock(mutex_);
  Shapes& shapes = find(run.key, run.now);
  if (known->record.is_too_long) return note_too_long(shapes), nullptr;
  const auto inputs = size_t(run.outer.input_count());
  for (const Collected& collected : known->record.collected) known->bytes[inputs + collected.output] = 0;
  return shapes.known = std::move(known);
}

Record RegionGraphs::rehearse(const Run& run, const Record& one_way) {
  const graph::capture_gate::Pass pass(std::try_to_lock);
  if (!pass) fail(Code::capture_failed, kHeldBack);
  GraphStore::LentStream stream(store_);
  Rehearsal rehearsal(run.outer, run.longer, run.at, stream, one_way, most_events());
  const profile::Timeline::Scope untimed(nullptr);
  const device::RehearsalScope scope;  // scratch is allocated, and kernels that have never run are loaded
  try {
    captured_on(stream, rehearsal, [&] { program_.run(rehearsal); });
  } catch (const std::exception&) {
    if (!rehearsal.is_too_long()) throw;
  }
  return rehearsal.take();
}

void RegionGraphs::run_as_planned(const Run& run, const Known& known, const Reason& why) {
  if (known.record.of != Record::Of::every_run) return run_step_by_step(run, why);
  void* memory = nullptr;
  try {
    memory = run.outer.scratch(known.plan().bytes());
  } catch (const Error& error) {  // in one piece
    if (error.code() != Code::out_of_memory) throw;
    return run_step_by_step(run, why);
  }
  bool went_otherwise = false;
  run_eagerly(run.outer, run.longer, [&](ops::Context& context) {
    PlannedRun planned(context, known.record, known.plan(), memory);
    program_.run(planned);
    went_otherwise = planned.went_otherwise();
  });
  note(why);
  if (!went_otherwise) return;
  const std::lock_guard lock(mutex_);
  find(run.key, run.now).known.reset();  // recorded again
}

// Which takes what each step needs when that comes, and gives it back then.
void RegionGraphs::run_step_by_step(const Run& run, const Reason& why) {
  run_eagerly(run.outer, run.longer, [&](ops::Context& context) { program_.run(context); });
  note(why);
}

RegionGraphs::Layout RegionGraphs::layout(const Replay& replay, const Known& known) {
  const size_t inputs = known.bytes.size() - known.record.outputs.size();
  size_t bytes = known.plan().bytes();
  Layout layout;
  for (size_t i = 0; i < replay.at.size(); ++i) {
    layout.offsets.push_back(bytes);
    if (replay.staged[i]) bytes += memory::whole_units(known.bytes[i]);
  }
  for (const Collected& collected : known.record.collected) {
    layout.offsets[inputs + collected.output] = bytes;
    bytes += memory::whole_units(bytes_of_room(known.record, collected));
  }
  layout.counts = bytes;
  layout.bytes = bytes + known.record.collected.size() * sizeof(int64_t);
  return layout;
}

void RegionGraphs::capture(const Run& run, const Known& known, Replay& replay) {
  const auto inputs = size_t(run.outer.input_count());
  replay.workspace = store_.workspace(replay.stream, replay.layout.bytes);
  replay.counts = reinterpret_cast<int64_t*>(replay.workspace->at() + replay.layout.counts);
  for (size_t i = 0; i < replay.at.size(); ++i)
    if (replay.staged[i] || (i >= inputs && !known.is_made_ahead(i - inputs)))
      replay.at[i] = replay.workspace->at() + replay.layout.offsets[i];
  for (size_t i = 0; i < replay.at.size(); ++i)
    if (replay.staged[i] && known.bytes[i] > 0) replay.copied.push_back(i);

  const graph::capture_gate::Pass pass(std::try_to_lock);
  if (!pass) fail(Code::capture_failed, kHeldBack);
  GraphStore::LentStream stream(store_);
  CapturedRun captured(run.outer, run.longer, replay.at, stream, known.record, known.plan(), replay.workspace->at(),
                       replay.counts);
  const profile::Node copying{device::Label::current(), "copies of what moves"};
  replay.graph = captured_on(stream, captured, [&] {
    if (store_.is_profiled()) replay.timeline = store_.recorder().timeline(stream, profile::Timeline::Of::graph);
    const profile::Timeline::Scope timed(replay.timeline.get());
    profile::Steps steps;
    if (replay.copies) steps.next(copying);
    replay.in = device::CapturedCopies(stream, copies(replay, run, known, true));
    steps.end();
    program_.run(captured);
    if (replay.copies) steps.next(copying);
    replay.out = device::CapturedCopies(stream, copies(replay, run, known, false));
    steps.end();
    if (captured.went_otherwise()) fail(Code::internal, "it does not go as the first run did");
  });
  replay.nodes = replay.graph.size();
  replay.exec = replay.graph.instantiate();
  if (replay.copies == 0) replay.graph = {};
  replay.is_bare = replay.copies == 0 && !replay.timeline;
  replay.exec.upload(replay.stream);
}

std::vector<device::Copy> RegionGraphs::copies(const Replay& replay, const Run& run, const Known& known, bool in) {
  const size_t inputs = known.bytes.size() - known.record.outputs.size();
  std::vector<device::Copy> copies;
  for (const size_t i : replay.copied) {
    if ((i < inputs) != in) continue;
    void *const own = replay.at[i], *const at = run.at[i];
    const Longer* const longer = in ? run.find_longer(i) : nullptr;
    copies.push_back(longer ? longer->copy(at, own)
                     : in   ? device::Copy{at, own, known.bytes[i]}
                            : device::Copy{own, at, known.bytes[i]});
  }
  return copies;
}

void RegionGraphs::launch(Replay& replay, const Run& run, const Known& known) {
  if (replay.is_bare) return replay.exec.launch(replay.stream);
  if (replay.copies) {
    replay.in.set(replay.exec, copies(replay, run, known, true));
    replay.out.set(replay.exec, copies(replay, run, known, false));
  }
  if (!replay.timeline) return replay.exec.launch(replay.stream);
  profile::Steps steps;
  steps.next({nullptr, nullptr});  // the graph's nodes are on a timeline of their own
  replay.timeline->launch(replay.exec, replay.stream);
}

}  // namespace encore::automatic
