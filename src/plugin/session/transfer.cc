#include "plugin/session/transfer.h"

#include <algorithm>
#include <vector>

#include "device/device.h"
#include "device/graph.h"
#include "device/memory.h"
#include "memory/pool_scope.h"
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
  bool operator==(const Place&) const = default;
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
      const device::RelaxedCapture relaxed;  // none of these captures, but the thread may
      stream.synchronize();
    }
  }

  // A tensor that is to be somewhere else.
  struct Move {
    Move(const OrtValue* from, const OrtValue* to, SyncStream* stream)
        : source(place_of(from)),
          target(place_of(to)),
          what(tensor_of(from, source.where)),
          bytes(what.bytes()),
          stream(stream) {
      const Tensor into = tensor_of(to, target.where);
      if (into.bytes() != bytes)
        fail(Code::invalid_input, "a tensor ", device::name(what.type), what.shape.str(),
             " cannot be copied to one of another size, ", device::name(into.type), into.shape.str());
      address = into.data;
    }
    bool lacks_memory() const { return bytes && (is_missing(address) || is_missing(what.data)); }
    // Between the device and pageable memory, so that one kernel may do several.
    bool is_small() const {
      const void* const host = target.where == Where::host ? address : what.data;
      return source.where != target.where && bytes && bytes <= memory::Staging::kSmall && !lacks_memory() &&
             device::place_of(host) != device::Place::pinned;
    }
    bool goes_with(const Move& other) const {
      return source == other.source && target == other.target && stream == other.stream;
    }

    Place source, target;
    Tensor what;
    void* address = nullptr;
    size_t bytes;
    SyncStream* stream;
  };

  // `waits` gets the streams that have to be waited for, also if it throws.
  void enqueue_all(const OrtValue** from, OrtValue** to, OrtSyncStream** streams, size_t count,
                   std::vector<device::StreamRef>& waits) {
    std::pair<Ep*, device::StreamRef> waited_in;  // what lies in pageable memory has been waited for
    memory::Staging::Downloads fetches;
    const auto stream_of = [&](size_t i) { return SyncStream::from(streams ? streams[i] : nullptr); };
    for (size_t i = 0; i < count;) {
      SyncStream* const stream = stream_of(i);
      try {
        std::vector<Move> moves{{from[i], to[i], stream}};
        const bool may_be_several = ++i < count && moves[0].is_small();
        for (; may_be_several && i < count; ++i) {
          const Move next(from[i], to[i], stream_of(i));
          if (!next.goes_with(moves[0]) || !next.is_small()) break;
          moves.push_back(next);
        }
        enqueue(moves, waits, waited_in, fetches);
        if (i == count) fetches.finish();
      } catch (const Error& error) {
        if (!stream) Ep::end_run_here(error.what(), error.code());
        throw;
      }
    }
    if (waited_in.first) waited_in.first->faults().check(waited_in.second);
  }

  // One, or several that go together.
  void enqueue(const std::vector<Move>& moves, std::vector<device::StreamRef>& waits,
               std::pair<Ep*, device::StreamRef>& waited_in, memory::Staging::Downloads& fetches) {
    const auto& [source, target, what, address, bytes, stream] = moves[0];
    require(device::size_bits(what.type) > 0, "a tensor of ", device::name(what.type), " cannot be copied");
    if (bytes == 0) return;
    if (moves[0].lacks_memory()) {
      const std::string why = take_allocation_failure();
      fail(Code::out_of_memory, describe(stream ? stream->ep() : nullptr, what, target.where == Where::device),
           " has no memory to be copied ", is_missing(address) ? "to" : "from", why.empty() ? "" : ": ", why);
    }
    if (source.where == Where::host && target.where == Where::host) {
      std::copy_n(what.as<const char>(), bytes, static_cast<char*>(address));
      return;
    }
    const int device = device_for(stream, source, target);
    const device::Current current(device);
    const auto turn = stream && stream->ep() ? stream->ep()->turn() : graph::SharedStream::Turn();
    if (!stream || stream->ref().device() != device) {
      if (Ep* const ep = Ep::capturing_here())
        for (const Move& move : moves) capture_too(*ep, move);
      Copies& copies = registration_->copies(device);
      if (!host_has(kSyncApi)) wait_for_everything(copies.stream);
      copies.order.before_run(copies.stream);
      Ep::order_after_run(copies.stream);  // up to onnxruntime 1.30 a Loop's copies name no stream
      if (std::find(waits.begin(), waits.end(), copies.stream.ref()) == waits.end()) waits.push_back(copies.stream);
      copy(copies.stream, copies.host, moves, fetches);
      return;
    }
    if (Ep* const ep = stream->ep()) {
      for (const Move& move : moves) {
        if (source.where != target.where && ep->capturing()) {
          const Role role = target.where == Where::host ? Role::fetch
                            : ep->nodes_have_run()      ? Role::made_on_host
                                                        : Role::feed;
          const std::string why = why_not_captured(*ep, move.what, role);
          if (ep->graphs()->refuse(why)) fail(Code::capture_forbidden, why);
        }
        ep->note_copy(stream->ref(), target.where == Where::device);
        note_use(move.what.data, move.address);
      }
    }
    copy(stream->ref(), stream->copies(), moves, fetches);
    if (target.where == Where::host && device::place_of(address) != device::Place::pinned)
      waited_in = {stream->ep(), stream->ref()};
  }

  // onnxruntime names no stream when it copies an initializer, or what nodes on the host have made, to an output. The
  // first is captured; and either is also copied at once, which is right too if a run has left its capture behind.
  static void capture_too(Ep& ep, const Move& move) {
    const auto& [source, target, what, address, bytes, stream] = move;
    const bool both = source.where == Where::device && target.where == Where::device;
    if (both && source.device == ep.device() && target.device == ep.device()) {
      note_use(what.data, address);
      device::copy(ep.graphs()->stream(), address, what.data, bytes);
    } else {
      ep.graphs()->refuse(why_not_captured(ep, what, source.where == Where::host ? Role::made_on_host : Role::fetch));
    }
  }

  static std::string describe(const Ep* ep, const Tensor& tensor, bool is_input) {
    if (!ep) return "a tensor";
    const std::vector<int64_t> dims(tensor.shape.dims().begin(), tensor.shape.dims().end());
    return is_input ? ep->signature().describe_input(tensor.type, dims)
                    : ep->signature().describe_output(tensor.type, dims);
  }

  static void note_use(const void* source, const void* target) {
    memory::PoolScope::note(source);
    memory::PoolScope::note(target);
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

  static void copy(device::StreamRef stream, HostCopies& copies, const std::vector<Move>& moves,
                   memory::Staging::Downloads& fetches) {
    const auto& [source, target, what, address, bytes, of] = moves[0];
    if (target.where == Where::device) fetches.finish();
    if (moves.size() > 1) {
      std::vector<device::Copy> together;
      for (const Move& move : moves) together.push_back({move.what.data, move.address, move.bytes});
      source.where == Where::host ? copies.upload(stream, together) : copies.download(stream, together, fetches);
    } else if (source.where == Where::device && target.where == Where::device) {
      if (source.device == target.device)
        device::copy(stream, address, what.data, bytes);
      else
        device::copy_peer(stream, address, target.device, what.data, source.device, bytes);
    } else if (source.where == Where::host) {
      copies.upload(stream, address, what.data, bytes);
    } else {
      copies.download(stream, address, what.data, bytes, fetches);
    }
  }

  // onnxruntime copies host tensors inside the run that is captured, frees them afterwards, and never copies again when
  // the graph is replayed.
  enum class Role { feed, fetch, made_on_host };
  static std::string why_not_captured(const Ep& ep, const Tensor& tensor, Role role) {
    const std::vector<int64_t> dims(tensor.shape.dims().begin(), tensor.shape.dims().end());
    const std::string which = describe(&ep, tensor, role == Role::feed);
    constexpr const char* kNoCopies = ", but a replayed graph copies nothing between host and device; ";
    if (role == Role::made_on_host)
      return text(which, " is made on the host", ep.signature().makers(tensor.type, dims), ", where shapes are known",
                  kNoCopies,
                  "bind it to host memory (io_binding.bind_output(name, 'cpu')), where it is the same at every replay");
    return text(which, role == Role::feed ? " is in host memory" : " is wanted in host memory", kNoCopies,
                "bind every input and output to device memory (OrtValue.ortvalue_from_numpy(x, 'cuda', ", ep.device(),
                "), io_binding.bind_ortvalue_input, bind_ortvalue_output) and use run_with_iobinding");
  }

  std::shared_ptr<Registration> registration_;
};

}  // namespace

Copies::Copies(int device) : stream(device), host(device, false), order(device, {}) { memory::enlist(stream); }
Copies::~Copies() { memory::delist(stream); }

OrtDataTransferImpl* make_data_transfer(std::shared_ptr<Registration> registration) {
  return new Transfer(std::move(registration));
}

}  // namespace encore::plugin
