// Functions that an application names by their addresses.
#pragma once

namespace encore::plugin {

// Whether what is at the address may be executed; also if nobody tells.
bool is_code(const void* address);

}  // namespace encore::plugin
