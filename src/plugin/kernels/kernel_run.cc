#include "plugin/kernels/kernel_run.h"

#include <algorithm>

#include "device/memory.h"
#include "memory/pool_scope.h"
#include "plugin/host/memory_kind.h"
#include "plugin/session/allocator.h"

namespace encore::plugin {

using ops::Tensor;
using ops::Where;

Tensor Node::input(const OrtValue* value, int i) const {
  const bool on_host = host_inputs[size_t(i)];
  try {
    const Tensor tensor = tensor_of(value, on_host ? Where::host : Where::device);
    if (const char* const wrong = misplaced(ort().ep->Value_GetMemoryDevice(value), on_host))
      fail(Code::internal, "onnxruntime left input ", i, " ('", input_values[size_t(i)], "') ", wrong,
           "; an Identity before it may help");
    return tensor;
  } catch (const OrtError& error) {
    fail(Code::invalid_input, "input ", i, " has no tensor; if it is the model's, was it bound? ", error.what());
  }
}

KernelRun::KernelRun(const Node& node, OrtKernelContext* context) : node_(node), context_(context) {
  void* handle = nullptr;
  check(ort().api->KernelContext_GetGPUComputeStream(context, &handle));
  stream_ = node.ep.compute_stream(handle, context);
  if (node.input_count > int(few_.size())) many_.resize(size_t(node.input_count));
}

KernelRun::~KernelRun() {
  for (void* block : scratch_)
    if (block) node_.ep.arena().free(block);
  for (void* block : more_scratch_) node_.ep.arena().free(block);
}

const Tensor* KernelRun::find_input(int i) {
  if (i < 0 || i >= node_.input_count) return nullptr;
  std::optional<Tensor>& slot = many_.empty() ? few_[size_t(i)] : many_[size_t(i)];
  if (!slot) {
    const OrtValue* value = nullptr;
    check(ort().api->KernelContext_GetInput(context_, size_t(i), &value));
    if (!value) return nullptr;
    slot = node_.input(value, i);
    if (!node_.constant_inputs[size_t(i)]) memory::PoolScope::note(slot->data);
  }
  return &*slot;
}

Tensor KernelRun::output(int i, const ops::Shape& shape) {
  OrtValue* value = nullptr;
  check(ort().api->KernelContext_GetOutput(context_, size_t(i), shape.dims().data(), shape.dims().size(), &value));
  if (!value) return {ops::Type::undefined, Where::device, shape, nullptr};
  const Tensor made = tensor_of(value, node_.host_outputs[size_t(i)] ? Where::host : Where::device);
  // onnxruntime passes on the null of an allocator that has no memory left.
  if (!made.data && made.count() > 0) fail(Code::out_of_memory, "output ", i, ": ", take_allocation_failure());
  memory::PoolScope::note(made.data);
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

void KernelRun::read_back(void* host, const void* device, size_t bytes) {
  if (node_.ep.capturing())
    fail(Code::capture_forbidden,
         "the size of an output depends on data, so the node has to wait and cannot be captured; switch "
         "enable_cuda_graph off, set graph_on_error=eager, or run with gpu_graph_id=-1");
  node_.ep.copies().download(stream_, host, device, bytes);
}

ops::StreamRef KernelPrepack::stream() {
  if (!stream_.ref().native()) stream_ = device::Stream(ep_.device());
  return stream_;
}

void* KernelPrepack::keep(size_t bytes) {
  if (bytes == 0) return nullptr;
  void* const block = ep_.arena().allocate(bytes, {});
  return kept_.emplace_back(block, [&arena = ep_.arena()](void* block) { arena.free(block); }).get();
}

void* KernelPrepack::keep_constant(const Tensor& constant, bool is_models) {
  std::weak_ptr<void> alone;
  std::weak_ptr<void>& known = constants_ && is_models ? (*constants_)[{constant.data, constant.bytes()}] : alone;
  if (auto block = known.lock()) return kept_.emplace_back(std::move(block)).get();
  if (!keep(constant.bytes())) return nullptr;
  known = kept_.back();
  device::copy(stream(), kept_.back().get(), constant.data, constant.bytes());
  return kept_.back().get();
}

void KernelPrepack::let_go(void* kept) {
  finish();
  kept_.erase(std::ranges::find(kept_, kept, &std::shared_ptr<void>::get));
}

}  // namespace encore::plugin
