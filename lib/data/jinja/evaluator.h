// SPDX-License-Identifier: MIT
#pragma once
// Evaluates a parsed template: scopes, loops, macros, and limits on its cost.
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lib/data/jinja/lexer.h"
#include "lib/data/jinja/syntax.h"
#include "lib/data/jinja/template.h"
#include "lib/data/jinja/value.h"

namespace tessera::jinja {

class Evaluator;

struct Arguments {
  Values positional;
  std::vector<std::pair<std::string, Value>> named;
};
using Bound = std::vector<std::optional<Value>>;  // in parameter order

class Function {
 public:
  using Body = std::function<Value(Evaluator&, const Arguments&)>;
  Function(std::string name, Body body, Extent extent = {})
      : name_(std::move(name)), body_(std::move(body)), extent_(extent) {}
  const std::string& name() const { return name_; }
  Value call(Evaluator& run, const Arguments& arguments) const { return body_(run, arguments); }
  const Extent& extent() const { return extent_; }  // for a method: its value's and more

 private:
  std::string name_;
  Body body_;
  Extent extent_;
};

struct Scope {
  std::vector<std::pair<std::string, Value>> names;
  std::shared_ptr<Scope> outer;

  const Value* find(const std::string& name) const;  // searches outwards
  void set(const std::string& name, Value value);    // in this scope
};

// The variable `loop`. The loop's condition is tested when an item is reached.
class Loop : public std::enable_shared_from_this<Loop> {
 public:
  using Test = std::function<bool(const Value&)>;
  Loop(Values items, Test test);
  bool next();  // false: no further item
  const Value& item() const { return items_[current_]; }
  Value attribute(Evaluator& run, const std::string& name);
  const Extent& extent() const { return extent_; }
  void end() { test_ = nullptr; }

 private:
  size_t reach(size_t from);  // the first passing item from there
  int64_t length();

  Values items_;
  Extent extent_;
  Test test_;
  int64_t index_ = -1;
  size_t previous_ = 0, current_ = 0, behind_ = 0;
  std::optional<size_t> after_;  // an item already looked at
  std::optional<int64_t> length_;
  std::optional<Values> changed_;
};

class Evaluator {
 public:
  Evaluator(const std::string& origin, const RenderLimits& limits, std::chrono::sys_days day)
      : origin_(origin), limits_(limits), day_(day) {}
  ~Evaluator();
  Rendered run(const Body& body, std::vector<std::pair<std::string, Value>> variables);

  Value evaluate(const Expression& node);
  template <typename... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    fail_at(origin_, line_, parts...);
  }
  // Charges work: one step per operation, and for what it makes or iterates over.
  void charge(size_t steps);
  void charge_search(const std::string& text, const std::string& part);
  Value text(std::string text, bool markup = false);  // charges its bytes
  Value replaced(const Text& text, const std::string& old, const std::string& by, int64_t most);
  Value list(Values items, Array::Kind kind = Array::Kind::kList);
  Value keep(std::shared_ptr<Namespace> names);
  std::chrono::sys_days day() const { return day_; }

  // Arguments by position or name; missing ones stay empty.
  Bound bind(const char* function, const Arguments& arguments,
             std::initializer_list<const char*> parameters) const;
  int64_t whole(const char* user, const std::optional<Value>& value, int64_t fallback) const;
  [[noreturn]] void fail_undefined(const Value& value) const;  // throws the error for using it
  Values items_of(const Value& value);  // items in Python's iteration order; exhausts an iterator
  Value call(const Value& function, const Arguments& arguments);
  Value filter(const std::string& name, const Value& input, const Arguments& arguments);
  bool test(const std::string& name, const Value& input, const Arguments& arguments);
  Value attribute(const Value& value, const std::string& name);
  Value item(const Value& value, const Value& key);
  Value slice(const Value& value, const Value& start, const Value& stop, const Value& step);
  Value binary(const std::string& operation, const Value& a, const Value& b);
  bool compare(const std::string& operation, const Value& a, const Value& b);
  bool contains(const Value& container, const Value& value);
  int64_t length(const Value& value);
  std::string formatted(const std::string& form, const Arguments& arguments);  // as the operator %

 private:
  enum class Flow { kNext, kBreak, kContinue };
  class Deeper;  // counts nested calls

  Flow execute(const Body& body);
  Flow execute(const Statement& statement);
  Flow loop(const Statement& statement);
  void print(const std::string& text);
  void print(const Value& value);
  std::string captured(const Body& body);  // in its own scope
  void assign(const Expression& target, const Value& value);
  Value macro(std::shared_ptr<const MacroSyntax> syntax);
  Value call_macro(const MacroSyntax& syntax, const std::shared_ptr<Scope>& scope,
                   const Arguments& arguments);
  Arguments arguments(const CallSyntax& call);
  Value evaluated(const Expression& node);
  Value lookup(const std::string& name) const;
  Value method(const Value& value, const std::string& name);

  const std::string& origin_;
  const RenderLimits& limits_;
  const std::chrono::sys_days day_;
  int line_ = 1;
  size_t steps_ = 0, depth_ = 0;
  std::string output_;
  std::string* out_ = &output_;
  std::vector<MarkedText> marks_;
  bool unplaced_marks_ = false;
  std::shared_ptr<Scope> scope_;
  Value body_;                                        // of a filter block
  std::vector<std::shared_ptr<Scope>> macro_scopes_;  // macros refer to theirs without owning them
  // May contain themselves, so they are emptied at the end.
  std::vector<std::shared_ptr<Namespace>> namespaces_;
};

std::string braced(Evaluator& run, const std::string& form, const Arguments& given);  // str.format

// Functions predefined for templates; empty: unknown name.
std::optional<Value> global(const std::string& name);

}  // namespace tessera::jinja
