// onnxruntime's streams and notifications.
#pragma once
#include <memory>

#include "device/stream.h"
#include "plugin/host/api_version.h"
#include "plugin/session/host_copies.h"

namespace encore::plugin {

class Ep;
class Registration;

// onnxruntime pools its streams and hands them to whichever thread runs next, but a graph belongs to the thread that
// captured it. So in a session with graphs this is only a token, and the work goes to the calling thread's own stream;
// likewise where the session has one stream for all. Otherwise it owns a stream.
class SyncStream : public OrtSyncStreamImpl {
 public:
  explicit SyncStream(Ep& ep);                                         // of a session
  SyncStream(std::shared_ptr<Registration> registration, int device);  // of an application
  ~SyncStream();
  SyncStream(const SyncStream&) = delete;

  // Null if the stream is null or not Encore's.
  static SyncStream* from(const OrtSyncStream* stream);
  // Up to onnxruntime 1.28 a run's first block comes with a stream that has neither handle nor implementation.
  static bool is_nameless(const OrtSyncStream* stream);
  // Where work on the stream goes, from the calling thread; none if the stream is null or not Encore's.
  static device::StreamRef work_of(const OrtSyncStream* stream);
  // The stream that an application made here and that has this handle; null if there is none.
  static std::shared_ptr<device::Stream> of_application(void* handle);

  device::StreamRef ref() const;
  Ep* ep() const { return ep_; }  // null if it is an application's
  void* handle() const { return handle_.native(); }
  int device() const { return handle_.device(); }
  HostCopies& copies();

 private:
  void fill_callbacks();

  std::shared_ptr<Registration> registration_;
  Ep* ep_ = nullptr;
  std::shared_ptr<device::Stream> own_;  // also of sessions that were given an application's
  device::StreamRef handle_;
};

}  // namespace encore::plugin
