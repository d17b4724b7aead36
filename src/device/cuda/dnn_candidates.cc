#include "device/cuda/dnn_candidates.h"

#include <algorithm>
#include <limits>

#include "device/cuda/dnn_frontend.h"
#include "device/error.h"

namespace encore::device {
namespace {

using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;

fe::DataType_t type_of(const Convolution& p) {
  switch (p.type) {
    case Type::f32: return fe::DataType_t::FLOAT;
    case Type::f16: return fe::DataType_t::HALF;
    case Type::bf16: return fe::DataType_t::BFLOAT16;
    default: fail(Code::not_supported, describe(p), ": no such type in cuDNN");
  }
}

fe::PointwiseMode_t mode_of(Convolution::Curve curve) {
  using Curve = Convolution::Curve;
  switch (curve) {
    case Curve::relu: return fe::PointwiseMode_t::RELU_FWD;
    case Curve::silu: return fe::PointwiseMode_t::SWISH_FWD;
    case Curve::gelu: return fe::PointwiseMode_t::GELU_FWD;
    case Curve::gelu_tanh: return fe::PointwiseMode_t::GELU_APPROX_TANH_FWD;
    case Curve::none: break;
  }
  fail(Code::internal, "a convolution's end has no such curve: ", int(curve));
}

std::vector<int64_t> packed(const std::vector<int64_t>& dims, bool channels_last) {
  std::vector<int64_t> strides(dims.size());
  int64_t step = 1;
  const auto take = [&](size_t i) {
    strides[i] = step;
    step *= dims[i];
  };
  if (channels_last) take(1);
  for (size_t i = dims.size(); i-- > 2;) take(i);
  if (!channels_last) take(1);
  take(0);
  return strides;
}

}  // namespace

struct Candidates::Graph : fe::graph::Graph {
  using fe::graph::Graph::plans;
};

size_t ConvolutionPlan::workspace_bytes() const { return size_t(native->getWorkspaceSize()); }

bool ConvolutionPlan::is_compiled() const {
  return std::ranges::count(native->getAllBehaviorNotes(), CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION) > 0;
}

std::optional<std::string> execute(cudnnHandle_t handle, const ConvolutionPlan& plan, std::vector<void*>& addresses,
                                   void* workspace) {
  const fe::error_t result = fe::detail::execute(handle, plan.native.get(), addresses, plan.ids, workspace);
  return result.is_good() ? std::nullopt : std::optional(result.err_msg);
}

std::optional<std::string> populate(cudaGraph_t graph, cudnnHandle_t handle, const ConvolutionPlan& plan,
                                    std::vector<void*>& addresses, void* workspace) {
  fe::detail::backend_descriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  const fe::error_t packed = fe::detail::create_variant_pack(pack, addresses, plan.ids, workspace);
  if (packed.is_bad()) return packed.err_msg;
  const cudnnStatus_t status =
      fe::detail::populate_cuda_graph(handle, plan.native->get_raw_desc(), pack.get_ptr(), graph);
  return status == CUDNN_STATUS_SUCCESS ? std::nullopt
                                        : std::optional<std::string>(fe::detail::get_error_string(status));
}

bool adds_bias(const Convolution& p) {
  return p.has_bias || (!p.transposed && !p.has_residual && p.curve == Convolution::Curve::relu);
}

bool compiles(const Convolution& p) {
  return p.curve > Convolution::Curve::relu ||
         (!adds_bias(p) && (p.has_residual || p.curve == Convolution::Curve::relu));
}

std::vector<int64_t> ids_of(const Convolution& p, bool fused) {
  std::vector<int64_t> ids{kConvolutionX, kConvolutionW};
  if (fused && p.has_residual) ids.push_back(kConvolutionResidual);
  if (fused && adds_bias(p)) ids.push_back(kConvolutionBias);
  ids.push_back(kConvolutionY);
  return ids;
}

size_t bytes_of(const std::vector<int64_t>& dims, Type type) {
  size_t bytes = size_bytes(type);
  for (const int64_t size : dims) bytes *= size_t(size);
  return bytes;
}

Candidates::Candidates(cudnnHandle_t handle, const DnnHandle& dnn, const Convolution& p, bool fused, bool deterministic)
    : graph_(std::make_unique<Graph>()) {
  Graph& graph = *graph_;
  const DnnSettings& settings = dnn.settings;
  const fe::DataType_t type = type_of(p);
  graph.set_io_data_type(type)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  graph.set_sm_version(dnn.sm_version);  // else the frontend would ask a CUDA runtime of its own

  // cuDNN wants at least two spatial dimensions.
  const auto widened = [&](std::vector<int64_t> values, int64_t neutral) {
    if (p.x.size() == 3) values.insert(values.end() - (settings.lines_are_rows ? 1 : 0), neutral);
    return values;
  };
  const auto input = [&](ConvolutionId id, const char* name, const std::vector<int64_t>& dims) {
    return graph.tensor(fe::graph::Tensor_attributes()
                            .set_name(name)
                            .set_uid(id)
                            .set_dim(dims)
                            .set_stride(packed(dims, p.channels_last))
                            .set_data_type(type));
  };
  const std::vector<int64_t> y_dims = widened(p.y, 1);
  const auto shaped = [&](Tensor made) {
    made->set_dim(y_dims).set_stride(packed(y_dims, p.channels_last));
    return made;
  };
  const auto with_shape = [&](auto attributes) {
    attributes.set_pre_padding(widened(p.pads_begin, 0))
        .set_post_padding(widened(p.pads_end, 0))
        .set_stride(widened(p.strides, 1))
        .set_dilation(widened(p.dilations, 1));
    return attributes;
  };
  const auto mode = [](fe::PointwiseMode_t what) { return fe::graph::Pointwise_attributes().set_mode(what); };

  const Tensor x = input(kConvolutionX, "x", widened(p.x, 1)), w = input(kConvolutionW, "w", widened(p.w, 1));
  Tensor last = shaped(p.transposed ? graph.conv_dgrad(x, w, with_shape(fe::graph::Conv_dgrad_attributes()))
                                    : graph.conv_fprop(x, w, with_shape(fe::graph::Conv_fprop_attributes())));
  if (fused) {  // in the order for which cuDNN has compiled engines
    if (p.has_residual)
      last = shaped(
          graph.pointwise(last, input(kConvolutionResidual, "residual", y_dims), mode(fe::PointwiseMode_t::ADD)));
    if (adds_bias(p)) {
      std::vector<int64_t> dims(y_dims.size(), 1);
      dims[1] = y_dims[1];
      last = shaped(graph.pointwise(last, input(kConvolutionBias, "bias", dims), mode(fe::PointwiseMode_t::ADD)));
    }
    if (p.curve != Convolution::Curve::none) last = shaped(graph.pointwise(last, mode(mode_of(p.curve))));
  }
  last->set_name("y").set_uid(kConvolutionY).set_output(true).set_data_type(type);

  check(graph.validate());
  check(graph.build_operation_graph(handle));
  std::vector<fe::HeurMode_t> modes{fe::HeurMode_t::A, fe::HeurMode_t::FALLBACK};
  if (settings.search == DnnSearch::standard) std::reverse(modes.begin(), modes.end());
  check(graph.create_execution_plans(modes));
  std::vector<fe::NumericalNote_t> unwanted;
  if (deterministic) unwanted.push_back(fe::NumericalNote_t::NONDETERMINISTIC);
  if (p.type == device::Type::f32) {
    unwanted.push_back(fe::NumericalNote_t::DOWN_CONVERT_INPUTS);
    if (!p.tf32) unwanted.push_back(fe::NumericalNote_t::TENSOR_CORE);
  }
  graph.deselect_numeric_notes(unwanted).deselect_workspace_greater_than(
      int64_t(std::min<size_t>(settings.most_workspace_bytes, std::numeric_limits<int64_t>::max())));
  check(graph.check_support());
}

Candidates::~Candidates() = default;

int64_t Candidates::count() const { return graph_->get_execution_plan_count(); }

NativePlan Candidates::build(int64_t candidate) {
  if (graph_->build_plan_at_index(candidate).is_bad()) return nullptr;
  return std::move(graph_->plans.get_execution_plans()[size_t(candidate)]);
}

std::string engine_of(const NativePlan& plan) { return plan->getTag(); }

std::string written(const NativePlan& plan) { return plan->getJsonRepresentation(); }

NativePlan read_plan(cudnnHandle_t handle, const std::string& text) {
  NativePlan plan;
  return fe::detail::create_cudnn_execution_plan(plan, text, handle).is_good() ? plan : nullptr;
}

}  // namespace encore::device
