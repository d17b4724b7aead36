// Attributes that name one of several choices.
#pragma once
#include <string>

#include "ops/op.h"

namespace encore::ops {

template <class E>
struct Choice {
  const char* name;
  E value;
};

// What the attribute names. Error{not_supported} says what it may be.
template <class E, size_t kCount>
E read_choice(const NodeInfo& node, const char* attribute, const char* otherwise, const Choice<E> (&choices)[kCount]) {
  const std::string given = node.get_string(attribute, otherwise);
  std::string names;
  for (size_t i = 0; i < kCount; ++i) {
    if (given == choices[i].name) return choices[i].value;
    names += (i == 0 ? "" : i + 1 < kCount ? ", " : " or ") + std::string(choices[i].name);
  }
  fail(Code::not_supported, attribute, " is '", given, "'; it must be ", names);
}

}  // namespace encore::ops
