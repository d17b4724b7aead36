#include "plugin/kernels/kernel_run.h"

#include <algorithm>
#include <string_view>

#include "device/device.h"
#include "device/memory.h"
#include "plugin/host/memory_kind.h"
#include "plugin/session/allocator.h"

namespace encore::plugin {

using ops::Tensor;
using ops::Where;

namespace {

// The virtual GPU knows its addresses. To ask the driver for one takes up to a microsecond, so there only those are
// asked for that an application may have bound.
bool knows_addresses() { return device::backend() == std::string_view("virtual"); }

}  // namespace

void NodeValue::check(const Tensor& tensor, const char* what, int i) const {
  if (tensor.count() == 0) return;
  if (is_missing(tensor.data)) fail_without_memory(text(what, " ", i, " ('", name, "')"));
  if (tensor.where == Where::device && may_be_bound && device::place_of(tensor.data) == device::Place::host)
    fail(Code::invalid_input, what, " ", i, " ('", name, "') was bound as device memory, but its address, ",
         tensor.data,
         ", is none of the device's; bind what is on the host as 'cpu', or copy it first "
         "(OrtValue.ortvalue_from_numpy(x, 'cuda'))");
  seen_like(tensor.data).store(tensor.data, std::memory_order_relaxed);
}

Node::Node(Ep& ep, const NodeInfoBase& info, const std::vector<bool>& constants)
    : NamedNode(ep, info),
      input_count(info.input_count()),
      output_count(info.output_count()),
      inputs(size_t(input_count)),
      outputs(size_t(output_count)) {
  host_inputs.resize(size_t(input_count));
  host_outputs.resize(size_t(output_count));
  for (int i = 0; i < input_count; ++i) {
    NodeValue& value = inputs[size_t(i)];
    value.name = info.input_value(i);
    value.is_constant = constants[size_t(i)];
    value.may_be_bound = !value.is_constant && (knows_addresses() || ep.signature().has_input(value.name));
  }
  for (int i = 0; i < output_count; ++i) {
    NodeValue& value = outputs[size_t(i)];
    value.name = info.output_value(i);
    value.may_be_bound = knows_addresses() || ep.signature().has_output(value.name);
    wants_output.push_back(info.has_output(i));
  }
}

TensorView Node::view_of_input(const OrtValue* value, int i) const {
  try {
    return view_of(value);
  } catch (const OrtError& error) {
    fail(Code::invalid_input, "input ", i, " ('", inputs[size_t(i)].name,
         "') has no tensor; if it is the model's, was it bound? ", error.what());
  }
}

Tensor Node::input(const OrtValue* value, int i) const {
  const NodeValue& known = inputs[size_t(i)];
  const bool on_host = host_inputs[size_t(i)];
  const TensorView view = view_of_input(value, i);
  const Tensor tensor{type_of(view.type), on_host ? Where::host : Where::device, ops::Shape(view.dims), view.data};
  if (known.was_at(tensor.data)) return tensor;
  if (const char* const wrong = misplaced(ort().ep->Value_GetMemoryDevice(value), on_host))
    fail(Code::internal, "onnxruntime left input ", i, " ('", known.name, "') ", wrong,
         "; an Identity before it may help");
  known.check(tensor, "input", i);
  return tensor;
}

Tensor Node::output(const OrtValue* value, int i) const {
  const NodeValue& known = outputs[size_t(i)];
  const Tensor tensor = tensor_of(value, host_outputs[size_t(i)] ? Where::host : Where::device);
  if (!known.was_at(tensor.data)) known.check(tensor, "output", i);
  return tensor;
}

KernelRun::KernelRun(const Node& node, OrtKernelContext* context) : node_(node), api_(*ort().api), context_(context) {
  void* handle = nullptr;
  check(api_.KernelContext_GetGPUComputeStream(context, &handle));
  stream_ = node.ep.compute_stream(handle, context);
  is_captured_ = memory::PoolScope::is_open();
  profiled_.begin(node, stream_);
}

KernelRun::~KernelRun() {
  for (void* block : scratch_)
    if (block) node_.ep.arena().free(block);
  for (void* block : more_scratch_) node_.ep.arena().free(block);
}

const Tensor* KernelRun::find_input(int i) {
  if (i < 0 || i >= node_.input_count) return nullptr;
  const size_t few = few_.size(), at = size_t(i);
  if (at >= few && many_.empty()) many_.resize(size_t(node_.input_count) - few);
  std::optional<Tensor>& slot = at < few ? few_[at] : many_[at - few];
  if (!slot) {
    const OrtValue* const value = find_value(i);
    if (!value) return nullptr;
    slot = node_.input(value, i);
    if (!node_.inputs[size_t(i)].is_constant) note(slot->data);
  }
  return &*slot;
}

std::optional<ops::Context::Outline> KernelRun::find_outline(int i) {
  const OrtValue* const value = find_value(i);
  if (!value) return std::nullopt;
  const NodeValue& known = node_.inputs[size_t(i)];
  const TensorView view = node_.view_of_input(value, i);
  if (!known.was_at(view.data)) return Context::find_outline(i);
  if (!known.is_constant) note(view.data);
  return Outline{view.data, view.dims};
}

OrtValue* KernelRun::make(int i, const ops::Shape& shape) const {
  OrtValue* value = nullptr;
  check(api_.KernelContext_GetOutput(context_, size_t(i), shape.dims().data(), shape.dims().size(), &value));
  return value;
}

void* KernelRun::output_address(int i, const ops::Shape& shape) {
  OrtValue* const value = make(i, shape);
  if (!value) return nullptr;
  void* address = nullptr;
  check(api_.GetTensorMutableData(value, &address));
  if (!node_.outputs[size_t(i)].was_at(address)) address = node_.output(value, i).data;
  note(address);
  return address;
}

Tensor KernelRun::output(int i, const ops::Shape& shape) {
  OrtValue* const value = make(i, shape);
  if (!value) return {ops::Type::undefined, Where::device, shape, nullptr};
  const Tensor made = node_.output(value, i);
  note(made.data);
  return made;
}

void* KernelRun::scratch(size_t bytes) {
  if (bytes == 0) return nullptr;
  void* block = node_.ep.arena().allocate(bytes, stream_);
  for (void*& slot : scratch_)
    if (!slot) return slot = block;
  more_scratch_.push_back(block);
  return block;
}

void KernelRun::give_back(void* block) {
  if (!block) return;
  if (const auto more = std::find(more_scratch_.rbegin(), more_scratch_.rend(), block); more != more_scratch_.rend()) {
    *more = more_scratch_.back();
    more_scratch_.pop_back();
  } else {
    *std::ranges::find(scratch_, block) = nullptr;
  }
  node_.ep.arena().free(block);
}

void KernelRun::read_back(void* host, const void* device, size_t bytes) {
  if (node_.ep.capturing())
    fail(Code::capture_forbidden,
         "the size of an output depends on data, so the node has to wait and cannot be captured; switch "
         "enable_cuda_graph off, set graph_on_error=eager, or run with gpu_graph_id=-1");
  node_.ep.copies().download(stream_, host, device, bytes);
}

KernelPrepack::~KernelPrepack() {
  if (stream_) ep_.take_back(std::move(stream_));
}

// One for all of the session's nodes, on which it runs later: each further stream of a process on which kernels are
// launched may make all of its graphs slower (bench/streams.py).
ops::StreamRef KernelPrepack::stream() {
  if (!stream_) stream_ = ep_.lend_stream();
  return *stream_;
}

void* KernelPrepack::keep(size_t bytes) {
  if (bytes == 0) return nullptr;
  void* const block = ep_.arena().allocate(bytes, {});
  return kept_.emplace_back(block, [&arena = ep_.arena()](void* block) { arena.free(block); }).get();
}

void* KernelPrepack::keep_constant(const Tensor& constant, bool is_models) {
  if (constant.bytes() == 0) return nullptr;
  Constants* const constants = is_models ? constants_ : nullptr;
  const auto read = [&](void* host, const void* block, size_t bytes) {
    ep_.copies().download(stream(), host, block, bytes);
  };
  if (auto known = constants ? constants->find(constant, read) : nullptr)
    return kept_.emplace_back(std::move(known)).get();
  device::copy(stream(), keep(constant.bytes()), constant.data, constant.bytes());
  if (constants) constants->add(constant, kept_.back());
  return kept_.back().get();
}

void KernelPrepack::let_go(void* kept) {
  finish();
  kept_.erase(std::ranges::find(kept_, kept, &std::shared_ptr<void>::get));
}

}  // namespace encore::plugin
