#include "ops/registry.h"

#include <map>

#include "operators.h"
#include "ops/newer.h"

namespace encore::ops {

std::string Types::str() const {
  std::string out;
  for (int i = 1; i < 32; ++i)
    if (bits_ >> i & 1) out += (out.empty() ? "" : ", ") + std::string(device::name(Type(i)));
  return out;
}

const std::vector<OpRow>& rows() {
  static const std::vector<OpRow> all = [] {
    std::vector<OpRow> joined;
    for (const OperatorFile& file : kOperators)
      for (OpRow& row : file.rows()) joined.push_back(std::move(row));
    return joined;
  }();
  return all;
}

const OpRow* find_row(const std::string& domain, const std::string& name, int since_version) {
  static const auto index = [] {
    std::multimap<std::pair<std::string, std::string>, const OpRow*> map;
    for (const OpRow& row : rows()) map.emplace(std::pair(row.domain, row.name), &row);
    return map;
  }();
  auto [first, last] = index.equal_range({domain, name});
  for (; first != last; ++first)
    if (first->second->since <= since_version && since_version <= first->second->until) return first->second;
  return nullptr;
}

std::string why_declined(const OpRow& row, const NodeInfo& node) {
  for (const TypeRule& rule : row.types) {
    const int count = rule.output ? node.output_count() : node.input_count();
    const int last = rule.and_following ? count - 1 : rule.index;
    for (int i = rule.index; i <= last && i < count; ++i) {
      if (!(rule.output ? node.has_output(i) : node.has_input(i))) continue;
      const Type type = rule.output ? node.output_type(i) : node.input_type(i);
      if (rule.types.has(type)) continue;
      const std::string slot = text(rule.output ? "output " : "input ", i);
      return text(slot,
                  type == Type::undefined ? " is not known to be a tensor" : text(" has type ", device::name(type)),
                  "; supported: ", rule.types.str());
    }
  }
  try {
    if (std::string newer = why_too_new(node); !newer.empty()) return newer;
    if (row.make) row.make(node);
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

}  // namespace encore::ops
