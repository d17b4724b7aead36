#include <algorithm>
#include <map>

#include "fuse/plan_text.h"
#include "fuse/text_numbers.h"
#include "ops/registry.h"

namespace encore::fuse {
namespace {

// The words and signs of a line.
struct Token {
  enum Kind { word, quoted, sign, end } kind = end;
  std::string text;
};

class Line {
 public:
  Line(std::string_view line, int number) : rest_(line), number_(number) { advance(); }

  template <class... Parts>
  [[noreturn]] void refuse(const Parts&... parts) const {
    fail(Code::invalid_input, "line ", number_, ": ", text(parts...));
  }
  const std::string& next() const { return next_.text; }
  bool is_at_end() const { return next_.kind == Token::end; }
  bool is(std::string_view sign) const { return next_.kind == Token::sign && next_.text == sign; }
  bool is_word(std::string_view word) const { return next_.kind == Token::word && next_.text == word; }
  bool take(std::string_view sign) {
    const bool is_there = is(sign);
    if (is_there) advance();
    return is_there;
  }
  bool take_word(std::string_view word) {
    const bool is_there = is_word(word);
    if (is_there) advance();
    return is_there;
  }
  void expect(std::string_view sign) {
    if (!take(sign)) refuse("'", sign, "' is missing before '", next_.text, "'");
  }
  Token take_any() {
    Token taken = next_;
    advance();
    return taken;
  }
  std::string take_name(const char* what) {
    if (next_.kind != Token::word && next_.kind != Token::quoted) refuse(what, " is missing");
    return take_any().text;
  }
  // What `read` reads, with commas between, up to the sign.
  template <class Read>
  void list(std::string_view until, Read read) {
    if (take(until)) return;
    do read();
    while (take(","));
    expect(until);
  }
  void finish() const {
    if (!is_at_end()) refuse("'", next_.text, "' is too much");
  }

 private:
  void advance() {
    rest_.remove_prefix(std::min(rest_.find_first_not_of(" \t\r"), rest_.size()));
    next_ = {};
    if (rest_.empty()) return;
    if (rest_[0] == '"') return quote();
    constexpr const char *kSigns = ":,=()[]{}@#", *kEndsOfWords = " \t\r\":,=()[]{}@#";
    next_.kind = rest_.find_first_of(kSigns) == 0 ? Token::sign : Token::word;
    const size_t length = std::max<size_t>(1, std::min(rest_.find_first_of(kEndsOfWords), rest_.size()));
    next_.text = rest_.substr(0, length);
    rest_.remove_prefix(length);
  }
  void quote() {
    next_.kind = Token::quoted;
    for (size_t i = 1; i < rest_.size(); ++i) {
      if (rest_[i] == '"') return rest_.remove_prefix(i + 1);
      const bool is_escaped = rest_[i] == '\\' && i + 1 < rest_.size();
      const char c = rest_[is_escaped ? ++i : i];
      next_.text += is_escaped && c == 'n' ? '\n' : c;
    }
    refuse("a quote does not end");
  }

  std::string_view rest_;
  int number_;
  Token next_;
};

class Text {
 public:
  explicit Text(std::string_view text) : rest_(text) {}
  // Nothing at the end; lines of nothing but a comment are passed over.
  std::optional<Line> next() {
    while (!rest_.empty()) {
      const size_t length = std::min(rest_.find('\n'), rest_.size());
      Line line(rest_.substr(0, length), ++number_);
      rest_.remove_prefix(std::min(length + 1, rest_.size()));
      if (!line.is_at_end() && !line.is("#")) return line;
    }
    return std::nullopt;
  }

 private:
  std::string_view rest_;
  int number_ = 0;
};

class Reading {
 public:
  Reading(Text& text, int depth) : text_(text), depth_(depth) {}

  Plan run() {
    while (auto line = text_.next()) {
      if (depth_ > 0 && line->take("}")) {
        closing_ = std::move(line);
        break;
      }
      read(*line);
    }
    if (depth_ > 0 && !closing_) fail(Code::invalid_input, "the text ends before a '}'");
    return std::move(plan_);
  }
  const Line& closing() const { return *closing_; }  // what is behind the brace, of bodies

 private:
  void read(Line& line) {
    if (line.take_word("in"))
      read_input(line);
    else if (line.take_word("const"))
      read_constant(line);
    else if (line.take_word("by"))
      read_by_data(line);
    else if (line.take_word("beyond"))
      read_beyond(line);
    else if (line.take_word("view"))
      read_view(line);
    else if (line.take_word("out"))
      read_output(line);
    else
      read_step(line);
  }

