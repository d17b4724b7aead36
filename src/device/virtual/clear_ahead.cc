// Of the libraries that clear memory the virtual GPU has none.
#include "device/clear_ahead.h"

namespace encore::device {

ClearNode clear_ahead(StreamRef, void*, size_t) { return {}; }
void leave_out(StreamRef, ClearNode) {}

}  // namespace encore::device
