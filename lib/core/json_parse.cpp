// SPDX-License-Identifier: MIT
// Json::parse on nlohmann's event parser, which checks grammar and UTF-8; further strictness is
// here.
#include <algorithm>
#include <cctype>
#include <iterator>
#include <nlohmann/json.hpp>

#include "lib/core/file.h"
#include "lib/core/json_node.h"

namespace tessera {
namespace {

// Input iterator that shows the builder how far the parser has read.
struct Cursor {
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  const char* at;
  const char** read_to;

  reference operator*() const { return *at; }
  Cursor& operator++() {
    *read_to = ++at;
    return *this;
  }
  Cursor operator++(int) {
    Cursor before = *this;
    ++*this;
    return before;
  }
  bool operator==(const Cursor& other) const { return at == other.at; }
  bool operator!=(const Cursor& other) const { return at != other.at; }
};

// At most 60 printable characters of text from the file.
std::string excerpt(std::string_view text) {
  std::string result;
  for (const char c : text.substr(0, 60)) result += c >= 0x20 && c < 0x7F ? c : '?';
  return text.size() > 60 ? result + "..." : result;
}

// The unquoted word around `at`, whose first letters were read as a value.
std::string_view bare_word(std::string_view text, size_t at) {
  const size_t before = text.find_last_of(" \t\r\n,:[{\"", at == 0 ? 0 : at - 1);
  const size_t begin = before == text.npos || before == at ? at : before + 1;
  size_t end = begin;
  for (int braces = 0; end < text.size(); ++end) {
    if (std::string_view(" \t\r\n,]\":").find(text[end]) != std::string_view::npos) break;
    braces += (text[end] == '{') - (text[end] == '}');
    if (braces < 0) break;
  }
  return text.substr(begin, end - begin);
}

std::string remedy(std::string_view word, bool is_key) {
  if (is_key) return "a key needs quotation marks";
  std::string small(word);
  std::ranges::transform(small, small.begin(), [](unsigned char c) { return std::tolower(c); });
  if (small == "none") small = "null";
  if (small == "true" || small == "false" || small == "null") return "write " + small;
  return "a text needs quotation marks, a placeholder its value";
}

}  // namespace

class Json::Builder {
 public:
  Builder(std::string_view text, const JsonLimits& limits, Document& document)
      : text_(text), limits_(limits), document_(document), read_to_(text.data()) {
    if (text.substr(0, 3) == "\xEF\xBB\xBF") begin_ = 3;  // byte-order mark
  }

  Cursor begin() { return {text_.data(), &read_to_}; }
  Cursor end() { return {text_.data() + text_.size(), &read_to_}; }

  bool null() { return add(std::monostate()); }
  bool boolean(bool flag) { return add(flag); }
  bool number_integer(int64_t number) { return add(number); }
  bool number_unsigned(uint64_t number) {
    if (number <= uint64_t(std::numeric_limits<int64_t>::max())) return add(int64_t(number));
    return add(number);
  }
  bool number_float(double number, const std::string& text) {
    // The digits are checked, since the decimal point is that of the host's locale.
    if (text.find_first_not_of("-0123456789") != std::string::npos) return add(number);
    return add(Node::HugeInteger{number, text});
  }
  bool string(std::string& text) { return add(std::move(text)); }
  bool binary(std::vector<uint8_t>&) { return false; }  // never called for JSON text
  bool key(std::string& name) {
    token_start();
    open_.back().key = std::move(name);
    return true;
  }
  bool start_object(size_t) { return open(Object()); }
  bool start_array(size_t) { return open(Node::Array()); }
  bool end_array() {
    token_start();
    open_.pop_back();
    return true;
  }
  bool end_object() {
    token_start();
    if (const auto* twice = std::get<Object>(open_.back().node->value).index()) {
      refuse(twice->second.offset, concat("the key \"", excerpt(twice->first), "\" appears twice"));
    }
    open_.pop_back();
    return true;
  }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception& error) {
    std::string_view message = error.what();
    if (const size_t syntax = message.find("syntax error"); syntax != message.npos) {
      message.remove_prefix(syntax);
    }
    std::string detail(message.substr(0, message.find("; last read")));
    const auto says = [&](const char* what) { return message.find(what) != message.npos; };
    const bool at_end = says("unexpected end of input") || position == 0;
    const size_t offset = at_end ? read_to_ - text_.data() : position - 1;
    const std::string_view word = says("invalid literal") ? bare_word(text_, offset) : "";
    if (word.empty()) refuse(offset, detail);
    refuse(static_cast<size_t>(word.data() - text_.data()),
           concat("\"", excerpt(word), "\" is no value of JSON; ",
                  remedy(word, says("parsing object key"))));
  }

  [[noreturn]] void refuse(size_t offset, const std::string& message) const {
    tessera::fail(limits_.error_code, document_.origin, ": ", document_.place(offset),
                  ": not accepted as JSON: ", message);
  }

 private:
  struct Open {
    Node* node;
    std::string key;
  };

  // Offset of the first byte of the current token; only white space, commas and colons precede it.
  size_t token_start() {
    const size_t start = std::min(text_.find_first_not_of(" \t\r\n,:", begin_), text_.size());
    begin_ = static_cast<size_t>(read_to_ - text_.data());
    return start;
  }

  template <typename Value>
  bool add(Value&& value) {
    insert(Node{token_start(), std::forward<Value>(value)});
    return true;
  }

  Node* insert(Node node) {
    if (open_.empty()) {
      document_.root = std::move(node);
      return &document_.root;
    }
    Node& parent = *open_.back().node;
    if (auto* array = std::get_if<Node::Array>(&parent.value)) {
      return &array->emplace_back(std::move(node));
    }
    auto& members = std::get<Object>(parent.value).members;
    return &members.emplace_back(std::move(open_.back().key), std::move(node)).second;
  }

  template <typename Container>
  bool open(Container container) {
    const size_t start = token_start();
    if (open_.size() >= limits_.max_depth) {
      refuse(start, concat("nested deeper than ", limits_.max_depth, " levels"));
    }
    // The pointer stays valid: siblings are added only after this container is closed.
    open_.push_back({insert(Node{start, std::move(container)}), {}});
    return true;
  }

  std::string_view text_;
  const JsonLimits& limits_;
  Document& document_;
  const char* read_to_;
  size_t begin_ = 0;
  std::vector<Open> open_;
};

Json Json::parse(std::string_view text, const JsonLimits& limits, const std::string& origin) {
  check(text.size() <= limits.max_bytes, limits.error_code, origin, ": ", text.size(),
        " bytes of JSON, at most ", limits.max_bytes, " are accepted here");
  auto document = std::make_shared<Document>();
  document->origin = origin;
  document->error_code = limits.error_code;
  document->line_starts.push_back(0);
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\n') document->line_starts.push_back(i + 1);
  }
  Builder builder(text, limits, *document);
  if (const size_t valid = utf8_valid_prefix(text); valid != text.size()) {
    builder.refuse(valid, "not valid UTF-8");
  }
  nlohmann::json::sax_parse(builder.begin(), builder.end(), &builder);
  const Node* root = &document->root;
  return Json(std::move(document), root);
}

Json Json::parse_file(const std::string& path, const JsonLimits& limits) {
  return parse(read_file(path, limits.max_bytes), limits, path);
}

}  // namespace tessera