  void read_by_data(Line& line) {
    plan_.by_data = line.take_word("data");
    if (line.take_word("beyond")) return read_beyond(line);
    line.finish();
  }

  void read_beyond(Line& line) {
    plan_.beyond = read_number<int64_t>(line, line.take_name("a number"));
    line.finish();
  }

  void read_input(Line& line) {
    if (line.take_word("host")) return read_host_input(line);
    if (line.take_word("outer")) return read_outer_input(line);
    const bool is_constant = line.take_word("const");
    const int v = read_typed(line);
    plan_.values[size_t(v)].is_constant = is_constant;
    plan_.inputs.insert(plan_.inputs.end() - ptrdiff_t(plan_.outer_inputs), v);
    line.finish();
  }

  void read_outer_input(Line& line) {
    plan_.inputs.push_back(read_typed(line));
    ++plan_.outer_inputs;
    line.finish();
  }

  // Which may be there on the device, too.
  void read_host_input(Line& line) {
    if (line.take_word("carried")) ++plan_.host_carried;
    const bool is_known = known_.contains(line.next());
    plan_.host_inputs.push_back(is_known ? find(line, line.take_name("a value's name")) : read_typed(line));
    line.finish();
  }

  void read_constant(Line& line) {
    const int v = read_typed(line);
    plan_.values[size_t(v)].is_constant = true;
    if (line.take("=")) {
      plan_.constants.push_back(read_elements(line, plan_.values[size_t(v)]));
      plan_.values[size_t(v)].constant = &plan_.constants.back()->view;
    }
    line.finish();
  }

  std::shared_ptr<OwnTensor> read_elements(Line& line, const Value& value) {
    std::vector<std::string> words;
    const auto read = [&] { words.push_back(line.take_name("a number")); };
    if (line.take("["))
      line.list("]", read);
    else
      read();
    const size_t size = device::size_bytes(value.type);
    auto made = std::make_shared<OwnTensor>();
    made->bytes.resize(words.size() * size);
    for (size_t i = 0; i < words.size(); ++i)
      if (!visit_element(value.type, made->bytes.data() + i * size, [&](auto* at) {
            const auto number = number_from<std::remove_pointer_t<decltype(at)>>(words[i]);
            if (!number) line.refuse("'", words[i], "' is no ", kTypeNames[size_t(value.type)]);
            *at = *number;
          }))
        line.refuse("constants of this type cannot be written");
    const std::vector<int64_t> dims = value.dims.value_or(std::vector<int64_t>());
    if (std::ranges::any_of(dims, [&](int64_t dim) { return dim < 0 || dim > int64_t(words.size()); }))
      line.refuse("these are not as many numbers as its dimensions say");
    made->view = {value.type, ops::Where::host, ops::Shape(dims), made->bytes.data()};
    if (made->view.count() != int64_t(words.size())) line.refuse("these are not as many numbers as its dimensions say");
    return made;
  }

  // Of an input, a value that is new; or of an output, which is.
  void read_view(Line& line) {
    const bool is_made = known_.contains(line.next());
    const int inner = is_made ? find(line, line.take_name("a value's name")) : read_typed(line);
    if (!line.take_word("of")) line.refuse("'of' is missing");
    const int outer = is_made ? read_typed(line) : find(line, line.take_name("a value's name"));
    plan_.views.push_back({inner, outer});
    line.finish();
  }

  void read_output(Line& line) {
    const int v = find(line, line.take_name("a value's name"));
    plan_.values[size_t(v)].is_output = true;
    plan_.outputs.push_back(v);
    line.finish();
  }

