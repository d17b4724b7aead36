// Attributes that are one of several choices.
#pragma once
#include <string>

#include "ops/op.h"

namespace encore::ops {

template <class E, class Name = const char*>
struct Choice {
  Name name;
  E value;
};

template <class E, class Name, size_t kCount, class Given>
E chosen(const char* attribute, const Given& given, const char* quote, const Choice<E, Name> (&choices)[kCount]) {
  std::string names;
  for (size_t i = 0; i < kCount; ++i) {
    if (given == choices[i].name) return choices[i].value;
    const std::string name = text(choices[i].name);
    names += (i == 0 ? "" : i + 1 < kCount ? ", " : " or ") + (name.empty() ? "empty" : name);
  }
  fail(Code::not_supported, attribute, " is ", quote, given, quote, "; it must be ", names);
}

// What the attribute names or numbers. Error{not_supported} says what it may be.
template <class E, size_t kCount>
E read_choice(const NodeInfo& node, const char* attribute, const std::string& otherwise,
              const Choice<E> (&choices)[kCount]) {
  return chosen(attribute, node.get_string(attribute, otherwise), "'", choices);
}
template <class E, size_t kCount>
E read_choice(const NodeInfo& node, const char* attribute, int64_t otherwise,
              const Choice<E, int64_t> (&choices)[kCount]) {
  return chosen(attribute, node.get_int(attribute, otherwise), "", choices);
}

// 0 or 1, and nothing else.
inline bool read_flag(const NodeInfo& node, const char* attribute, bool otherwise) {
  return read_choice<bool>(node, attribute, int64_t(otherwise), {{0, false}, {1, true}});
}

}  // namespace encore::ops
