#include "plugin/session/report.h"

#include <charconv>
#include <chrono>
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

std::string as_json(const std::set<std::string>& texts) {
  std::string json;
  for (const std::string& one : texts) json += text(json.empty() ? "" : ", ", quoted(one));
  return text("[", json, "]");
}

// Of names and their numbers.
template <class Named>
std::string numbers_as_json(const Named& numbers) {
  std::string json;
  for (const auto& [name, some] : numbers) {
    std::string list;
    for (const int64_t number : some) list += text(list.empty() ? "" : ", ", number);
    json += text(json.empty() ? "" : ", ", quoted(name), ": [", list, "]");
  }
  return text("{", json, "}");
}

std::string as_json(const std::vector<automatic::ShapesReport>& reports) {
  std::string json;
  for (const automatic::ShapesReport& r : reports)
    json += text(json.empty() ? "" : ",\n  ", "{\"inputs\": ", numbers_as_json(r.inputs),
                 ", \"scratch_bytes\": ", r.scratch_bytes, ", \"graphs\": ", r.graphs,
                 ", \"workspace_bytes\": ", r.workspace_bytes, ", \"graph_nodes\": ", r.graph_nodes, "}");
  return text("[", json, "]");
}

std::string limit_as_json(size_t bytes) { return bytes == SIZE_MAX ? "null" : std::to_string(bytes); }

}  // namespace

std::string as_json(const std::vector<graph::Report>& reports) {
  std::string json = "[";
  for (const graph::Report& r : reports)
    json +=
        text(json.size() > 1 ? ",\n " : "", "{\"id\": ", r.id, ", \"state\": ", quoted(graph::name(r.state)),
             ", \"nodes\": ", r.nodes, ", \"held_bytes\": ", r.held_bytes, ", \"retained_bytes\": ", r.retained_bytes,
             ", \"replays\": ", r.replays, ", \"refusal\": ", quoted(r.refusal), "}");
  return json + "]\n";
}

std::string as_json(const std::vector<automatic::RegionReport>& reports) {
  std::string json = "[";
  for (const automatic::RegionReport& r : reports)
    json += text(json.size() > 1 ? ",\n " : "", "{\"region\": ", quoted(r.name), ", \"nodes\": ", r.nodes,
                 ", \"keys\": ", r.keys, ", \"graphs\": ", r.graphs, ", \"scratch_bytes\": ", r.scratch_bytes,
                 ", \"captures\": ", r.captures, ", \"replays\": ", r.replays, ", \"staged\": ", r.staged,
                 ", \"first_runs\": ", r.first_runs, ", \"padded\": ", r.padded, ", \"grown\": ", r.grown,
                 ", \"lengths\": ", numbers_as_json(r.lengths), ", \"changing\": ", as_json(r.changing),
                 ", \"in_captures\": ", r.in_captures, ", \"eager\": ", r.eager(), ", \"moved\": ", r.moved,
                 ", \"crowded\": ", r.crowded, ", \"refused\": ", r.refused, ", \"refusal\": ", quoted(r.refusal),
                 ", \"shapes\": ", as_json(r.shapes), "}");
  return json + "]\n";
}

std::string as_json(const std::map<std::string, std::vector<PlacedNode>>& by_graph) {
  std::string json = "[";
  for (const auto& [graph, nodes] : by_graph)
    for (const PlacedNode& node : nodes)
      json +=
          text(json.size() > 1 ? ",\n " : "", "{\"node\": ", quoted(node.node), ", \"inside\": ", quoted(graph),
               ", \"on_encore\": ", node.is_on_encore ? "true" : "false",
               ", \"part\": ", node.part.empty() ? "null" : quoted(node.part), ", \"why\": ", quoted(node.why), "}");
  return json + "]\n";
}

std::string as_json_line(const device::TraceEntry& entry) {
  return text("{\"stream\": ", reinterpret_cast<uintptr_t>(entry.stream), ", \"what\": ", quoted(name(entry.what)),
              ", \"name\": ", quoted(entry.name), ", \"label\": ", quoted(entry.label), "}\n");
}

