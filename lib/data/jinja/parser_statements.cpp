// SPDX-License-Identifier: MIT
#include <algorithm>

#include "lib/data/jinja/parser.h"

namespace tessera::jinja {
namespace {

using Kind = Token::Kind;

Statement made(Action action, int line) {
  Statement statement{};
  statement.action = action;
  statement.line = line;
  return statement;
}

}  // namespace

Body Parser::run() {
  Body body;
  statements(body, {}, "", 0);
  return body;
}

// Statements up to one of the tags `ends`, whose name is not consumed; name "": up to the end.
void Parser::statements(Body& body, std::initializer_list<std::string_view> ends,
                        const char* opened, int line) {
  const Nested nested(*this);
  while (!is(Kind::kEnd)) {
    if (is(Kind::kData)) {
      Statement text = made(Action::kText, current().line);
      text.text = take().text;
      body.push_back(std::move(text));
    } else if (is(Kind::kVariableBegin)) {
      Statement print = made(Action::kPrint, take().line);
      print.value = tuple([this] { return expression(); }, false);
      if (!is(Kind::kVariableEnd)) unexpected("}}");
      take();
      body.push_back(std::move(print));
    } else {
      take();  // consumes {%
      if (is(Kind::kName) && std::ranges::find(ends, current().text) != ends.end()) return;
      body.push_back(statement());
      if (!is(Kind::kBlockEnd)) unexpected("%}");
      take();
    }
  }
  if (ends.size() > 0) fail("{% ", opened, " %} of line ", line, " is not closed");
}

std::shared_ptr<const Body> Parser::block(std::initializer_list<std::string_view> ends,
                                          const char* opened, bool keeps_end) {
  const int line = current().line;
  skip_operator(":");
  if (!is(Kind::kBlockEnd)) unexpected("%}");
  take();
  auto body = std::make_shared<Body>();
  statements(*body, ends, opened, line);
  if (!keeps_end) take();
  return body;
}

Statement Parser::statement() {
  if (!is(Kind::kName)) unexpected("the name of a tag");
  const std::string name = current().text;
  if (name == "if") return parse_if();
  if (name == "for") return parse_for();
  if (name == "set") return parse_set();
  if (name == "macro") return parse_macro();
  if (name == "call") return parse_call_block();
  if (name == "filter") return parse_filter_block();
  if (name == "with") return parse_with();
  if (name == "generation") return parse_generation();
  if (name == "break" || name == "continue") {
    if (loops_ == 0) fail("{% ", name, " %} stands in no loop");
    return made(name == "break" ? Action::kBreak : Action::kContinue, take().line);
  }
  fail("there is no tag '", name,
       "'; there are if, for, set, macro, call, filter, with, raw, generation, break, continue");
}

Statement Parser::parse_if() {
  Statement statement = made(Action::kIf, current().line);
  while (true) {
    const std::string name = take().text;
    Branch branch;
    if (name != "else") branch.condition = tuple([this] { return expression(false); }, false);
    branch.body = name == "else" ? block({"endif"}, "else", true)
                                 : block({"elif", "else", "endif"}, "if", true);
    statement.branches.push_back(std::move(branch));
    if (skip_name("endif")) return statement;
  }
}

Statement Parser::parse_for() {
  Statement statement = made(Action::kFor, take().line);
  statement.target = target(false);
  if (!skip_name("in")) unexpected("'in'");
  statement.value = tuple([this] { return expression(false); }, false, "recursive");
  if (skip_name("if")) statement.condition = expression();
  if (is_name("recursive")) fail("recursive loops are not supported; call a macro instead");
  ++loops_;
  statement.branches.push_back({nullptr, block({"else", "endfor"}, "for", true)});
  --loops_;
  if (take().text == "else") statement.branches.push_back({nullptr, block({"endfor"}, "for")});
  return statement;
}

Statement Parser::parse_set() {
  Statement statement = made(Action::kSet, take().line);
  statement.target = target(true);
  if (skip_operator("=")) {
    statement.value = tuple([this] { return expression(); }, false);
    return statement;
  }
  statement.action = Action::kSetBlock;
  if (is_operator("|")) {
    statement.value = make(Operation::kBody, current().line);
    while (skip_operator("|")) statement.value = filter(std::move(statement.value));
  }
  const int outer = std::exchange(loops_, 0);
  statement.branches.push_back({nullptr, block({"endset"}, "set")});
  loops_ = outer;
  return statement;
}

void Parser::function_body(MacroSyntax& macro, std::string_view end, const char* opened) {
  const int outer = std::exchange(loops_, 0);
  const size_t before = used_.size();
  macro.body = block({end}, opened);
  loops_ = outer;
  const auto uses = [&](std::string_view name) {
    const auto parameter = std::ranges::find(macro.parameters, name, &Parameter::name);
    return parameter == macro.parameters.end() &&
           std::find(used_.begin() + static_cast<ptrdiff_t>(before), used_.end(), name) !=
               used_.end();
  };
  macro.takes_rest = uses("varargs");
  macro.takes_named_rest = uses("kwargs");
  macro.takes_caller = uses("caller");
}

void Parser::parameters(MacroSyntax& macro) {
  expect_operator("(");
  while (!is_operator(")")) {
    if (!macro.parameters.empty()) expect_operator(",");
    Parameter parameter{expect_name(), nullptr};
    if (skip_operator("=")) {
      parameter.fallback = expression();
    } else if (!macro.parameters.empty() && macro.parameters.back().fallback) {
      fail("the parameter '", parameter.name, "' without a default follows one that has one");
    }
    macro.parameters.push_back(std::move(parameter));
  }
  take();
}

Statement Parser::parse_macro() {
  Statement statement = made(Action::kMacro, take().line);
  auto macro = std::make_shared<MacroSyntax>();
  macro->name = expect_name();
  parameters(*macro);
  function_body(*macro, "endmacro", "macro");
  statement.macro = std::move(macro);
  return statement;
}

Statement Parser::parse_call_block() {
  Statement statement = made(Action::kCallBlock, take().line);
  auto macro = std::make_shared<MacroSyntax>();
  macro->name = "caller";
  if (is_operator("(")) parameters(*macro);
  statement.value = expression();
  if (statement.value->operation != Operation::kCall) fail("{% call %} needs a call of a macro");
  function_body(*macro, "endcall", "call");
  statement.macro = std::move(macro);
  return statement;
}

Statement Parser::parse_filter_block() {
  Statement statement = made(Action::kFilterBlock, take().line);
  statement.value = filter(make(Operation::kBody, statement.line));
  while (skip_operator("|")) statement.value = filter(std::move(statement.value));
  const int outer = std::exchange(loops_, 0);
  statement.branches.push_back({nullptr, block({"endfilter"}, "filter")});
  loops_ = outer;
  return statement;
}

Statement Parser::parse_with() {
  Statement statement = made(Action::kWith, take().line);
  while (!is(Kind::kBlockEnd)) {
    if (!statement.bound.empty()) expect_operator(",");
    ExpressionPtr name = target(false);
    expect_operator("=");
    statement.bound.emplace_back(std::move(name), expression());
  }
  statement.branches.push_back({nullptr, block({"endwith"}, "with")});
  return statement;
}

Statement Parser::parse_generation() {
  marks_generation_ = true;
  Statement statement = made(Action::kGeneration, take().line);
  const int outer = std::exchange(loops_, 0);
  statement.branches.push_back({nullptr, block({"endgeneration"}, "generation")});
  loops_ = outer;
  return statement;
}

// Assigned names; with `attributes` also namespace attributes.
ExpressionPtr Parser::target(bool attributes) {
  ExpressionPtr node = tuple([&] { return primary(attributes); }, false, "in");
  const std::function<void(const Expression&)> check = [&](const Expression& part) {
    if (part.operation == Operation::kTuple) {
      for (const ExpressionPtr& name : part.parts) check(*name);
    } else if (part.operation != Operation::kName && part.operation != Operation::kAssigned) {
      fail("expected names that are assigned");
    }
  };
  check(*node);
  return node;
}

}  // namespace tessera::jinja
