// What a back end has for compiler.h.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "device/compiler.h"

namespace encore::device {

// A header of Encore's that sources may include.
struct RunTimeHeader {
  const char* name;
  const char* text;
};
std::span<const RunTimeHeader> run_time_headers();
uint64_t hash_of_run_time_headers();

// What sources are compiled for: an architecture, or on the virtual GPU the compiler itself. Empty: nothing is compiled
// here. Costs nothing.
std::string compile_target(int device);
// Has the compiler compile something, so that all it will do as the process ends is settled. Error{library_missing} if
// there is none.
void open_compiler(int device);
std::string compile(const std::string& target, const std::string& source);
std::shared_ptr<const CompiledKernel::Code> load(int device, const std::string& binary);

}  // namespace encore::device
