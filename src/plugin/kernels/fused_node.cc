#include "plugin/kernels/fused_node.h"

#include <optional>

#include "automatic/region_graphs.h"
#include "fuse/program.h"
#include "plugin/host/fence.h"
#include "plugin/kernels/kernel_run.h"
#include "plugin/model/fusion.h"
#include "plugin/model/graph_reading.h"
#include "plugin/model/plan_files.h"

namespace encore::plugin {
namespace {

struct FusedNode : OrtNodeComputeInfo {
  Node node;
  fuse::Program program;
  Kept kept;
  std::optional<automatic::RegionGraphs> graphs;

  FusedNode(Ep& ep, const GraphNodeInfo& info, fuse::Plan plan)
      : OrtNodeComputeInfo{}, node(ep, info, std::vector<bool>(size_t(info.input_count()))), program(std::move(plan)) {
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
        fused.graphs ? fused.graphs->run(run) : fused.program.run(run);
      });
    };
    ReleaseState = [](OrtNodeComputeInfo*, void*) noexcept {};
  }
  void load() {
    KernelPrepack loader(node.ep, kept, &node.ep.constants());
    program.prepare(loader);
    loader.finish();
  }
};

void compile(Ep& ep, const OrtGraph* const* graphs, const OrtNode* const* fused, size_t count,
             OrtNodeComputeInfo** infos) {
  ep.constants().forget_addresses();
  if (!host_has(kSessionInitializationEndApi)) ep.check_model();
  for (size_t i = 0; i < count; ++i) {
    const GraphNodeInfo info(fused[i]);
    FusedGraph graph(graphs[i], ep.settings());
    const fuse::Watch watch = plan_files(ep.options().dump_regions, info.name());
    fuse::Plan plan = ep.on_host() ? graph.plan_of_part(info, *ep.on_host(), ep.options().prefer_nhwc, watch)
                                   : graph.plan(info, ep.known_dims(), watch);
    auto made = std::make_unique<FusedNode>(ep, info, std::move(plan));
    const std::vector<const OrtNode*> nodes = nodes_of(graphs[i]);
    if (ep.store() && nodes.size() > 1)
      made->graphs.emplace(text(label_of(nodes.front()), " to ", label_of(nodes.back())), nodes.size(), made->program,
                           *ep.store());
    made->load();
    infos[i] = made.release();
  }
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
