// Nodes that Encore has made of several.
#pragma once
#include "plugin/host/api_version.h"

namespace encore::plugin {

class Ep;

// Has the session's provider compile the nodes that it asks to be fused.
void compile_fused_nodes(Ep& ep);

}  // namespace encore::plugin
