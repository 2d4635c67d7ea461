// SPDX-License-Identifier: MIT
#include <algorithm>

#include "lib/data/jinja/parser.h"
#include "lib/data/jinja/text.h"

namespace tessera::jinja {
namespace {

using Kind = Token::Kind;

constexpr size_t kMaxDepth = 100;  // nesting of expressions and blocks

bool is_one_of(const std::string& text, std::initializer_list<std::string_view> texts) {
  return std::ranges::find(texts, text) != texts.end();
}

}  // namespace

Parser::Nested::Nested(Parser& parser) : parser_(parser) {
  if (static_cast<size_t>(++parser.depth_) > kMaxDepth) {
    --parser.depth_;
    parser.fail("more than ", kMaxDepth, " expressions or blocks lie in one another");
  }
}

Token Parser::take() { return is(Kind::kEnd) ? current() : tokens_[at_++]; }

bool Parser::is_operator(std::string_view text) const {
  return is(Kind::kOperator) && current().text == text;
}

bool Parser::is_name(std::string_view text) const {
  return is(Kind::kName) && current().text == text;
}

bool Parser::skip_operator(std::string_view text) {
  if (!is_operator(text)) return false;
  ++at_;
  return true;
}

bool Parser::skip_name(std::string_view text) {
  if (!is_name(text)) return false;
  ++at_;
  return true;
}

void Parser::expect_operator(std::string_view text) {
  if (!skip_operator(text)) unexpected("'" + std::string(text) + "'");
}

std::string Parser::expect_name() {
  if (!is(Kind::kName)) unexpected("a name");
  return take().text;
}

void Parser::unexpected(const std::string& expected) const {
  fail("expected ", expected, ", found ", shown(current()));
}

ExpressionPtr Parser::make(Operation operation, int line, std::string name) const {
  auto node = std::make_unique<Expression>();
  node->operation = operation;
  node->line = line;
  node->name = std::move(name);
  return node;
}

void Parser::deepen(Expression& node, const Expression& part) const {
  node.depth = std::max(node.depth, part.depth + 1);
  if (node.depth > 2 * kMaxDepth) fail("an expression has more than ", 2 * kMaxDepth, " levels");
}

void Parser::add(Expression& node, ExpressionPtr part) const {
  if (part) deepen(node, *part);
  node.parts.push_back(std::move(part));
}

ExpressionPtr Parser::binary(ExpressionPtr left, const Token& operation,
                             ExpressionPtr right) const {
  auto node = make(Operation::kBinary, operation.line, operation.text);
  add(*node, std::move(left));
  add(*node, std::move(right));
  return node;
}

ExpressionPtr Parser::expression(bool conditional) {
  const Nested nested(*this);
  if (!conditional) return either();
  ExpressionPtr value = either();
  while (is_name("if")) {
    auto node = make(Operation::kConditional, take().line);
    add(*node, either());
    add(*node, std::move(value));
    add(*node, skip_name("else") ? expression() : nullptr);
    value = std::move(node);
  }
  return value;
}

ExpressionPtr Parser::either() {
  ExpressionPtr left = both();
  while (is_name("or")) {
    auto node = make(Operation::kOr, take().line);
    add(*node, std::move(left));
    add(*node, both());
    left = std::move(node);
  }
  return left;
}

ExpressionPtr Parser::both() {
  ExpressionPtr left = negation();
  while (is_name("and")) {
    auto node = make(Operation::kAnd, take().line);
    add(*node, std::move(left));
    add(*node, negation());
    left = std::move(node);
  }
  return left;
}

ExpressionPtr Parser::negation() {
  if (!is_name("not")) return comparison();
  const Nested nested(*this);
  auto node = make(Operation::kNot, take().line);
  add(*node, negation());
  return node;
}

ExpressionPtr Parser::comparison() {
  ExpressionPtr first = sum();
  ExpressionPtr node;
  while (true) {
    std::string name;
    const int line = current().line;
    if (is(Kind::kOperator) && is_one_of(current().text, {"==", "!=", "<", ">", "<=", ">="})) {
      name = take().text;
    } else if (skip_name("in")) {
      name = "in";
    } else if (is_name("not") && ahead().kind == Kind::kName && ahead().text == "in") {
      at_ += 2;
      name = "not in";
    } else {
      return node ? std::move(node) : std::move(first);
    }
    if (!node) {
      node = make(Operation::kCompare, line);
      add(*node, std::move(first));
    }
    node->names.push_back(name);
    add(*node, sum());
  }
}

ExpressionPtr Parser::sum() {
  ExpressionPtr left = concatenation();
  while (is_operator("+") || is_operator("-")) {
    const Token operation = take();
    left = binary(std::move(left), operation, concatenation());
  }
  return left;
}

ExpressionPtr Parser::concatenation() {
  ExpressionPtr first = product();
  if (!is_operator("~")) return first;
  auto node = make(Operation::kConcat, current().line);
  add(*node, std::move(first));
  while (skip_operator("~")) add(*node, product());
  return node;
}

ExpressionPtr Parser::product() {
  ExpressionPtr left = power();
  while (is(Kind::kOperator) && is_one_of(current().text, {"*", "/", "//", "%"})) {
    const Token operation = take();
    left = binary(std::move(left), operation, power());
  }
  return left;
}

ExpressionPtr Parser::power() {
  ExpressionPtr left = unary();
  while (is_operator("**")) {
    const Token operation = take();
    left = binary(std::move(left), operation, unary());
  }
  return left;
}

ExpressionPtr Parser::unary(bool filters) {
  const Nested nested(*this);
  ExpressionPtr node;
  if (is_operator("-") || is_operator("+")) {
    const Token sign = take();
    node = make(sign.text == "-" ? Operation::kNegate : Operation::kPlus, sign.line);
    add(*node, unary(false));
  } else {
    node = primary();
  }
  node = postfix(std::move(node));
  return filters ? filters_and_tests(std::move(node)) : std::move(node);
}

ExpressionPtr Parser::primary(bool attributes) {
  const Token token = current();
  const auto constant = [&](Value value) {
    auto node = make(Operation::kConstant, token.line);
    node->value = std::move(value);
    return node;
  };
  if (token.kind == Kind::kName) {
    take();
    if (is_one_of(token.text, {"true", "True"})) return constant(true);
    if (is_one_of(token.text, {"false", "False"})) return constant(false);
    if (is_one_of(token.text, {"none", "None"})) return constant({});
    if (is_one_of(token.text, {"varargs", "kwargs", "caller"})) used_.push_back(token.text);
    if (attributes && skip_operator(".")) {
      auto node = make(Operation::kAssigned, token.line, expect_name());
      node->names.push_back(token.text);
      return node;
    }
    return make(Operation::kName, token.line, token.text);
  }
  if (token.kind == Kind::kString) {
    std::string text;
    while (is(Kind::kString)) text += take().text;
    return constant(std::move(text));
  }
  if (token.kind == Kind::kInteger) {
    take();
    const auto number = parse_int(token.text, 10);
    if (!number) fail_at(origin_, token.line, token.text, " is beyond 64 bits");
    return constant(*number);
  }
  if (token.kind == Kind::kFloat) {
    take();
    return constant(*parse_float(token.text));
  }
  if (skip_operator("(")) {
    ExpressionPtr node = tuple([this] { return expression(); }, true);
    expect_operator(")");
    return node;
  }
  if (skip_operator("[")) {
    auto node = make(Operation::kList, token.line);
    while (!is_operator("]")) {
      if (!node->parts.empty()) expect_operator(",");
      if (!is_operator("]")) add(*node, expression());
    }
    take();
    return node;
  }
  if (skip_operator("{")) return dict();
  unexpected("a value");
}

ExpressionPtr Parser::dict() {
  auto node = make(Operation::kDict, current().line);
  while (!is_operator("}")) {
    if (!node->parts.empty()) expect_operator(",");
    if (is_operator("}")) break;
    add(*node, expression());
    expect_operator(":");
    add(*node, expression());
  }
  take();
  return node;
}

ExpressionPtr Parser::tuple(const std::function<ExpressionPtr()>& item, bool parentheses,
                            std::string_view end) {
  auto node = make(Operation::kTuple, current().line);
  bool commas = false;
  const auto at_end = [&] {
    return is(Kind::kVariableEnd) || is(Kind::kBlockEnd) || is_operator(")") ||
           (!end.empty() && is_name(end));
  };
  while (!at_end()) {
    add(*node, item());
    if (!skip_operator(",")) break;
    commas = true;
  }
  if (commas) return node;
  if (!node->parts.empty()) return std::move(node->parts[0]);
  if (!parentheses) unexpected("a value");
  return node;
}

}  // namespace tessera::jinja