std::string as_json(const MemoryReport& r) {
  std::string holders;
  for (const memory::Holder& holder : r.holders)
    holders += text(holders.empty() ? "" : ",\n  ", "{\"name\": ", quoted(holder.name), ", \"bytes\": ", holder.bytes,
                    ", \"blocks\": ", holder.blocks, "}");
  return text(
      "{\"arena\": {\"in_use_bytes\": ", r.arena.in_use_bytes, ", \"held_bytes\": ", r.arena.held_bytes,
      ", \"graph_bytes\": ", r.arena.graph_bytes, ", \"peak_in_use_bytes\": ", r.arena.peak_in_use_bytes,
      ", \"limit_bytes\": ", limit_as_json(r.arena.limit_bytes), ", \"largest_bytes\": ", r.arena.largest_bytes,
      ", \"allocations\": ", r.arena.allocations, ", \"reserves\": ", r.arena.reserves,
      ", \"driver_allocations\": ", r.arena.driver_allocations, ", \"shrinks\": ", r.arena.shrinks,
      "},\n \"holders\": [", holders, "],\n \"pinned\": {\"in_use_bytes\": ", r.pinned.in_use_bytes,
      ", \"held_bytes\": ", r.pinned.held_bytes, ", \"peak_in_use_bytes\": ", r.pinned.peak_in_use_bytes,
      ", \"allocations\": ", r.pinned.allocations, ", \"driver_allocations\": ", r.pinned.driver_allocations,
      "},\n \"staging\": {\"held_bytes\": ", r.staging_bytes,
      "},\n \"automatic_graphs\": {\"graphs\": ", r.graphs.graphs, ", \"workspace_bytes\": ", r.graphs.workspace_bytes,
      ", \"node_bytes\": ", r.graphs.node_bytes, ", \"limit_bytes\": ", limit_as_json(r.graphs.limit_bytes),
      "},\n \"device\": {\"free_bytes\": ", r.device.free_bytes, ", \"total_bytes\": ", r.device.total_bytes, "}}\n");
}

std::string as_json(const std::vector<device::TunedProduct>& tuned) {
  std::string json = "[";
  for (const device::TunedProduct& one : tuned)
    json +=
        text(json.size() > 1 ? ",\n " : "", "{\"problem\": ", quoted(one.problem), ", \"candidates\": ", one.candidates,
             ", \"chosen\": ", one.chosen, ", \"first_us\": ", one.first_us, ", \"chosen_us\": ", one.chosen_us, "}");
  return json + "]\n";
}

std::string to_the_nanosecond(double us) {
  char digits[32];
  const auto end = std::to_chars(digits, digits + sizeof digits, us, std::chars_format::fixed, 3).ptr;
  return {digits, end};
}

std::string as_json(const std::vector<profile::Span>& spans) {
  std::string json = "[";
  std::map<const void*, size_t> streams;
  for (const profile::Span& span : spans) {
    const size_t stream = streams.emplace(span.stream, streams.size()).first->second;
    const std::chrono::duration<double, std::micro> begin = span.begin - spans[0].begin;
    json += text(json.size() > 1 ? ",\n " : "", "{\"name\": ", quoted(span.name), ", \"op\": ", quoted(span.op),
                 ", \"replay\": ", span.is_replay ? "true" : "false", ", \"depth\": ", span.depth,
                 ", \"stream\": ", stream, ", \"begin_us\": ", to_the_nanosecond(begin.count()),
                 ", \"us\": ", to_the_nanosecond(span.us), ", \"own_us\": ", to_the_nanosecond(span.own_us), "}");
  }
  return json + "]\n";
}

void write_report(const std::string& json, const std::string& path) { write("the report", json, path); }

void trace(const std::string& value) {
  if (value == "start") return device::start_trace();
  std::string lines;
  for (const device::TraceEntry& entry : device::stop_trace()) lines += as_json_line(entry);
  write("the trace", lines, value);
}

}  // namespace encore::plugin