  void read_step(Line& line) {
    const Runs runs = line.take_word("host")        ? Runs::on_host
                      : line.take_word("elsewhere") ? Runs::elsewhere
                                                    : Runs::on_device;
    std::vector<int> outputs, inputs;
    do outputs.push_back(line.take_word("_") ? -1 : read_typed(line));
    while (line.take(","));
    line.expect("=");
    const std::string called = line.take_name("an operator");
    const size_t dot = called.rfind('.');
    Operator op{dot == called.npos ? "" : called.substr(0, dot), dot == called.npos ? called : called.substr(dot + 1)};
    op.since_version = newest_version(op.domain);
    if (line.take("@")) op.since_version = read_number<int>(line, line.take_name("a version"));
    line.expect("(");
    line.list(")", [&] { inputs.push_back(line.take_word("_") ? -1 : find(line, line.take_name("a value's name"))); });
    std::string name;
    if (line.take("{")) line.list("}", [&] { read_attribute(line, op.attributes); });
    std::vector<Body> bodies;
    while (!line.is_at_end() && !line.is("#")) {
      std::string body = line.take_name("a body's name");
      line.expect("{");
      line.finish();
      bodies.push_back({std::move(body), read_body(line)});
    }
    if (line.take("#")) name = line.take_name("a node's name");
    line.finish();
    Step step = plan_.step(std::move(op), std::move(name), std::move(inputs), std::move(outputs));
    step.runs = runs;
    step.origin = {int(plan_.steps.size())};
    step.bodies = std::move(bodies);
    plan_.steps.push_back(std::move(step));
  }

  // The line goes on behind their end.
  std::shared_ptr<Plan> read_body(Line& line) {
    constexpr int kDeepest = 8;
    if (depth_ == kDeepest) line.refuse("bodies are in bodies of bodies");
    Reading inside(text_, depth_ + 1);
    auto made = std::make_shared<Plan>(inside.run());
    line = inside.closing();
    return made;
  }

  void read_attribute(Line& line, ops::Attributes& attributes) {
    ops::Attribute& made = attributes[line.take_name("an attribute's name")];
    line.expect("=");
    if (line.take("[")) {
      std::vector<std::string> words;
      line.list("]", [&] { words.push_back(line.take_name("a number")); });
      if (words.empty() || number_from<int64_t>(words[0]))
        made = read_numbers<int64_t>(line, words);
      else
        made = read_numbers<float>(line, words);
      return;
    }
    const Token token = line.take_any();
    if (token.kind == Token::quoted)
      made = token.text;
    else if (const auto number = number_from<int64_t>(token.text))
      made = *number;
    else if (token.text != "...")
      made = read_number<float>(line, token.text);
  }
  template <class T>
  static std::vector<T> read_numbers(const Line& line, const std::vector<std::string>& words) {
    std::vector<T> list;
    for (const std::string& word : words) list.push_back(read_number<T>(line, word));
    return list;
  }
  template <class T>
  static T read_number(const Line& line, const std::string& word) {
    const auto number = number_from<T>(word);
    if (!number) line.refuse("'", word, "' is no number that can stand here");
    return *number;
  }

  // A new value, with its type, if that is known.
  int read_typed(Line& line) {
    const int v = declare(line, line.take_name("a value's name"));
    if (!line.take(":")) return v;
    const std::string type = line.take_name("a type");
    const auto known = std::ranges::find(kTypeNames, type);
    if (known == std::end(kTypeNames) || type == "_") line.refuse("'", type, "' is no type");
    plan_.values[size_t(v)].type = Type(known - std::begin(kTypeNames));
    if (!line.take("[")) return v;
    std::vector<int64_t>& dims = plan_.values[size_t(v)].dims.emplace();
    line.list("]", [&] { dims.push_back(read_dim(line)); });
    return v;
  }
  int64_t read_dim(Line& line) {
    const Token token = line.take_any();
    if (token.kind != Token::word && token.kind != Token::quoted) line.refuse("a dimension is missing");
    if (token.kind == Token::word) {
      if (token.text == "?") return -1;
      if (const auto number = number_from<int64_t>(token.text)) {
        if (*number < 0) line.refuse("a dimension is ", *number);
        return *number;
      }
    }
    const bool has_name = token.kind == Token::quoted || !token.text.starts_with('?');
    const auto [known, is_new] = symbols_.try_emplace(token.text, 0);
    if (is_new) known->second = plan_.symbols->add(has_name ? token.text : "");
    return known->second;
  }

  int declare(const Line& line, const std::string& name) {
    if (known_.contains(name)) line.refuse("there is a value '", name, "' already");
    return known_[name] = plan_.add({.name = name});
  }
  int find(const Line& line, const std::string& name) const {
    const auto known = known_.find(name);
    if (known == known_.end()) line.refuse("no value has the name '", name, "'");
    return known->second;
  }

  Text& text_;
  const int depth_;
  std::optional<Line> closing_;
  Plan plan_;
  std::map<std::string, int> known_;  // values
  std::map<std::string, int64_t> symbols_;
};

}  // namespace

Plan plan_from(std::string_view text) {
  Text lines(text);
  return Reading(lines, 0).run();
}

}  // namespace encore::fuse
