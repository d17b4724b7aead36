// There is no cuDNN for the virtual GPU.
#include "device/dnn_recurrent.h"

#include "device/error.h"

namespace encore::device {

namespace {
constexpr const char* kWhy = "the virtual GPU has no cuDNN";
}

struct DnnRecurrent::State {};

std::unique_ptr<DnnRecurrent> DnnRecurrent::make(Dnn&, const RecurrentLayer&, std::string* why) {
  if (why) *why = kWhy;
  return nullptr;
}
DnnRecurrent::DnnRecurrent(std::unique_ptr<State> state) : state_(std::move(state)) {}
DnnRecurrent::~DnnRecurrent() = default;

size_t DnnRecurrent::weight_bytes() const { fail(Code::library_missing, kWhy); }
void DnnRecurrent::pack(StreamRef, Part, const void*, void*) { fail(Code::library_missing, kWhy); }
size_t DnnRecurrent::workspace_bytes(int64_t, int64_t) { fail(Code::library_missing, kWhy); }
bool DnnRecurrent::is_resident(int64_t) const { fail(Code::library_missing, kWhy); }
void DnnRecurrent::run(StreamRef, const Run&) { fail(Code::library_missing, kWhy); }

}  // namespace encore::device
