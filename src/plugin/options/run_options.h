// What a run's options say to Encore.
#pragma once
#include "plugin/host/api_version.h"

namespace encore::plugin {

class Completion;

// The graph that the run belongs to: 0 if nothing is said, graph::kEagerId for none. A bad value, or a key that was
// probably meant for this one, is an Error{invalid_input}. The options may be null.
int graph_id_of(const OrtRunOptions* options);

// Where the caller wants to know of a run that it does not wait for; null if nowhere.
Completion* completion_of(const OrtRunOptions* options);

}  // namespace encore::plugin
