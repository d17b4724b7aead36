#include "plugin/session/transfer.h"

#include <algorithm>
#include <vector>

#include "device/device.h"
#include "device/memory.h"
#include "memory/streams.h"
#include "ops/tensor.h"
#include "plugin/host/fence.h"
#include "plugin/host/memory_kind.h"
#include "plugin/model/node_info.h"
#include "plugin/session/allocator.h"
#include "plugin/session/ep.h"
#include "plugin/session/registration.h"
#include "plugin/session/stream.h"

namespace encore::plugin {
namespace {

using ops::Tensor;
using ops::Where;

struct Place {
  Where where;
  int device;  // of device memory
};

Place place_of(const OrtValue* value) {
  const OrtMemoryDevice* const memory = ort().ep->Value_GetMemoryDevice(value);
  if (is_device_memory(memory)) return {Where::device, int(ort().ep->MemoryDevice_GetDeviceId(memory))};
  if (is_host_memory(memory)) return {Where::host, 0};
  fail(Code::not_supported, "Encore was asked to copy a tensor that is neither on the host nor on its device");
}

class Transfer : public OrtDataTransferImpl {
 public:
  explicit Transfer(std::shared_ptr<Registration> registration)
      : OrtDataTransferImpl{}, registration_(std::move(registration)) {
    ort_version_supported = ort().version;
    Release = [](OrtDataTransferImpl* self) noexcept { delete static_cast<Transfer*>(self); };
    CanCopy = [](const OrtDataTransferImpl*, const OrtMemoryDevice* from, const OrtMemoryDevice* to) noexcept {
      return (is_device_memory(from) && (is_device_memory(to) || is_host_memory(to))) ||
             (is_device_memory(to) && is_host_memory(from)) ||
             // Host to host is left to onnxruntime, except that it may not know of pinned memory.
             (is_host_memory(from) && is_host_memory(to) && (is_pinned_memory(from) || is_pinned_memory(to)));
    };
    CopyTensors = [](OrtDataTransferImpl* self, const OrtValue** from, OrtValue** to, OrtSyncStream** streams,
                     size_t count) noexcept -> OrtStatus* {
      return guarded("CopyTensors", [&] { static_cast<Transfer*>(self)->copy_all(from, to, streams, count); });
    };
  }

 private:
  // A batch: all copies are enqueued before any is waited for.
  void copy_all(const OrtValue** from, OrtValue** to, OrtSyncStream** streams, size_t count) {
    std::vector<device::StreamRef> waits;
    try {
      enqueue_all(from, to, streams, count, waits);
    } catch (...) {
      for (const device::StreamRef& stream : waits) {
        const device::Current current(stream.device());
        memory::wait_for({memory::tail(stream)});
      }
      throw;
    }
    for (const device::StreamRef& stream : waits) {
      const device::Current current(stream.device());
      stream.synchronize();
    }
  }

