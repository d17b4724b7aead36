#include "ops/matmul/equation.h"

#include <algorithm>

#include "device/error.h"

namespace encore::ops {
namespace {

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

[[noreturn]] void refuse(const std::string& equation, const auto&... why) {
  fail(Code::not_supported, "equation '", equation.substr(0, 200), "': ", why...);
}

// Letters and at most one ellipsis, from text[at] on to the end of the term.
Labels parse_term(const std::string& equation, const std::string& text, size_t& at) {
  Labels term;
  for (; at < text.size() && text[at] != ',' && text[at] != '-'; ++at) {
    if (text[at] == '.') {
      if (text.compare(at, 3, "...") != 0) refuse(equation, "an ellipsis has three dots");
      if (std::count(term.begin(), term.end(), kEllipsis)) refuse(equation, "a term has two ellipses");
      term.push_back(kEllipsis);
      at += 2;
    } else if (is_letter(text[at])) {
      term.push_back(text[at]);
    } else {
      refuse(equation, "'", text[at], "' is neither a letter nor an ellipsis");
    }
  }
  return term;
}

// The ellipsis, then the letters that are there once, in the order of their codes.
Labels implied_output(const std::vector<Labels>& inputs) {
  Labels all, output;
  for (const Labels& term : inputs) all.insert(all.end(), term.begin(), term.end());
  std::sort(all.begin(), all.end());
  for (size_t i = 0; i < all.size(); ++i) {
    const bool first = i == 0 || all[i - 1] != all[i], last = i + 1 == all.size() || all[i + 1] != all[i];
    if (first && (last || all[i] == kEllipsis)) output.push_back(all[i]);
  }
  return output;
}

}  // namespace

Equation parse_equation(const std::string& equation, int inputs) {
  std::string text;
  std::copy_if(equation.begin(), equation.end(), std::back_inserter(text), [](char c) { return c != ' '; });
  Equation parsed;
  size_t at = 0;
  parsed.inputs.push_back(parse_term(equation, text, at));
  while (at < text.size() && text[at] == ',') parsed.inputs.push_back(parse_term(equation, text, ++at));
  if (int(parsed.inputs.size()) != inputs)
    refuse(equation, "it has ", parsed.inputs.size(), " terms for ", inputs, " inputs");
  if (at == text.size()) {
    parsed.output = implied_output(parsed.inputs);
    return parsed;
  }
  if (text.compare(at, 2, "->") != 0) refuse(equation, "a '-' is not followed by '>'");
  parsed.output = parse_term(equation, text, at += 2);
  if (at != text.size()) refuse(equation, "the output is more than one term");
  const auto is_read = [&](int label) {
    return std::any_of(parsed.inputs.begin(), parsed.inputs.end(),
                       [&](const Labels& term) { return std::count(term.begin(), term.end(), label); });
  };
  for (int label : parsed.output) {
    if (label == kEllipsis) continue;
    if (std::count(parsed.output.begin(), parsed.output.end(), label) > 1)
      refuse(equation, "the output names '", char(label), "' twice");
    if (!is_read(label)) refuse(equation, "the output names '", char(label), "', which no input does");
  }
  if (is_read(kEllipsis) && !std::count(parsed.output.begin(), parsed.output.end(), kEllipsis))
    refuse(equation, "inputs have an ellipsis and the output has none");
  return parsed;
}

Labels labels_of(const Labels& term, int rank, const std::string& what) {
  const bool open = std::count(term.begin(), term.end(), kEllipsis) > 0;
  const int named = int(term.size()) - open;
  require(open ? rank >= named : rank == named, what, " has ", rank, " dimensions; its term names ", named);
  Labels labels;
  for (int label : term) {
    if (label == kEllipsis)
      for (int i = rank - named; i-- > 0;) labels.push_back(kFirstUnnamed + i);
    else
      labels.push_back(label);
  }
  return labels;
}

}  // namespace encore::ops
