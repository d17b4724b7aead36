// Attributes which are lists of strings: recurrent operators name their activations so.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "ops/op.h"

namespace encore::ops {

// What a NodeInfo is besides, if its caller can tell lists of strings.
class StringLists {
 public:
  virtual std::optional<std::vector<std::string>> find_strings(const char* attribute) const = 0;
  // Whether the node's kernel will be told them, too.
  virtual bool kernel_has_strings() const = 0;

 protected:
  ~StringLists() = default;
};

// The list, or `otherwise`. Error{not_supported} if it says something else and only the graph can tell it.
inline std::vector<std::string> get_strings(const NodeInfo& node, const char* attribute,
                                            const std::vector<std::string>& otherwise) {
  const auto* const lists = dynamic_cast<const StringLists*>(&node);
  const auto found = lists ? lists->find_strings(attribute) : std::nullopt;
  if (!found) return otherwise;
  if (*found != otherwise && !lists->kernel_has_strings())
    fail(Code::not_supported, "attribute '", attribute,
         "' is a list of strings, which this host does not tell "
         "kernels; newer ones do");
  return *found;
}

}  // namespace encore::ops
