// What an application asks to have written down: the state of a thread's graphs, and what the device did.
#pragma once
#include <string>
#include <vector>

#include "device/trace.h"
#include "graph/session_graphs.h"

namespace encore::plugin {

// A JSON list of {"id", "state", "nodes", "held_bytes", "replays", "refusal"}.
std::string as_json(const std::vector<graph::Report>& reports);
void write_report(const std::vector<graph::Report>& reports, const std::string& path);

// A line {"stream", "what", "name", "label"} for each entry; the stream as its address, or 0.
std::string as_json_line(const device::TraceEntry& entry);
// "start", or the file that a trace begun earlier is written to.
void trace(const std::string& value);

}  // namespace encore::plugin
