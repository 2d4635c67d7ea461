// SPDX-License-Identifier: MIT
#pragma once
// Parser of statements and expressions with Jinja 3.1's grammar and precedence.
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "lib/data/jinja/lexer.h"
#include "lib/data/jinja/syntax.h"

namespace tessera::jinja {

// Throws Error(kInvalidArgument) with the line.
class Parser {
 public:
  Parser(std::vector<Token> tokens, const std::string& origin)
      : tokens_(std::move(tokens)), origin_(origin) {}
  Body run();
  bool marks_generation() const { return marks_generation_; }

 private:
  // Statements, in parser_statements.cpp.
  std::shared_ptr<const Body> block(std::initializer_list<std::string_view> ends,
                                    const char* opened, bool keeps_end = false);
  void statements(Body& body, std::initializer_list<std::string_view> ends, const char* opened,
                  int line);
  Statement statement();
  Statement parse_if();
  Statement parse_for();
  Statement parse_set();
  Statement parse_macro();
  Statement parse_call_block();
  Statement parse_filter_block();
  Statement parse_with();
  Statement parse_generation();
  // A body that Python compiles as its own function.
  void function_body(MacroSyntax& macro, std::string_view end, const char* opened);
  void parameters(MacroSyntax& macro);
  ExpressionPtr target(bool attributes);

  // Expressions, in parser_expressions.cpp and parser_postfix.cpp.
  ExpressionPtr expression(bool conditional = true);
  ExpressionPtr either();
  ExpressionPtr both();
  ExpressionPtr negation();
  ExpressionPtr comparison();
  ExpressionPtr sum();
  ExpressionPtr concatenation();
  ExpressionPtr product();
  ExpressionPtr power();
  ExpressionPtr unary(bool filters = true);
  ExpressionPtr primary(bool attributes = false);
  ExpressionPtr postfix(ExpressionPtr node);
  ExpressionPtr filters_and_tests(ExpressionPtr node);
  ExpressionPtr subscript(ExpressionPtr node);
  ExpressionPtr filter(ExpressionPtr node);
  ExpressionPtr test(ExpressionPtr node);
  ExpressionPtr tuple(const std::function<ExpressionPtr()>& item, bool parentheses,
                      std::string_view end = "");
  ExpressionPtr dict();
  void arguments(Expression& node);

  const Token& current() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  Token take();
  bool is(Token::Kind kind) const { return current().kind == kind; }
  bool is_operator(std::string_view text) const;
  bool is_name(std::string_view text) const;
  bool skip_operator(std::string_view text);
  bool skip_name(std::string_view text);
  void expect_operator(std::string_view text);
  std::string expect_name();
  [[noreturn]] void unexpected(const std::string& expected) const;
  template <typename... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    fail_at(origin_, current().line, parts...);
  }
  ExpressionPtr make(Operation operation, int line, std::string name = "") const;
  void add(Expression& node, ExpressionPtr part) const;
  void deepen(Expression& node, const Expression& part) const;
  ExpressionPtr binary(ExpressionPtr left, const Token& operation, ExpressionPtr right) const;

  class Nested;  // counts the parser's nested calls

  std::vector<Token> tokens_;
  const std::string& origin_;
  size_t at_ = 0;
  int depth_ = 0, loops_ = 0;
  bool marks_generation_ = false;
  std::vector<std::string> used_;  // names used in bodies
};

class Parser::Nested {
 public:
  explicit Nested(Parser& parser);
  ~Nested() { --parser_.depth_; }

 private:
  Parser& parser_;
};

}  // namespace tessera::jinja
