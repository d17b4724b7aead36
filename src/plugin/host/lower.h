// ASCII letters in lower case.
#pragma once
#include <cctype>
#include <string>
#include <string_view>

namespace encore::plugin {

inline std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

}  // namespace encore::plugin
