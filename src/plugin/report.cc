#include "plugin/report.h"

#include <cstdint>
#include <cstdio>
#include <fstream>

#include "device/error.h"

namespace encore::plugin {
namespace {

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += {'\\', c};
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\u%04x", static_cast<unsigned>(c));
      out += escaped;
    } else {
      out += c;
    }
  }
  return out + "\"";
}

void write(const char* what, const std::string& content, const std::string& path) {
  std::ofstream file(path);
  file << content;
  file.close();
  require(!file.fail(), what, " can't be written to '", path, "'");
}

}  // namespace

std::string as_json(const std::vector<graph::Report>& reports) {
  std::string json = "[";
  for (const graph::Report& r : reports)
    json += text(json.size() > 1 ? ",\n " : "", "{\"id\": ", r.id, ", \"state\": ", quoted(graph::name(r.state)),
                 ", \"nodes\": ", r.nodes, ", \"held_bytes\": ", r.held_bytes, ", \"replays\": ", r.replays,
                 ", \"refusal\": ", quoted(r.refusal), "}");
  return json + "]\n";
}

std::string as_json_line(const device::TraceEntry& entry) {
  return text("{\"stream\": ", reinterpret_cast<uintptr_t>(entry.stream), ", \"what\": ", quoted(name(entry.what)),
              ", \"name\": ", quoted(entry.name), ", \"label\": ", quoted(entry.label), "}\n");
}

void write_report(const std::vector<graph::Report>& reports, const std::string& path) {
  write("the report of graphs", as_json(reports), path);
}

void trace(const std::string& value) {
  if (value == "start") return device::start_trace();
  std::string lines;
  for (const device::TraceEntry& entry : device::stop_trace()) lines += as_json_line(entry);
  write("the trace", lines, value);
}

}  // namespace encore::plugin
