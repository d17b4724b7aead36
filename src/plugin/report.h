// The state of a thread's graphs, for the application.
#pragma once
#include <string>
#include <vector>

#include "graph/session_graphs.h"

namespace encore::plugin {

// A JSON list of {"id", "state", "nodes", "held_bytes", "replays", "refusal"}.
std::string as_json(const std::vector<graph::Report>& reports);
void write_report(const std::vector<graph::Report>& reports, const std::string& path);

}  // namespace encore::plugin
