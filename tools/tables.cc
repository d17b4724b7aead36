// Writes docs/operators.md, docs/options.md or the package's options.py from the tables in the code: `tables
// operators`, `tables options`, `tables options.py`.
#include <algorithm>
#include <cstring>
#include <iostream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>

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

// Of what completes "it must be ...": an option's type in Python.
std::string python_type(const std::string& allowed) {
  if (allowed == "0 or 1") return "bool";
  if (const std::string flag = "0, 1 or "; allowed.starts_with(flag))
    return "bool | Literal[\"" + allowed.substr(flag.size()) + "\"]";
  if (const std::string bytes = "a number of bytes, more than zero, or "; allowed.starts_with(bytes))
    return "int | Literal[\"" + allowed.substr(bytes.size()) + "\"]";
  if (allowed.starts_with("the path of ")) return "str | os.PathLike[str]";
  if (allowed.starts_with("dimensions ")) return "Mapping[str, int | Iterable[int]] | str";
  for (const char* const number : {"a number ", "the number ", "an address"})
    if (allowed.starts_with(number)) return "int";
  std::string words;
  std::istringstream list(std::regex_replace(allowed, std::regex(",| or | \\(.\\)"), " "));
  for (std::string word; list >> word;) words += (words.empty() ? "\"" : ", \"") + word + "\"";
  return "Literal[" + words + "]";
}

void wrapped(const std::string& text, size_t width) {
  std::istringstream words(text);
  size_t column = 4;
  for (std::string word; words >> word; column += word.size()) {
    if (column + 1 + word.size() > width)
      std::cout << "\n    ", column = 4;
    else if (column > 4)
      std::cout << " ", ++column;
    std::cout << word;
  }
}

void python_options() {
  std::cout << "\"\"\"The provider's options as session() takes them; made from the table in the code by `./encore "
               "docs`.\n\nNone is an option's default.\n\"\"\"\n\n"
               "from __future__ import annotations\n\nimport os\nfrom collections.abc import Iterable, Mapping\n"
               "from typing import Literal, TypedDict\n\n"
               "# Those whose keys are no names in Python: `few: Options = {\"arena.max_mem\": 1 << 30}`, "
               "session(model, **few).\n"
               "_Dotted = TypedDict(\n    \"_Dotted\",\n    {\n";
  for (const auto& row : encore::plugin::option_rows())
    if (std::strchr(row.key, '.'))
      std::cout << "        \"" << row.key << "\": " << python_type(row.allowed) << " | None,\n";
  std::cout << "    },\n    total=False,\n)\n\n\nclass Options(_Dotted, total=False):\n";
  bool first = true;
  for (const auto& row : encore::plugin::option_rows()) {
    if (std::strchr(row.key, '.') || std::string_view(row.key) == "device_id") continue;  // which session() has itself
    std::cout << (std::exchange(first, false) ? "    " : "\n    ") << row.key << ": " << python_type(row.allowed)
              << " | None\n    ";
    wrapped("\"\"\"" + std::string(row.doc) + " Default: " + (*row.otherwise ? row.otherwise : "none") + ".\"\"\"",
            118);
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
  else if (what == "options.py")
    python_options();
  else
    return std::cerr << "tables operators|options|options.py\n", 2;
}