  // `waits` gets the streams that have to be waited for, also if it throws.
  void enqueue_all(const OrtValue** from, OrtValue** to, OrtSyncStream** streams, size_t count,
                   std::vector<device::StreamRef>& waits) {
    std::pair<Ep*, device::StreamRef> waited_in;  // what lies in pageable memory has been waited for
    for (size_t i = 0; i < count; ++i) {
      SyncStream* const stream = SyncStream::from(streams ? streams[i] : nullptr);
      const Place source = place_of(from[i]), target = place_of(to[i]);
      const Tensor what = tensor_of(from[i], source.where);
      void* const address = tensor_of(to[i], target.where).data;
      require(device::size_bytes(what.type) > 0, "a tensor of ", device::name(what.type), " cannot be copied");
      const size_t bytes = what.bytes();
      if (bytes == 0) continue;
      if (!address || !what.data) {
        const std::string why = take_allocation_failure();
        fail(Code::out_of_memory, "a tensor has no memory to be copied ", address ? "from" : "to",
             why.empty() ? "" : ": ", why);
      }
      if (source.where == Where::host && target.where == Where::host) {
        std::copy_n(what.as<const char>(), bytes, static_cast<char*>(address));
        continue;
      }
      const int device = device_for(stream, source, target);
      const device::Current current(device);
      const bool across_border = source.where != target.where;
      const auto turn = stream && stream->ep() ? stream->ep()->turn() : graph::SharedStream::Turn();
      if (across_border && stream && stream->ep()) refuse_capture(*stream->ep(), what, source.where == Where::host);
      if (!stream || stream->ref().device() != device) {
        Copies& copies = registration_->copies(device);
        if (!host_has(kSyncApi)) wait_for_everything(copies.stream);
        Ep::order_after_run(copies.stream);  // up to onnxruntime 1.30 a Loop's copies name no stream
        if (std::find(waits.begin(), waits.end(), copies.stream.ref()) == waits.end()) waits.push_back(copies.stream);
        copy(copies.stream, copies.host, address, target, what.data, source, bytes);
      } else {
        if (stream->ep()) stream->ep()->note_work(stream->ref());
        copy(stream->ref(), stream->copies(), address, target, what.data, source, bytes);
        if (target.where == Where::host && device::place_of(address) != device::Place::pinned)
          waited_in = {stream->ep(), stream->ref()};
      }
    }
    if (waited_in.first) waited_in.first->faults().check(waited_in.second);
  }

  // Either end's could copy between two devices: the stream knows what has to be done before.
  static int device_for(const SyncStream* stream, Place source, Place target) {
    const bool both = source.where == Where::device && target.where == Where::device;
    if (both && stream && stream->ref().device() == source.device) return source.device;
    return target.where == Where::device ? target.device : source.device;
  }

  // Where onnxruntime never calls Sync, an application that switched off the wait after each run has no other way to
  // wait than to read its outputs.
  static void wait_for_everything(device::StreamRef stream) {
    for (const memory::Tail& tail : memory::tails(stream.device())) stream.wait(*tail);
  }

  static void copy(device::StreamRef stream, HostCopies& copies, void* to, Place target, const void* from, Place source,
                   size_t bytes) {
    if (source.where == Where::device && target.where == Where::device) {
      if (source.device == target.device)
        device::copy(stream, to, from, bytes);
      else
        device::copy_peer(stream, to, target.device, from, source.device, bytes);
    } else if (source.where == Where::host) {
      copies.upload(stream, to, from, bytes);
    } else {
      copies.download(stream, to, from, bytes);
    }
  }

  // onnxruntime copies host tensors inside the run that is captured, frees them afterwards, and never copies again when
  // the graph is replayed.
  static void refuse_capture(Ep& ep, const Tensor& tensor, bool is_input) {
    if (!ep.capturing()) return;
    const std::vector<int64_t> dims(tensor.shape.dims().begin(), tensor.shape.dims().end());
    const std::string which =
        is_input ? ep.signature().describe_input(tensor.type, dims) : ep.signature().describe_output(tensor.type, dims);
    const std::string why =
        text(which, is_input ? " is in host memory" : " is wanted in host memory",
             ", but a replayed graph copies nothing between host and device; bind every input and output to device "
             "memory (OrtValue.ortvalue_from_numpy(x, 'cuda', ",
             ep.device(), "), io_binding.bind_ortvalue_input, bind_ortvalue_output) and use run_with_iobinding");
    if (ep.graphs()->refuse(why)) fail(Code::capture_forbidden, why);
  }

  std::shared_ptr<Registration> registration_;
};

}  // namespace

Copies::Copies(int device) : stream(device), host(device, false) { memory::enlist(stream); }
Copies::~Copies() { memory::delist(stream); }

OrtDataTransferImpl* make_data_transfer(std::shared_ptr<Registration> registration) {
  return new Transfer(std::move(registration));
}

}  // namespace encore::plugin
