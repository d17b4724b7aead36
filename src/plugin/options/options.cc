#include "plugin/options/options.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "device/error.h"
#include "plugin/host/lower.h"

namespace encore::plugin {
namespace {

const OptionRow* find_option(std::string_view key) {
  const auto rows = option_rows();
  const auto row = std::find_if(rows.begin(), rows.end(), [&](const OptionRow& r) { return key == r.key; });
  return row == rows.end() ? nullptr : &*row;
}

// Option: the full key and the value it came from.
using Given = std::map<std::string, std::pair<std::string, std::string>>;

// What one option means for others.
void settle(Options& options, const Given& given) {
  const bool denied = given.contains("has_user_compute_stream") && !options.has_user_compute_stream;
  require(
      !options.has_user_compute_stream || options.user_compute_stream,
      "provider option 'has_user_compute_stream' is 1, but 'user_compute_stream' gives no stream; pass its address, "
      "such as torch.cuda.Stream().cuda_stream");
  require(!denied || !options.user_compute_stream,
          "provider option 'has_user_compute_stream' is 0, but 'user_compute_stream' gives one; leave one of them out");
  options.has_user_compute_stream = options.user_compute_stream != nullptr;

  const memory::External& external = options.external;
  require(
      !external.allocate || external.free,
      "provider option 'gpu_external_alloc' is given without 'gpu_external_free'; what is allocated has to be freed");
  require(!external.free || external.allocate,
          "provider option 'gpu_external_free' is given without 'gpu_external_alloc'; give both or neither");
  require(!external.empty_cache || external.allocate,
          "provider option 'gpu_external_empty_cache' is given without 'gpu_external_alloc' and 'gpu_external_free'");
  if (external.allocate) {
    require(!options.has_user_compute_stream,
            "provider options 'user_compute_stream' and 'gpu_external_alloc' exclude each other: nothing tells the "
            "allocator what the stream still uses; leave one of them out");
    require(!options.use_mempool,
            "provider options 'arena.use_cuda_mempool' and 'gpu_external_alloc' exclude each other: both say where the "
            "session's device memory comes from; leave one of them out");
    require(!given.contains("gpu_mem_limit"),
            "provider options 'gpu_mem_limit' and 'gpu_external_alloc' exclude each other: the memory is the external "
            "allocator's, and so is its limit; leave one of them out");
  }
  require(options.use_arena || !options.use_mempool,
          "provider options 'use_arena=0' and 'arena.use_cuda_mempool=1' exclude each other; leave one of them out");
  if (!options.use_mempool)
    for (const char* key : {"arena.cuda_mempool_release_threshold", "arena.cuda_mempool_bytes_to_keep_on_shrink"})
      require(!given.contains(key) || given.at(key).second == "0", "provider option '", key,
              "' needs 'arena.use_cuda_mempool=1'");
  require(
      options.pad.empty() || options.has_regions(),
      "provider option 'pad' is for regions, which 'regions=0' and 'fuse_nodes=0' switch off; leave one of them out");
  require(!options.tunable_op_tuning || options.tunable_op,
          "provider option 'tunable_op_tuning_enable' needs 'tunable_op_enable=1', which uses what tuning finds");
  require(!options.tunable_op_tuning || !options.deterministic,
          "provider options 'tunable_op_tuning_enable' and 'deterministic' exclude each other: tuning chooses by time");
}

// What Encore's own name suggests for a prefix, and isn't one.
constexpr std::string_view kMistaken[] = {"ep.encore.", "encore."};

// How long the prefix of a key is that can only have been meant for Encore, though Encore reads none that begin so.
std::optional<size_t> mistaken(const std::string& key, const std::vector<std::string>& prefixes) {
  for (const std::string_view prefix : kMistaken)
    if (key.starts_with(prefix)) return prefix.size();
  for (const std::string& prefix : prefixes)
    if (lower(key).starts_with(prefix)) return prefix.size();
  if (find_option(key)) return 0;  // without one
  return std::nullopt;
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

// Few letters differ, or one is a part of the other.
bool may_mean(std::string_view key, std::string_view known) {
  constexpr size_t kLeastPart = 4;
  const bool is_part = known.find(key) != known.npos || key.find(known) != key.npos;
  return (is_part && key.size() >= kLeastPart) || edits_between(key, known) <= key.size() / 3;
}

// Where an option has two spellings, the one without a dot, which is a keyword in Python, stands for one without.
std::string unknown(const std::string& key, std::string_view prefix, std::string_view bare) {
  std::vector<std::string> known;
  for (const OptionRow& row : option_rows())
    if (may_mean(bare, row.key)) known.emplace_back(row.key);
  const std::string said = text("unknown provider option '", key, "'");
  if (known.empty()) return said + "; docs/options.md has all that there are";
  std::string meant = nearest(bare, known);
  if (const OptionRow* const row = find_option(meant); row->same_as && bare.find('.') == bare.npos)
    meant = row->same_as;
  return text(said, "; did you mean '", prefix, meant, "'?");
}

}  // namespace

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
  Given given;
  for (const auto& [key, value] : config) {
    const auto prefix =
        std::find_if(prefixes.begin(), prefixes.end(), [&](const auto& p) { return key.starts_with(p); });
    const std::string bare = prefix == prefixes.end() ? key : key.substr(prefix->size());
    const OptionRow* const row = find_option(bare);
    if (prefix == prefixes.end() && !(row && row->bare)) {
      if (const auto meant = mistaken(key, prefixes))
        fail(Code::invalid_input, unknown(key, prefixes.back(), key.substr(*meant)));
      continue;
    }
    if (!row) fail(Code::invalid_input, unknown(key, *prefix, bare));
    require(row->parse(value, options), "provider option '", key, "' is '", value, "'; it must be ", row->allowed);
    const auto [before, first] = given.try_emplace(row->same_as ? row->same_as : bare, key, value);
    require(first || before->second.second == value, "provider option '", key, "' is '", value, "', but '",
            before->second.first, "' is '", before->second.second, "'; give one of them");
  }
  settle(options, given);
  return options;
}

}  // namespace encore::plugin
