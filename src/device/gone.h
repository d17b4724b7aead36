// What calls say once the driver has let go of the device's context: as a process ends, what is destroyed late finds it
// gone, with all that is to be waited for or given back.
#pragma once
#include <exception>
#include <string>

#include "device/error.h"

namespace encore::device {

class Gone : public Error {
 public:
  using Error::Error;
};

// Tells on stderr of what could not be done where nothing can be thrown; not if the device has gone, for then nothing
// is left to be done.
void complain(const std::string& what, const std::exception& error) noexcept;

}  // namespace encore::device
