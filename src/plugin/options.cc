#include "plugin/options.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <numeric>
#include <optional>

#include "device/error.h"

namespace encore::plugin {
namespace {

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

template <class T>
std::optional<T> number(std::string_view text, T least, T most) {
  T value{};
  const char* const end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stopped != end || value < least || value > most) return std::nullopt;
  return value;
}

template <class T>
bool take(std::optional<T> value, T& into) {
  if (value) into = *value;
  return value.has_value();
}

std::optional<bool> flag(std::string_view text) {
  const std::string value = lower(text);
  if (value == "1" || value == "true") return true;
  if (value == "0" || value == "false") return false;
  return std::nullopt;
}

// onnxruntime runs a model at most eight times in a row to get it captured; with more than six warm-ups its own
// count can run out before the capture has happened.
constexpr int kMostWarmUps = 6;

constexpr OptionRow kRows[] = {
    {"device_id", true, "0", "the number of a device", "The CUDA device to run on.",
     [](std::string_view value, Options& o) { return take(number(value, 0, 1 << 16), o.device_id); }},
    {"enable_cuda_graph", true, "0", "0 or 1",
     "Capture the model into a CUDA graph, and replay it (onnxruntime 1.26 or newer).",
     [](std::string_view value, Options& o) { return take(flag(value), o.enable_cuda_graph); }},
    {"min_num_runs_before_cuda_graph_capture", false, "2",
     "a number from 1 to 6 (onnxruntime gives up after eight runs in a row)",
     "Eager runs before the capture, in each thread and for each graph id.",
     [](std::string_view value, Options& o) {
       return take(number(value, 1, kMostWarmUps), o.min_num_runs_before_cuda_graph_capture);
     }},
    {"graph_on_error", false, "fail", "fail or eager",
     "When a model can't be captured: fail the run with the reason, or warn and go on without graphs.",
     [](std::string_view value, Options& o) {
       if (value != "fail" && value != "eager") return false;
       o.graph_on_error = value == "fail" ? graph::OnError::fail : graph::OnError::eager;
       return true;
     }},
    {"use_tf32", true, "1", "0 or 1", "Let float matrix products and convolutions use TF32 tensor cores.",
     [](std::string_view value, Options& o) { return take(flag(value), o.use_tf32); }},
    {"enable_cudnn", false, "1", "0 or 1", "Use cuDNN for convolutions; if not, they are lowered to matrix products.",
     [](std::string_view value, Options& o) { return take(flag(value), o.enable_cudnn); }},
    {"cudnn_conv_algo_search", true, "EXHAUSTIVE", "EXHAUSTIVE, HEURISTIC or DEFAULT",
     "Time cuDNN's candidates for each new convolution in the first run, or trust its heuristics (the other two).",
     [](std::string_view value, Options& o) {
       if (value != "EXHAUSTIVE" && value != "HEURISTIC" && value != "DEFAULT") return false;
       o.measure_convolutions = value == "EXHAUSTIVE";
       return true;
     }},
    {"gpu_mem_limit", true, "18446744073709551615", "a number of bytes, more than zero",
     "The most device memory that the session's arena may hold, in bytes.",
     [](std::string_view value, Options& o) { return take(number<size_t>(value, 1, SIZE_MAX), o.gpu_mem_limit); }},
    {"arena_extend_strategy", true, "kNextPowerOfTwo", "kNextPowerOfTwo or kSameAsRequested",
     "Grow the arena by doubling, or by what is asked for.",
     [](std::string_view value, Options& o) {
       if (value != "kNextPowerOfTwo" && value != "kSameAsRequested") return false;
       o.grow_by_doubling = value == "kNextPowerOfTwo";
       return true;
     }},
    {"log_placement", false, "0", "0 or 1", "Log, as warnings, each node that is left to another provider, and why.",
     [](std::string_view value, Options& o) { return take(flag(value), o.log_placement); }},
};

const OptionRow* find_option(std::string_view key) {
  const auto row = std::find_if(std::begin(kRows), std::end(kRows), [&](const OptionRow& r) { return key == r.key; });
  return row == std::end(kRows) ? nullptr : row;
}

size_t edits_between(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t changed = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, changed});
    }
  }
  return row[b.size()];
}

}  // namespace

std::span<const OptionRow> option_rows() { return kRows; }

std::vector<std::string> option_prefixes(std::string_view ep_name) {
  return {"ep." + lower(ep_name) + ".", "ep.cuda."};
}

std::string nearest(std::string_view key, std::span<const std::string> candidates) {
  const auto best = std::min_element(candidates.begin(), candidates.end(), [&](const auto& a, const auto& b) {
    return edits_between(key, a) < edits_between(key, b);
  });
  return best == candidates.end() ? std::string() : *best;
}

Options parse_options(std::string_view ep_name, const std::map<std::string, std::string>& config) {
  Options options;
  const std::vector<std::string> prefixes = option_prefixes(ep_name);
  std::map<std::string, std::pair<std::string, std::string>> given;  // option: the full key and the value it came from
  for (const auto& [key, value] : config) {
    const auto prefix =
        std::find_if(prefixes.begin(), prefixes.end(), [&](const auto& p) { return key.starts_with(p); });
    const std::string bare = prefix == prefixes.end() ? key : key.substr(prefix->size());
    const OptionRow* const row = find_option(bare);
    if (prefix == prefixes.end() && !(row && row->bare)) continue;
    if (!row) {
      std::vector<std::string> known;
      for (const OptionRow& r : kRows) known.emplace_back(r.key);
      fail(Code::invalid_input, "unknown provider option '", key, "'; did you mean '", *prefix, nearest(bare, known),
           "'?");
    }
    require(row->parse(value, options), "provider option '", key, "' is '", value, "'; it must be ", row->allowed);
    const auto [before, first] = given.try_emplace(bare, key, value);
    require(first || before->second.second == value, "provider option '", key, "' is '", value, "', but '",
            before->second.first, "' is '", before->second.second, "'; give one of them");
  }
  return options;
}

}  // namespace encore::plugin
