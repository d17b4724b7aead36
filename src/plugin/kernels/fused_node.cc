#include "plugin/kernels/fused_node.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>

#include "automatic/region_graphs.h"
#include "fuse/padded_run.h"
#include "fuse/program.h"
#include "plugin/host/fence.h"
#include "plugin/kernels/computed_constants.h"
#include "plugin/kernels/kernel_run.h"
#include "plugin/model/fusion.h"
#include "plugin/model/graph_reading.h"
#include "plugin/model/plan_files.h"

namespace encore::plugin {

// What a fused node runs. That of a body is run by the region around it, if that has the node with the body; by graphs
// of its own if the other has none, as that would be too long.
class Region final : public ops::Op, public fuse::CompiledPart {
 public:
  Region(fuse::Plan plan, std::string nodes, const std::vector<fuse::Padding>& paddings)
      : program_(std::move(plan)), nodes_(std::move(nodes)) {
    for (const fuse::Padding& padding : paddings) padded_.emplace(padding.dim, padding.axes);
  }

  const std::string& nodes() const override { return nodes_; }
  const fuse::PaddedAxes* padded_axes(const std::string& dim) const override {
    const auto found = padded_.find(dim);
    return found == padded_.end() ? nullptr : &found->second;
  }
  bool has_masks() const override {
    return std::ranges::any_of(padded_, [](const auto& one) { return !one.second.masked.empty(); });
  }

  void load(KernelPrepack& loader) { program_.prepare(loader); }
  Kept& kept() { return kept_; }
  void add_graphs(automatic::Region region, automatic::GraphStore& store) {
    graphs_.emplace(std::move(region), program_, store);
  }
  automatic::RegionGraphs* graphs() { return graphs_ ? &*graphs_ : nullptr; }
  void become_a_part() {
    if (graphs_) graphs_->become_a_part();
  }

  void run(ops::Context& context) const override {
    graphs_ && !context.is_planned() ? graphs_->run(context) : program_.run(context);
  }

 private:
  fuse::Program program_;
  const std::string nodes_;
  std::map<std::string, fuse::PaddedAxes> padded_;  // by dimension
  Kept kept_;
  mutable std::optional<automatic::RegionGraphs> graphs_;  // which guard themselves
};

namespace {

struct FusedNode : OrtNodeComputeInfo {
  Node node;
  const std::shared_ptr<Region> region;
  std::vector<fuse::Padding> paddings;

