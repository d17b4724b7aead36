#include "plugin/session/host_copies.h"

#include "device/memory.h"

namespace encore::plugin {
namespace {

void follow(device::StreamRef later, device::StreamRef earlier) {
  const device::Event reached(earlier.device());
  reached.record(earlier);
  later.wait(reached);
}

bool is_pinned(const void* host) { return device::place_of(host) == device::Place::pinned; }

}  // namespace

HostCopies::HostCopies(int device, bool apart)
    : own_(apart ? device::Stream(device) : device::Stream()), staging_(device) {}

template <class Copy>
void HostCopies::run(device::StreamRef stream, const Copy& copy) {
  if (!own_.ref()) return copy(stream);
  follow(own_, stream);
  try {
    copy(own_);
  } catch (...) {
    follow(stream, own_);  // for what had been enqueued
    throw;
  }
  follow(stream, own_);
}

void HostCopies::upload(device::StreamRef stream, void* to, const void* from, size_t bytes) {
  run(stream, [&](device::StreamRef where) {
    if (is_pinned(from))
      device::copy(where, to, from, bytes);
    else
      staging_.upload(where, to, from, bytes);
  });
}

void HostCopies::upload(device::StreamRef stream, std::span<const device::Copy> copies) {
  run(stream, [&](device::StreamRef where) { staging_.upload(where, copies); });
}

void HostCopies::download(device::StreamRef stream, std::span<const device::Copy> copies,
                          memory::Staging::Downloads& together) {
  run(stream, [&](device::StreamRef where) { together.add(staging_, where, copies); });
}

void HostCopies::download(device::StreamRef stream, void* to, const void* from, size_t bytes) {
  memory::Staging::Downloads alone;
  download(stream, to, from, bytes, alone);
  alone.finish();
}

void HostCopies::download(device::StreamRef stream, void* to, const void* from, size_t bytes,
                          memory::Staging::Downloads& together) {
  run(stream, [&](device::StreamRef where) {
    if (is_pinned(to))
      device::copy(where, to, from, bytes);
    else
      together.add(staging_, where, to, from, bytes);
  });
}

}  // namespace encore::plugin
