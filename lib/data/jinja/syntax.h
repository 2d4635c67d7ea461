// SPDX-License-Identifier: MIT
#pragma once
// Syntax tree of a template.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lib/data/jinja/value.h"

namespace tessera::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

struct CallSyntax {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  ExpressionPtr rest, named_rest;  // *rest, **named_rest
};

enum class Operation {
  kConstant,
  kName,
  kList,
  kTuple,
  kDict,       // parts: key, value, key, value, ...
  kAttribute,  // parts[0].name
  kItem,       // parts[0][parts[1]]
  kSlice,      // parts[0][parts[1] : parts[2] : parts[3]], absent ones null
  kCall,       // parts[0](call)
  kFilter,     // parts[0] | name(call)
  kTest,       // parts[0] is name(call)
  kNot,
  kNegate,
  kPlus,
  kBinary,   // parts[0] name parts[1]
  kConcat,   // the operator ~ between all parts
  kCompare,  // parts[0] names[0] parts[1] names[1] parts[2] ...
  kAnd,
  kOr,
  kConditional,  // parts[1] if parts[0] else parts[2], which may be null
  kAssigned,     // target: attribute `name` of the namespace names[0]
  kBody          // the text passed to a block's filter
};

struct Expression {
  Operation operation;
  int line;
  size_t depth = 1;
  Value value;
  std::string name;
  std::vector<std::string> names;
  std::vector<ExpressionPtr> parts;
  CallSyntax call;
};

struct Statement;
using Body = std::vector<Statement>;

struct Parameter {
  std::string name;
  ExpressionPtr fallback;  // null: none
};

// A macro, or the body that a call block passes to one.
struct MacroSyntax {
  std::string name;
  std::vector<Parameter> parameters;
  std::shared_ptr<const Body> body;
  // Names used in its body.
  bool takes_rest = false, takes_named_rest = false, takes_caller = false;
};

enum class Action {
  kText,
  kPrint,
  kIf,
  kFor,
  kSet,
  kSetBlock,
  kMacro,
  kCallBlock,
  kFilterBlock,
  kWith,
  kGeneration,
  kBreak,
  kContinue
};

struct Branch {
  ExpressionPtr condition;  // null: else
  std::shared_ptr<const Body> body;
};

struct Statement {
  Action action;
  int line;
  std::string text;
  ExpressionPtr target;     // assigned names
  ExpressionPtr value;      // printed, assigned, iterated over, called, or a block's filter
  ExpressionPtr condition;  // of a loop's items
  std::shared_ptr<const MacroSyntax> macro;
  std::vector<Branch> branches;                                // of if; for `for`: body and else
  std::vector<std::pair<ExpressionPtr, ExpressionPtr>> bound;  // of with
};

}  // namespace tessera::jinja
