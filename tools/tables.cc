// Writes docs/operators.md or docs/options.md from the tables in the code: `tables operators`, `tables options`.
#include <algorithm>
#include <cstring>
#include <iostream>
#include <map>
#include <set>
#include <string_view>

#include "operators.h"
#include "ops/registry.h"
#include "plugin/options/options.h"

namespace {

void operators() {
  std::cout << R"(# Operators

Made from the table in the code by `./encore docs`. Versions are those of the operators' schemas. A node of another
version or type stays with another execution provider, and `log_placement=1` says why. `com.ms.internal.nhwc` is the
domain of ai.onnx's operators where onnxruntime has put the channels last (`prefer_nhwc=1`). *In host memory* are inputs
and outputs that the host reads or makes.

| domain | operator | versions | types | in host memory |
|---|---|---|---|---|
)";
  auto rows = encore::ops::rows();
  std::sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) {
    const int order = std::strcmp(a.domain, b.domain);
    return order ? order < 0 : std::pair(std::string(a.name), a.since) < std::pair(std::string(b.name), b.since);
  });
  for (const auto& row : rows) {
    std::cout << "| " << (*row.domain ? row.domain : "ai.onnx") << " | " << row.name << " | " << row.since;
    if (row.until != row.since) std::cout << "–" << row.until;
    std::cout << " | ";
    // Inputs with the same types share an entry.
    std::map<std::string, std::string> by_types;
    std::vector<std::string> order;
    for (const auto& rule : row.types) {
      std::string& slots = by_types[rule.types.str()];
      if (slots.empty()) order.push_back(rule.types.str());
      slots += (slots.empty() ? "" : ", ") + std::string(rule.output ? "out " : "in ") + std::to_string(rule.index) +
               (rule.and_following ? "…" : "");
    }
    for (size_t i = 0; i < order.size(); ++i) std::cout << (i ? "; " : "") << by_types[order[i]] << ": " << order[i];
    std::cout << " | ";
    for (size_t i = 0; i < row.host_inputs.size(); ++i) std::cout << (i ? ", " : "") << "in " << row.host_inputs[i];
    for (size_t i = 0; i < row.host_outputs.size(); ++i)
      std::cout << (i || !row.host_inputs.empty() ? ", " : "") << "out " << row.host_outputs[i];
    std::cout << " |\n";
  }
  std::cout << "\n## Where they are\n\nThe last lines of a file say which operators are in it, and what their rules "
               "are.\n\n| file | operators |\n|---|---|\n";
  for (const auto& file : encore::ops::kOperators) {
    std::set<std::string> names;
    for (const auto& row : file.rows()) names.insert(row.name);
    std::cout << "| `src/" << file.path << "` |";
    for (const auto& name : names) std::cout << (name == *names.begin() ? " " : ", ") << name;
    std::cout << " |\n";
  }
}

// Above the option that is the first of its kind.
const std::map<std::string_view, const char*> kTopics = {
    {"device_id", "The device"}, {"enable_cuda_graph", "Graphs"}, {"has_user_compute_stream", "Streams"},
    {"gpu_mem_limit", "Memory"}, {"use_tf32", "Computing"},       {"log_placement", "Looking inside"},
};

void options() {
  std::cout << R"(# Options

Made from the table in the code by `./encore docs`.

In Python each option is a keyword of `encore.session`; one with a dot in its name is given as
`**{"arena.max_mem": 1 << 30}`. Elsewhere options are text: provider options of `add_provider_for_devices` and
`AppendExecutionProvider_V2`, or entries of the session's configuration under the key `ep.cuda.KEY`, or `ep.NAME.KEY`
with the provider's name in lower case. Some are read there as bare keys, too, which is said below.
)";
  for (const auto& row : encore::plugin::option_rows()) {
    if (const auto topic = kTopics.find(row.key); topic != kTopics.end()) std::cout << "\n## " << topic->second << "\n";
    std::cout << "\n### `" << row.key << "`\n\n"
              << row.doc << "\n\n*Allowed:* " << row.allowed << ". *Default:* "
              << (*row.otherwise ? row.otherwise : "none") << ".";
    if (row.bare) std::cout << " *Also as a bare key.*";
    std::cout << "\n";
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc == 2 ? argv[1] : "";
  if (what == "operators")
    operators();
  else if (what == "options")
    options();
  else
    return std::cerr << "tables operators|options\n", 2;
}
