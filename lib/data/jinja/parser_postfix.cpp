// SPDX-License-Identifier: MIT
// Postfix syntax: attributes, items, slices, calls, filters and tests.
#include "lib/data/jinja/parser.h"
#include "lib/data/jinja/text.h"

namespace tessera::jinja {

using Kind = Token::Kind;

ExpressionPtr Parser::postfix(ExpressionPtr node) {
  while (true) {
    if (is_operator(".") || is_operator("[")) {
      node = subscript(std::move(node));
    } else if (is_operator("(")) {
      auto call = make(Operation::kCall, current().line);
      add(*call, std::move(node));
      arguments(*call);
      node = std::move(call);
    } else {
      return node;
    }
  }
}

ExpressionPtr Parser::filters_and_tests(ExpressionPtr node) {
  while (true) {
    if (is_operator("|")) {
      take();
      node = filter(std::move(node));
    } else if (is_name("is")) {
      node = test(std::move(node));
    } else if (is_operator("(")) {
      node = postfix(std::move(node));
    } else {
      return node;
    }
  }
}

ExpressionPtr Parser::subscript(ExpressionPtr node) {
  const Token opening = take();
  if (opening.text == ".") {
    const Token name = take();
    if (name.kind == Kind::kName) {
      auto result = make(Operation::kAttribute, opening.line, name.text);
      add(*result, std::move(node));
      return result;
    }
    const auto index = name.kind == Kind::kInteger ? parse_int(name.text, 10) : std::nullopt;
    if (!index) fail_at(origin_, name.line, "expected a name or a number after '.'");
    auto result = make(Operation::kItem, opening.line);
    add(*result, std::move(node));
    auto item = make(Operation::kConstant, name.line);
    item->value = *index;
    add(*result, std::move(item));
    return result;
  }
  auto result = make(Operation::kItem, opening.line);
  add(*result, std::move(node));
  ExpressionPtr first = is_operator(":") ? nullptr : expression();
  if (is_operator(":")) {
    result->operation = Operation::kSlice;
    add(*result, std::move(first));
    for (int part = 0; part < 2; ++part) {
      const bool given = (part == 0 ? (take(), true) : skip_operator(":")) && !is_operator(":") &&
                         !is_operator("]");
      add(*result, given ? expression() : nullptr);
    }
  } else {
    add(*result, std::move(first));
  }
  expect_operator("]");
  return result;
}

void Parser::arguments(Expression& node) {
  CallSyntax& call = node.call;
  const auto value = [&] {
    ExpressionPtr argument = expression();
    deepen(node, *argument);
    return argument;
  };
  expect_operator("(");
  bool first = true;
  while (!is_operator(")")) {
    if (!first) {
      expect_operator(",");
      if (is_operator(")")) break;
    }
    first = false;
    if (!call.rest && !call.named_rest && skip_operator("*")) {
      call.rest = value();
    } else if (!call.named_rest && skip_operator("**")) {
      call.named_rest = value();
    } else if (is(Kind::kName) && ahead().kind == Kind::kOperator && ahead().text == "=") {
      std::string name = take().text;
      take();
      call.named.emplace_back(std::move(name), value());
    } else {
      if (call.rest || call.named_rest || !call.named.empty()) {
        fail("an argument without a name stands behind one with a name");
      }
      call.positional.push_back(value());
    }
  }
  take();
}

ExpressionPtr Parser::filter(ExpressionPtr node) {
  const int line = current().line;
  auto result = make(Operation::kFilter, line, expect_name());
  add(*result, std::move(node));
  if (is_operator("(")) arguments(*result);
  return result;
}

ExpressionPtr Parser::test(ExpressionPtr node) {
  const int line = take().line;
  const bool negated = skip_name("not");
  auto result = make(Operation::kTest, line, expect_name());
  add(*result, std::move(node));
  const bool value = is(Kind::kName) || is(Kind::kString) || is(Kind::kInteger) ||
                     is(Kind::kFloat) || is_operator("[") || is_operator("{");
  if (is_operator("(")) {
    arguments(*result);
  } else if (value && !is_name("else") && !is_name("or") && !is_name("and")) {
    if (is_name("is")) fail("tests cannot follow one another; join them by 'and'");
    ExpressionPtr argument = postfix(primary());
    deepen(*result, *argument);
    result->call.positional.push_back(std::move(argument));
  }
  if (!negated) return result;
  auto inverse = make(Operation::kNot, line);
  add(*inverse, std::move(result));
  return inverse;
}

}  // namespace tessera::jinja
