#include "plugin/report.h"

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

}  // namespace

std::string as_json(const std::vector<graph::Report>& reports) {
  std::string json = "[";
  for (const graph::Report& r : reports)
    json += text(json.size() > 1 ? ",\n " : "", "{\"id\": ", r.id, ", \"state\": ", quoted(graph::name(r.state)),
                 ", \"nodes\": ", r.nodes, ", \"held_bytes\": ", r.held_bytes, ", \"replays\": ", r.replays,
                 ", \"refusal\": ", quoted(r.refusal), "}");
  return json + "]\n";
}

void write_report(const std::vector<graph::Report>& reports, const std::string& path) {
  std::ofstream file(path);
  file << as_json(reports);
  file.close();
  require(!file.fail(), "the report of graphs can't be written to '", path, "'");
}

}  // namespace encore::plugin