  FusedNode(Ep& ep, const GraphNodeInfo& info, fuse::Plan plan, std::string nodes, std::vector<fuse::Padding> padded)
      : OrtNodeComputeInfo{},
        node(ep, info, std::vector<bool>(size_t(info.input_count()))),
        region(std::make_shared<Region>(std::move(plan), std::move(nodes), padded)),
        paddings(std::move(padded)) {
    node.op = "Region";  // in profiles
    node.fault_number = ep.faults().number(node.label);
    ort_version_supported = ort().version;
    CreateState = [](OrtNodeComputeInfo*, OrtNodeComputeContext*, void** state) noexcept -> OrtStatus* {
      *state = nullptr;
      return nullptr;
    };
    Compute = [](OrtNodeComputeInfo* self, void*, OrtKernelContext* context) noexcept -> OrtStatus* {
      auto& fused = *static_cast<FusedNode*>(self);
      return run_as(fused.node, [&] {
        KernelRun run(fused.node, context);
        if (fused.paddings.empty()) return fused.region->run(run);
        fuse::run_padded(fused.paddings, run, [&](ops::Context& padded, bool is_longer) {
          if (is_longer && fused.region->graphs()) fused.region->graphs()->note_padded();
          fused.region->run(padded);
        });
      });
    };
    ReleaseState = [](OrtNodeComputeInfo*, void*) noexcept {};
  }
  void load() {
    KernelPrepack loader(node.ep, region->kept(), &node.ep.constants());
    region->load(loader);
    for (fuse::Padding& padding : paddings) padding.prepare(loader);
    loader.finish();
  }
};

std::vector<fuse::Padding> paddings_of(FusedGraph& graph, const GraphNodeInfo& fused, const Options& options) {
  std::vector<fuse::Padding> paddings;
  for (const auto& [dim, lengths] : options.pad) try {
      if (fuse::PaddedAxes axes = graph.padded_axes(fused, dim, lengths.back()); axes.any())
        paddings.push_back({dim, lengths, std::move(axes)});
    } catch (const Error& error) {
      fail(error.code(), "provider option 'pad' can't pad '", dim, "', as that may change results: ", error.what(),
           ". Leave the dimension out");
    }
  return paddings;
}

// Those that the application pads are padded.
automatic::Region region_of(FusedGraph& graph, const GraphNodeInfo& fused, const std::vector<const OrtNode*>& nodes,
                            const Options& options) {
  automatic::Region region{span_of(nodes), nodes.size(), {}, {}, {}};
  for (int i = 0; i < fused.input_count(); ++i) region.inputs.push_back(fused.input_value(i));
  for (int i = 0; i < fused.output_count(); ++i) region.outputs.push_back(fused.output_value(i));
  if (options.lengthens) region.growing = graph.growing_dims(fused);
  std::erase_if(region.growing, [&](const ops::GrowingDim& dim) { return options.pad.contains(dim.name); });
  return region;
}

void compile(Ep& ep, const OrtGraph* const* graphs, const OrtNode* const* fused, size_t count,
             OrtNodeComputeInfo** infos) {
  ep.constants().forget_addresses();
  if (!host_has(kSessionInitializationEndApi)) ep.check_model();
  const auto find = [&](const std::string& node) -> std::shared_ptr<const ops::Op> {
    const std::shared_ptr<Region> region = ep.region_of(node).region.lock();
    if (region) region->become_a_part();
    return region;
  };
  const Compiled compiled{ep.GetName(&ep), find, [&](const std::string& node) { return ep.region_of(node).nodes; },
                          ep.why_not_by_data()};
  for (size_t i = 0; i < count; ++i) {
    const GraphNodeInfo info(fused[i]);
    FusedGraph graph(graphs[i], ep.settings(), ep.on_host() ? &compiled : nullptr,
                     ep.on_host().value_or(std::set<std::string>()));
    std::vector<fuse::Padding> paddings;
    if (ep.on_host()) paddings = paddings_of(graph, info, ep.options());
    const fuse::Watch watch = plan_files(ep.options().dump_regions, info.name());
    fuse::Plan plan = ep.on_host() ? graph.plan_of_part(info, *ep.on_host(), paddings, compute_on(ep), watch)
                                   : graph.plan(info, ep.known_dims(), watch);
    const std::vector<const OrtNode*> nodes = nodes_of(graphs[i]);
    auto made = std::make_unique<FusedNode>(ep, info, std::move(plan), span_of(nodes), std::move(paddings));
    if (ep.store() && (nodes.size() > 1 || ep.options().lone_regions || !bodies_of(nodes[0]).empty()))
      made->region->add_graphs(region_of(graph, info, nodes, ep.options()), *ep.store());
    ep.add_region(info.name(), {made->region, made->region, nodes.size()});
    made->load();
    infos[i] = made.release();
  }
  if (!host_has(kSessionInitializationEndApi)) ep.wait_for_libraries();
}

}  // namespace

void compile_fused_nodes(Ep& ep) {
  ep.Compile = [](OrtEp* self, const OrtGraph** graphs, const OrtNode** fused, size_t count, OrtNodeComputeInfo** infos,
                  OrtNode**) noexcept -> OrtStatus* {
    return guarded_on(Ep::from(self).device(), "Compile",
                      [&] { compile(Ep::from(self), graphs, fused, count, infos); });
  };
  ep.ReleaseNodeComputeInfos = [](OrtEp* self, OrtNodeComputeInfo** infos, size_t count) noexcept {
    for (size_t i = 0; i < count; ++i)
      if (infos[i]) delete_on(Ep::from(self).device(), static_cast<FusedNode*>(infos[i]));
  };
}

}  // namespace encore::plugin
