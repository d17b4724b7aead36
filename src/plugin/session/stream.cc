#include "plugin/session/stream.h"

#include <map>
#include <mutex>

#include "memory/streams.h"
#include "plugin/host/fence.h"
#include "plugin/session/ep.h"
#include "plugin/session/registration.h"

namespace encore::plugin {
namespace {

class Notification : public OrtSyncNotificationImpl {
 public:
  explicit Notification(SyncStream& producer)
      : OrtSyncNotificationImpl{}, producer_(producer), event_(producer.ref().device()) {
    ort_version_supported = ort().version;
    Release = [](OrtSyncNotificationImpl* self) noexcept { delete static_cast<Notification*>(self); };
    Activate = [](OrtSyncNotificationImpl* self) noexcept -> OrtStatus* {
      return guarded_on(from(self).device(), "Activate", [&] { from(self).activate(); });
    };
    WaitOnDevice = [](OrtSyncNotificationImpl* self, OrtSyncStream* consumer) noexcept -> OrtStatus* {
      return guarded_on(from(self).device(), "WaitOnDevice", [&] { from(self).wait_on_device(consumer); });
    };
    WaitOnHost = [](OrtSyncNotificationImpl* self) noexcept -> OrtStatus* {
      return guarded_on(from(self).device(), "WaitOnHost", [&] { from(self).wait_on_host(); });
    };
  }

 private:
  static Notification& from(OrtSyncNotificationImpl* self) { return *static_cast<Notification*>(self); }
  int device() const { return producer_.ref().device(); }

  void activate() {
    recorded_on_ = producer_.ref();
    event_.record(recorded_on_);
  }

  // A consumer that isn't ours can only be made to wait by waiting here.
  void wait_on_device(const OrtSyncStream* consumer) {
    const device::StreamRef stream = SyncStream::work_of(consumer);
    if (!stream) return wait_on_host();
    if (stream != recorded_on_) stream.wait(event_);
  }

  void wait_on_host() {
    constexpr const char* kWhy = "a node on the CPU waits for one on the device, which no graph can hold";
    if (Ep* ep = producer_.ep(); ep && ep->capturing()) {
      if (ep->graphs()->refuse(kWhy, graph::Holds::for_model)) fail(Code::capture_forbidden, kWhy);
      activate();  // what was captured has been launched; the event was a part of the graph
    }
    event_.synchronize();  // what has gone wrong by now the run's end tells: onnxruntime only logs what fails here
  }

  SyncStream& producer_;
  device::Event event_;
  device::StreamRef recorded_on_;
};

// Applications' streams by handle: runs may be given one (RunOptionsSetSyncStream), of which kernels see the handle.
struct Given {
  std::mutex mutex;
  std::map<void*, std::weak_ptr<device::Stream>> streams;
};
Given& given() {
  static auto& given = *new Given;
  return given;
}

void release_stream(OrtSyncStreamImpl* impl) noexcept {
  auto* const stream = static_cast<SyncStream*>(impl);
  delete_on(stream->device(), stream);
}

}  // namespace

SyncStream::SyncStream(Ep& ep) : OrtSyncStreamImpl{}, ep_(&ep) {
  if (ep.shared()) {
    handle_ = ep.shared()->ref();
  } else if (ep.graphs()) {
    handle_ = ep.graphs()->stream();
  } else {
    own_ = ep.lend_stream();
    handle_ = *own_;
  }
  fill_callbacks();
  ep.enlist(this);
}

SyncStream::SyncStream(std::shared_ptr<Registration> registration, int device)
    : OrtSyncStreamImpl{},
      registration_(std::move(registration)),
      own_(std::make_shared<device::Stream>(device)),
      handle_(*own_) {
  memory::enlist(handle_);
  fill_callbacks();
  const std::lock_guard lock(given().mutex);
  given().streams[handle_.native()] = own_;
}

SyncStream::~SyncStream() {
  if (ep_) {
    ep_->delist(this);
    if (own_) ep_->take_back(std::move(own_));
    return;
  }
  {
    const std::lock_guard lock(given().mutex);
    given().streams.erase(handle_.native());
  }
  memory::delist(handle_);  // waits for the stream
}

SyncStream* SyncStream::from(const OrtSyncStream* stream) {
  if (!stream || is_nameless(stream)) return nullptr;  // asking for the implementation reads what isn't there
  const OrtSyncStreamImpl* const impl = ort().ep->SyncStream_GetImpl(stream);
  if (!impl || impl->Release != &release_stream) return nullptr;  // another provider's
  return static_cast<SyncStream*>(const_cast<OrtSyncStreamImpl*>(impl));
}

bool SyncStream::is_nameless(const OrtSyncStream* stream) {
  return stream && !ort().api->SyncStream_GetHandle(const_cast<OrtSyncStream*>(stream));
}

device::StreamRef SyncStream::work_of(const OrtSyncStream* stream) {
  const SyncStream* const mine = from(stream);
  return mine ? mine->ref() : device::StreamRef();
}

std::shared_ptr<device::Stream> SyncStream::of_application(void* handle) {
  const std::lock_guard lock(given().mutex);
  const auto found = given().streams.find(handle);
  return found == given().streams.end() ? nullptr : found->second.lock();
}

device::StreamRef SyncStream::ref() const { return ep_ && ep_->graphs() ? ep_->graphs()->stream() : handle_; }

HostCopies& SyncStream::copies() { return ep_ ? ep_->copies() : registration_->copies(device()).host; }

void SyncStream::fill_callbacks() {
  ort_version_supported = ort().version;
  Release = &release_stream;
  GetHandle = [](OrtSyncStreamImpl* self) noexcept { return static_cast<SyncStream*>(self)->handle_.native(); };
  CreateNotification = [](OrtSyncStreamImpl* self, OrtSyncNotificationImpl** notification) noexcept -> OrtStatus* {
    auto& stream = *static_cast<SyncStream*>(self);
    return guarded_on(stream.device(), "CreateNotification", [&] { *notification = new Notification(stream); });
  };
  // The end of a run, or of a loop's iteration, of which onnxruntime reads on the host what copies have waited for.
  // onnxruntime only logs an error, so what kernels have reported is left for those whose errors end the run. With
  // graphs OnRunEnd has seen to everything.
  Flush = [](OrtSyncStreamImpl* self) noexcept -> OrtStatus* {
    auto& stream = *static_cast<SyncStream*>(self);
    return guarded_on(stream.device(), "Flush", [&] {
      if (stream.ep_ && (stream.ep_->graphs() || stream.ep_->nodes_have_run())) return;
      stream.ep_ ? stream.ep_->wait_for(stream.handle_) : stream.handle_.synchronize();
    });
  };
  OnSessionRunEnd = [](OrtSyncStreamImpl*) noexcept -> OrtStatus* { return nullptr; };
}

}  // namespace encore::plugin
