// What a Loop's body makes of the values that go on from iteration to iteration.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "plugin/host/api_version.h"

namespace encore::plugin {

struct CarriedValue {
  std::string name, next;      // in the body, as it comes in and as it goes out
  const OrtValueInfo* begins;  // the Loop's input; null if that is absent
  bool is_unchanged = false;   // it goes out as it comes in, so the body may as well read what the Loop begins with
  bool may_be_number = false;  // integers or a condition, and one for all that is known
};
std::vector<CarriedValue> carried_values(const OrtNode* node);  // none of other nodes
// Those that are unchanged, by name in the body: what the Loop begins with.
std::map<std::string, const OrtValueInfo*> unchanged_values(const OrtNode* node);

}  // namespace encore::plugin
