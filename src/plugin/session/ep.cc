#include "plugin/session/ep.h"

#include <algorithm>
#include <iterator>
#include <system_error>
#include <utility>

#include "device/capture_stream.h"
#include "device/conditional.h"
#include "device/device.h"
#include "device/external_stream.h"
#include "device/open_ahead.h"
#include "device/tuning_cache.h"
#include "memory/streams.h"
#include "plugin/host/fence.h"
#include "plugin/model/bodies.h"
#include "plugin/model/capability.h"
#include "plugin/model/fusion.h"
#include "plugin/model/graph_reading.h"
#include "plugin/options/library_settings.h"
#include "plugin/session/allocator.h"
#include "plugin/session/registration.h"
#include "plugin/session/stream.h"

namespace encore::plugin {
namespace {

std::string joined(const std::vector<std::string>& parts, size_t most) {
  std::string all;
  for (size_t i = 0; i < std::min(parts.size(), most); ++i) all += (i ? "; " : "") + parts[i];
  return parts.size() > most ? text(all, "; and ", parts.size() - most, " more") : all;
}

constexpr size_t kMostListed = 5;
constexpr const char* kSizedByData = "an output's size depends on data";

std::vector<std::string> left_to_others(const Claim& claim) {
  std::vector<std::string> nodes;
  for (const Claim::Declined& left : claim.declined)
    if (!left.only_shapes) nodes.push_back(left.node + ": " + left.why);
  return nodes;
}

std::vector<std::string> names_of(const std::vector<Claim::Declined>& nodes) {
  std::vector<std::string> names;
  for (const Claim::Declined& one : nodes) names.push_back(one.node);
  return names;
}

std::vector<std::string> obstacles_to_capture(const Claim& claim) {
  std::vector<std::string> obstacles;
  for (const std::string& node : names_of(claim.control_flow)) obstacles.push_back(node + ": control flow");
  for (const std::string& node : claim.sized_by_data) obstacles.push_back(node + ": " + kSizedByData);
  for (std::string& node : left_to_others(claim)) obstacles.push_back(std::move(node));
  for (const std::string& crossing : claim.crossings)
    obstacles.push_back("a copy between host and device: " + crossing);
  return obstacles;
}

// What no graph can hold for certain, and why; empty if there is nothing of the kind. onnxruntime refuses control flow,
// and copies to what others compute, without a name; sizes only once a run waits for them; and what others compute
// aside, with no copy, not at all, though a replay leaves it as it was.
std::string surely_uncapturable(const Claim& claim) {
  const auto because = [](const std::vector<std::string>& nodes, const char* why) {
    return text("because of ", joined(nodes, kMostListed), ": ", why);
  };
  if (!claim.control_flow.empty())
    return because(names_of(claim.control_flow), "onnxruntime captures no model with control flow");
  if (!claim.sized_by_data.empty())
    return because(claim.sized_by_data,
                   "an output's size depends on data, for which the host has to wait, and a graph's sizes are fixed");
  if (const auto nodes = left_to_others(claim); !nodes.empty())
    return because(nodes, "it is left to the CPU, and a graph that is replayed computes nothing there");
  return {};
}

// Null if the session has several streams.
std::unique_ptr<graph::SharedStream> shared_stream(const Options& options) {
  if (!options.has_user_compute_stream) {
    if (!options.use_ep_level_unified_stream) return nullptr;
    return std::make_unique<graph::SharedStream>(options.device_id);
  }
  try {
    return std::make_unique<graph::SharedStream>(
        device::external_stream(options.user_compute_stream, options.device_id, options.enable_cuda_graph),
        SyncStream::of_application(options.user_compute_stream));
  } catch (const Error& error) {
    throw Error(error.code(), text("provider option 'user_compute_stream': ", error.what()));
  }
}

}  // namespace

Ep::Ep(std::shared_ptr<Registration> registration, Options options, Log log, std::shared_ptr<memory::Arena> arena)
    : OrtEp{},
      registration_(std::move(registration)),
      options_(options),
      log_(log),
      arena_(arena ? std::move(arena)
                   : std::make_shared<memory::Arena>(options.device_id, memory_settings(options), "the session")),
      recorder_(std::make_shared<profile::Recorder>(options.device_id,
                                                    [log](const std::string& message) { log.warning(message); })),
      copies_(options.device_id, !options.do_copy_in_default_stream),
      order_(options.device_id, options.default_stream),
      faults_(options.device_id, options.has_user_compute_stream || options.use_ep_level_unified_stream),
      shared_(shared_stream(options)) {
  if (options_.enable_cuda_graph && !host_has(kGraphCaptureApi))
    log_.warning(why_eager_ = "enable_cuda_graph needs onnxruntime 1.26 or newer; this is " + ort().text +
                              ", so every run is eager");
  else if (options_.enable_cuda_graph)
    graphs_ = std::make_unique<graph::SessionGraphs>(
        device(), graph::Settings{.enabled = true,
                                  .warm_ups = options_.min_num_runs_before_cuda_graph_capture,
                                  .on_error = options_.graph_on_error,
                                  .warn = [this](const std::string& message) { log_.warning(message); },
                                  .default_stream = options_.default_stream,
                                  .shared = shared_.get(),
                                  .stream = [this] { return give_stream(); },
                                  .memory = arena_->source(),
                                  .recorder = recorder_});
  if (options_.has_regions() && !graphs_)
    captures_ = std::async(std::launch::async | std::launch::deferred, [device = device(), said = options_.auto_graph] {
      const device::Current open(device);
      return said ? *said : device::captures_survive_device_waits(device);
    });
  if (graphs_) {
    open_compiler();
    recorder_->when_switched([this] { graphs_->forget_captures(); });
  }
  // What is made now is no part of a capture that a run has left behind.
  graph::SessionGraphs::end_capture_here("a session was made in the thread that captures it");
  fill_callbacks();
  if (!options_.tuning_cache.empty() && device::TuningCache::of(options_.tuning_cache)->size() > 0) {
    open_beside([device = device()] { device::open_blas(device); });
    open_beside([&dnn = dnn()] { device::open_dnn(dnn); });
  }
}

Ep::~Ep() {
  forget_runs();
  recorder_->when_switched({});  // profiles may end later
  profile_.reset();
  graphs_.reset();  // these wait for launches that may report faults
  shared_.reset();
  if (ran_elsewhere_) memory::wait_for(memory::tails(device()));
  for (const auto& stream : idle_streams_) memory::delist(*stream);
}

Ep& Ep::of(const OrtKernelInfo* kernel) {
  const OrtEp* ep = nullptr;
  check(ort().ep->KernelInfo_GetEp(kernel, &ep));
  Ep& found = from(ep);
  if (!host_has(kSessionInitializationEndApi)) found.wait_for_libraries();
  found.check_model();
  return found;
}

void Ep::open_beside(std::function<void()> open) {
  try {
    libraries_.push_back(std::async(std::launch::async, std::move(open)));
  } catch (const std::system_error&) {  // then in the first run
  }
}

void Ep::wait_for_libraries() {
  for (const std::future<void>& library : libraries_) library.wait();
}

void Ep::check_model() {
  for (const std::string* why : {&ill_formed_, &uncapturable_}) {
    if (why->empty()) continue;
    if (is_new(*why)) log_.error(*why);
    throw Error(Code::invalid_input, *why);
  }
}

// onnxruntime takes as long to come here as the device takes to open.
void Ep::open_store() {
  if (!captures_.valid()) return;
  bool captures = false;
  try {
    captures = captures_.get();
  } catch (const std::exception& error) {
    ill_formed_ = error.what();
  }
  store_ = std::make_shared<automatic::GraphStore>(device(), arena_, captures ? size_t(options_.auto_graph_limit) : 0,
                                                   options_.auto_graph_mem_limit, recorder_);
  arena_->add(store_);
  memory::listen(store_);
  recorder_->when_switched([store = store_.get()] { store->forget_graphs(); });
  if (store_->captures()) open_compiler();
}

void Ep::open_compiler() {
  compiler_ = std::make_shared<device::Compiler>(
      device(), device::CompilerSettings{.when = options_.compile_elementwise,
                                         .kept = tuning_cache(),
                                         .warn = [log = log_](const std::string& message) { log.warning(message); }});
}

device::Blas& Ep::blas() {
  if (device::Blas* open = open_blas_.load(std::memory_order_acquire)) return *open;
  const std::lock_guard lock(opening_);
  if (!blas_) blas_ = std::make_unique<device::Blas>(device(), blas_settings(options_));
  open_blas_.store(blas_.get(), std::memory_order_release);
  return *blas_;
}

device::Dnn& Ep::dnn() {
  if (device::Dnn* open = open_dnn_.load(std::memory_order_acquire)) return *open;
  const std::lock_guard lock(opening_);
  if (!dnn_) {
    device::DnnSettings settings = dnn_settings(options_);
    settings.memory = [arena = arena_](size_t bytes) {
      return std::shared_ptr<void>(arena->reserve(bytes), [arena](void* address) { arena->free(address); });
    };
    settings.warn = [log = log_](const std::string& message) { log.warning(message); };
    settings.tuning = tuning_cache();
    dnn_ = std::make_unique<device::Dnn>(device(), std::move(settings));
  }
  open_dnn_.store(dnn_.get(), std::memory_order_release);
  return *dnn_;
}

std::shared_ptr<device::TuningCache> Ep::tuning_cache() {
  if (options_.tuning_cache.empty()) return nullptr;
  auto cache = device::TuningCache::of(options_.tuning_cache);
  const std::string complaint = cache->complaint();
  if (!complaint.empty() && !std::exchange(has_told_complaint_, true))
    log_.warning(text("provider option 'tuning_cache' helps nothing yet: ", complaint));
  return cache;
}

ops::Settings Ep::settings() const {
  return {.use_tf32 = options_.use_tf32,
          .strict_skip_layer_norm = options_.strict_skip_layer_norm,
          .fuses_elementwise = options_.fuse_elementwise,
          .compiler = compiler_};
}

// onnxruntime asks for subgraphs first, and for each graph again if it changes the layout. What counts is the last
// answer for the model itself; what is the same in all is said once.
void Ep::find_nodes(const OrtGraph* graph, OrtEpGraphSupportInfo* support) {
  const OrtNode* parent = nullptr;
  check(ort().api->Graph_GetParentNode(graph, &parent));
  if (is_of_others(graph)) return;
  open_store();
  Compiled compiled{registration_->name(), [&](const std::string& node) { return region_of(node).op.lock(); },
                    [&](const std::string& node) { return region_of(node).nodes; }, why_not_by_data(),
                    !parent && !graphs_};
  const auto has_bodies = [](const OrtNode* node) { return !bodies_of(node).empty(); };
  if (!options_.pad.empty() && std::ranges::any_of(nodes_of(graph), has_bodies)) {
    FusedGraph whole(graph, settings(), &compiled);
    for (const auto& [dim, lengths] : options_.pad)
      for (const auto& [node, why] : whole.refused_bodies(dim, lengths.back()))
        compiled.refused.emplace(node, text("'pad' pads '", dim, "': ", why));
  }
  Claim claim = examine(graph, support, registration_->name(), settings(), parts(), &compiled);
  claim_nodes(graph, support, claim, parent);
  tell_placement(claim, parent);
  fixed_layout_ = std::move(claim.fixed_layout);
  if (!claim.ill_formed.empty()) ill_formed_ = claim.ill_formed.front();
  if (parent) return;
  signature_ = Signature(graph);
  for (const auto& [dim, lengths] : options_.pad)
    if (const auto known = signature_.dimensions(); !known.contains(dim))
      ill_formed_ = text("provider option 'pad' names a dimension '", dim, "', which no input has; ",
                         known.empty() ? "all of theirs are numbers, or have no names"
                                       : "theirs are " + joined({known.begin(), known.end()}, kMostListed));
  if (graphs_) decide_on_graphs(claim);
}

Parts Ep::parts() const {
  if (!options_.fuse_nodes) return Parts::none;
  if (options_.has_regions()) return options_.lone_regions ? Parts::all_regions : Parts::regions;
  return graphs_ ? Parts::whole : Parts::none;
}

// Graphs are what lets the device decide; an eager run would have the host wait for it.
std::string Ep::why_not_by_data() const {
  const char* const unknown = "what it does is not known from shapes";
  if (!graphs_ && !(store_ && store_->captures())) return unknown;
  if (!options_.conditional_nodes) return text(unknown, ", and conditional_nodes is 0");
  const std::string why = device::why_no_conditionals(device());
  return why.empty() ? why : text(unknown, ", and ", why);
}

// Bodies have regions, but no groups of their own.
void Ep::claim_nodes(const OrtGraph* graph, OrtEpGraphSupportInfo* support, Claim& claim, bool is_body) {
  on_host_.reset();
  if (!is_body) known_dims_ = {};
  std::vector<Group> groups;
  if (!claim.parts.empty() || options_.has_regions()) {
    const char* const what =
        options_.has_regions() ? "a region" : "the model, which computes with shapes on the device";
    for (const auto& part : claim.parts) groups.push_back({part, what});
    on_host_ = std::move(claim.on_host);
  } else if (options_.fuse_nodes && !is_body) {
    groups = find_groups(graph, claim.nodes, registration_->name(), settings(), options_.prefer_nhwc, known_dims_);
  }
  std::set<const OrtNode*> fused;
  for (const Group& group : groups) {
    claim_together(support, group.nodes, group.what);
    fused.insert(group.nodes.begin(), group.nodes.end());
  }
  for (const OrtNode* node : claim.nodes)
    if (!fused.contains(node)) check(ort().ep->EpGraphSupportInfo_AddSingleNode(support, node));
  for (const auto& left : claim.shape_arithmetic)
    if (fused.contains(left.at)) claim.nodes.push_back(left.at);
  std::erase_if(claim.shape_arithmetic, [&](const auto& left) { return fused.contains(left.at); });
  note_placement(graph, claim, groups);
}

void Ep::note_placement(const OrtGraph* graph, const Claim& claim, const std::vector<Group>& groups) {
  std::map<const OrtNode*, PlacedNode> placed;
  for (const OrtNode* node : claim.nodes)
    placed[node] = {label_of(node), true, "",
                    !options_.has_regions()                 ? "alone: regions are off"
                    : claim.in_small_regions.contains(node) ? "alone: there are many larger regions"
                                                            : "alone: nothing beside it can run with it"};
  for (const auto* left : {&claim.declined, &claim.shape_arithmetic})
    for (const Claim::Declined& one : *left) placed[one.at] = {one.node, false, "", one.why};
  for (const Claim::Declined& one : claim.control_flow) {
    placed[one.at].node = one.node;
    placed[one.at].why = text("control flow, which onnxruntime runs", one.why.empty() ? "" : ": ", one.why);
  }
  const std::set<std::string> waiting(claim.sized_by_data.begin(), claim.sized_by_data.end());
  for (auto& [at, node] : placed)
    if (waiting.contains(node.node)) node.why = kSizedByData;
  for (const Group& group : groups) {
    const PlacedNode with{"", true, span_of(group.nodes), group.what};
    for (const OrtNode* node : group.nodes) {
      const std::string known = placed[node].node;
      placed[node] = with;
      placed[node].node = known.empty() ? label_of(node) : known;
      place_bodies(node, with);
    }
  }
  std::vector<PlacedNode>& nodes = placement_[place_of(graph)];
  nodes.clear();
  for (const OrtNode* node : nodes_of(graph))
    if (const auto found = placed.find(node); found != placed.end()) nodes.push_back(std::move(found->second));
}

// What is inside of a node that belongs to a part belongs to it, too.
void Ep::place_bodies(const OrtNode* node, const PlacedNode& with) {
  for (const NamedBody& body : bodies_of(node)) {
    for (PlacedNode& inner : placement_[place_of(body.graph)])
      inner = {inner.node, with.is_on_encore, with.part, with.why};
    for (const OrtNode* inner : nodes_of(body.graph)) place_bodies(inner, with);
  }
}

void Ep::claim_together(OrtEpGraphSupportInfo* support, const std::vector<const OrtNode*>& nodes, const char* what) {
  OrtNodeFusionOptions how{};
  how.ort_version_supported = ort().version;
  how.drop_constant_initializers = true;
  check(ort().ep->EpGraphSupportInfo_AddNodesToFuse(support, nodes.data(), nodes.size(), &how));
  const std::string line = text("Encore makes one of ", nodes.size(), " nodes, ", what);
  if (nodes.size() > 1 && is_new(line)) log_.verbose(line);
}

void Ep::tell_placement(const Claim& claim, bool is_subgraph) {
  const auto tell = [&](const std::string& line, bool aloud = false) {
    if (is_new(line)) aloud || options_.log_placement ? log_.warning(line) : log_.verbose(line);
  };
  for (const auto* left : {&claim.declined, &claim.shape_arithmetic})
    for (const Claim::Declined& one : *left) tell(one.node + " is not on Encore: " + one.why, one.seldom_elsewhere);
  tell(text("Encore takes ", claim.nodes.size(), " of ", claim.node_count, " nodes",
            is_subgraph ? " of a subgraph" : "", "; ", claim.shape_arithmetic.size(),
            " of the others are shape arithmetic"));
}

// Whether the model can be captured, and what follows if not. A refusal waits for the last answer: onnxruntime may yet
// replace a node by the function that it stands for.
void Ep::decide_on_graphs(const Claim& claim) {
  cannot_capture_ = false;
  why_eager_.clear();
  uncapturable_.clear();
  const std::vector<std::string> obstacles = obstacles_to_capture(claim);
  if (obstacles.empty()) return;
  const std::string list = joined(obstacles, kMostListed);
  std::string warning = "onnxruntime may refuse to capture the model, because of: " + list;
  if (options_.graph_on_error == graph::OnError::eager) {
    cannot_capture_ = true;
    warning = why_eager_ = "the model can't be captured, so every run is eager: " + list;
  } else if (const std::string why = surely_uncapturable(claim); !why.empty()) {
    // onnxruntime isn't asked to capture, and what is made first refuses; or the session's end, if nothing is made.
    cannot_capture_ = !claim.nodes.empty() || host_has(kSessionInitializationEndApi);
    uncapturable_ =
        "enable_cuda_graph=1 is impossible with this model, " + why + ". Switch it off, or set graph_on_error=eager";
    return;
  }
  if (is_new(warning)) log_.warning(warning);
}

bool Ep::is_new(const std::string& line) { return said_.insert(line).second; }

// A model that can't be captured has no graphs to tell of, but a reason, under the id of eager runs.
std::vector<graph::Report> Ep::graph_reports() const {
  std::vector<graph::Report> reports;
  if (!why_eager_.empty())
    reports.push_back({.id = graph::kEagerId, .state = graph::State::refused, .refusal = why_eager_});
  if (graphs_) std::ranges::move(graphs_->reports(), std::back_inserter(reports));
  return reports;
}

}  // namespace encore::plugin
