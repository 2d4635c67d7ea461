// SPDX-License-Identifier: MIT
#include "lib/data/jinja/evaluator.h"

#include <algorithm>

#include "lib/data/jinja/text.h"

namespace tessera::jinja {

class Evaluator::Deeper {
 public:
  explicit Deeper(Evaluator& run) : run_(run) {
    if (++run.depth_ > run.limits_.depth) {
      --run.depth_;
      run.fail("more than ", run.limits_.depth,
               " blocks, expressions and macros are entered in one another");
    }
  }
  ~Deeper() { --run_.depth_; }

 private:
  Evaluator& run_;
};

const Value* Scope::find(const std::string& name) const {
  for (const Scope* scope = this; scope != nullptr; scope = scope->outer.get()) {
    for (const auto& [known, value] : scope->names) {
      if (known == name) return &value;
    }
  }
  return nullptr;
}

void Scope::set(const std::string& name, Value value) {
  for (auto& [known, held] : names) {
    if (known == name) {
      held = std::move(value);
      return;
    }
  }
  names.emplace_back(name, std::move(value));
}

Evaluator::~Evaluator() {
  for (const auto& names : namespaces_) names->attributes.clear();
}

Rendered Evaluator::run(const Body& body, std::vector<std::pair<std::string, Value>> variables) {
  try {
    scope_ = std::make_shared<Scope>();
    scope_->names = std::move(variables);
    scope_ = std::make_shared<Scope>(Scope{{}, scope_});
    execute(body);
  } catch (const Problem& problem) {
    fail(problem.what());
  }
  return {std::move(output_), std::move(marks_), unplaced_marks_};
}

void Evaluator::charge(size_t steps) {
  steps_ = std::min(limits_.steps + 1, steps_ + std::min(steps, limits_.steps + 1));
  if (steps_ > limits_.steps) {
    fail("the template takes more than ", limits_.steps, " steps; does a loop not end?");
  }
}

Value Evaluator::text(std::string text, bool markup) {
  charge(1 + text.size() / 16);
  return {std::move(text), markup};
}

Value Evaluator::list(Values items, Array::Kind kind) {
  charge(1 + items.size());
  return Value::array(kind, std::move(items));
}

void Evaluator::charge_search(const std::string& text, const std::string& part) {
  charge(text.size() / 16 + text.size() * std::min(part.size(), text.size()) / 4096);
}

Value Evaluator::replaced(const Text& text, const std::string& old, const std::string& by,
                          int64_t most) {
  charge_search(*text.bytes, old);
  charge((text.bytes->size() / std::max<size_t>(old.size(), 1) + 1) * by.size() / 256);
  return this->text(jinja::replaced(*text.bytes, old, by, most), text.markup);
}

Value Evaluator::keep(std::shared_ptr<Namespace> names) {
  charge(16);
  namespaces_.push_back(names);
  return names;
}

void Evaluator::print(const std::string& text) {
  charge(1 + text.size() / 16);
  if (text.size() > limits_.output_bytes - std::min(limits_.output_bytes, out_->size())) {
    fail("the template writes more than ", limits_.output_bytes, " bytes");
  }
  *out_ += text;
}

void Evaluator::print(const Value& value) {
  if (const std::string* text = value.as_string()) return print(*text);
  charge(value.extent().weight);
  print(str(value));
}

std::string Evaluator::captured(const Body& body) {
  std::string text;
  std::string* outer = std::exchange(out_, &text);
  const auto scope = scope_;
  scope_ = std::make_shared<Scope>(Scope{{}, scope});
  // An evaluator is not reused after an error.
  execute(body);
  scope_ = scope;
  out_ = outer;
  return text;
}

Evaluator::Flow Evaluator::execute(const Body& body) {
  for (const Statement& statement : body) {
    if (const Flow flow = execute(statement); flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Evaluator::Flow Evaluator::execute(const Statement& statement) {
  const Deeper deeper(*this);
  charge(1);
  line_ = statement.line;
  const auto body = [&]() -> const Body& { return *statement.branches[0].body; };
  const auto filtered = [&](std::string text) {
    const Value outer = std::exchange(body_, this->text(std::move(text)));
    const Value result = statement.value ? evaluate(*statement.value) : body_;
    body_ = outer;
    return result;
  };
  switch (statement.action) {
    case Action::kText:
      print(statement.text);
      break;
    case Action::kPrint:
      print(evaluate(*statement.value));
      break;
    case Action::kIf:
      for (const Branch& branch : statement.branches) {
        if (!branch.condition || evaluate(*branch.condition).truth()) return execute(*branch.body);
      }
      break;
    case Action::kFor:
      return loop(statement);
    case Action::kSet:
      assign(*statement.target, evaluate(*statement.value));
      break;
    case Action::kSetBlock:
      assign(*statement.target, filtered(captured(body())));
      break;
    case Action::kMacro:
      scope_->set(statement.macro->name, macro(statement.macro));
      break;
    case Action::kCallBlock: {
      const Expression& call = *statement.value;
      const Value called = evaluate(*call.parts[0]);
      Arguments given = arguments(call.call);
      given.named.emplace_back("caller", macro(statement.macro));
      line_ = statement.line;
      print(this->call(called, given));
      break;
    }
    case Action::kFilterBlock:
      print(filtered(captured(body())));
      break;
    case Action::kWith: {
      const auto outer = scope_;
      const auto inner = std::make_shared<Scope>(Scope{{}, outer});
      for (const auto& [name, value] : statement.bound) {
        const Value held = evaluate(*value);
        scope_ = inner;
        assign(*name, held);
        scope_ = outer;
      }
      scope_ = inner;
      const Flow flow = execute(body());
      scope_ = outer;
      return flow;
    }
    case Action::kGeneration: {
      const std::string text = captured(body());
      const size_t begin = out_->size();
      print(text);
      unplaced_marks_ = unplaced_marks_ || out_ != &output_;
      marks_.push_back({begin, out_->size()});
      break;
    }
    case Action::kBreak:
      return Flow::kBreak;
    case Action::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNext;
}

Evaluator::Flow Evaluator::loop(const Statement& statement) {
  const auto outer = scope_;
  Values items = items_of(evaluate(*statement.value));
  Loop::Test test;
  if (statement.condition) {
    test = [&](const Value& item) {
      const auto scope = std::exchange(scope_, std::make_shared<Scope>(Scope{{}, outer}));
      assign(*statement.target, item);
      const bool passes = evaluate(*statement.condition).truth();
      scope_ = scope;
      return passes;
    };
  }
  const auto loop = std::make_shared<Loop>(std::move(items), std::move(test));
  bool any = false;  // as in Jinja: an item left by break or continue does not count
  while (loop->next()) {
    charge(1);
    scope_ = std::make_shared<Scope>(Scope{{{"loop", Value(loop)}}, outer});
    assign(*statement.target, loop->item());
    const Flow flow = execute(*statement.branches[0].body);
    any = any || flow == Flow::kNext;
    if (flow == Flow::kBreak) break;
  }
  loop->end();
  scope_ = outer;
  if (any || statement.branches.size() < 2) return Flow::kNext;
  scope_ = std::make_shared<Scope>(Scope{{}, outer});
  const Flow flow = execute(*statement.branches[1].body);
  scope_ = outer;
  return flow;
}

void Evaluator::assign(const Expression& target, const Value& value) {
  if (target.operation == Operation::kName) {
    scope_->set(target.name, value);
  } else if (target.operation == Operation::kAssigned) {
    const Value* held = scope_->find(target.names[0]);
    Namespace* names = held ? held->as_namespace() : nullptr;
    if (names == nullptr) {
      fail("'", target.names[0], "' is no namespace, so '", target.names[0], ".", target.name,
           "' cannot be set");
    }
    if (target.name.starts_with('_')) fail("an attribute of a namespace begins with no '_'");
    const auto known =
        std::ranges::find(names->attributes, target.name, &std::pair<std::string, Value>::first);
    charge(names->attributes.size() / 8);
    if (known == names->attributes.end()) {
      names->attributes.emplace_back(target.name, value);
    } else {
      known->second = value;
    }
  } else {
    const Values items = items_of(value);
    if (items.size() != target.parts.size()) {
      fail("expected ", target.parts.size(), " values to assign, found ", items.size());
    }
    for (size_t i = 0; i < items.size(); ++i) assign(*target.parts[i], items[i]);
  }
}

Value Evaluator::macro(std::shared_ptr<const MacroSyntax> syntax) {
  charge(16);
  if (macro_scopes_.empty() || macro_scopes_.back() != scope_) macro_scopes_.push_back(scope_);
  const std::weak_ptr<Scope> scope = scope_;
  const std::string name = syntax->name;
  return std::make_shared<const Function>(
      name, [syntax = std::move(syntax), scope](Evaluator& run, const Arguments& given) {
        return run.call_macro(*syntax, scope.lock(), given);
      });
}

Value Evaluator::call_macro(const MacroSyntax& syntax, const std::shared_ptr<Scope>& scope,
                            const Arguments& given) {
  const Deeper deeper(*this);
  const auto outer = std::exchange(scope_, std::make_shared<Scope>(Scope{{}, scope}));
  auto& names = scope_->names;
  Dict named_rest;
  std::optional<Value> caller;
  for (const auto& [name, value] : given.named) {
    const auto parameter = std::ranges::find(syntax.parameters, name, &Parameter::name);
    const auto index = static_cast<size_t>(parameter - syntax.parameters.begin());
    if (parameter == syntax.parameters.end()) {
      if (name == "caller" && syntax.takes_caller) {
        caller = value;
      } else if (syntax.takes_named_rest) {
        named_rest.set(name, value);
      } else {
        fail("the macro '", syntax.name, "' has no parameter '", name, "'");
      }
    } else if (index < given.positional.size()) {
      fail("the parameter '", name, "' of '", syntax.name, "' is given twice");
    } else {
      names.emplace_back(name, value);
    }
  }
  const size_t count = syntax.parameters.size();
  if (given.positional.size() > count && !syntax.takes_rest) {
    fail("the macro '", syntax.name, "' takes at most ", count, " arguments, found ",
         given.positional.size());
  }
  for (size_t i = 0; i < count; ++i) {
    const Parameter& parameter = syntax.parameters[i];
    if (i < given.positional.size()) {
      names.emplace_back(parameter.name, given.positional[i]);
    } else if (std::ranges::find(names, parameter.name, &std::pair<std::string, Value>::first) ==
               names.end()) {
      Value value = parameter.fallback
                        ? evaluate(*parameter.fallback)
                        : Value::undefined("parameter '" + parameter.name + "' was not provided");
      names.emplace_back(parameter.name, std::move(value));
    }
  }
  if (syntax.takes_caller) {
    names.emplace_back("caller", caller ? *caller : Value::undefined("No caller defined"));
  }
  if (syntax.takes_named_rest) names.emplace_back("kwargs", Value::dict(std::move(named_rest)));
  if (syntax.takes_rest) {
    const size_t first = std::min(count, given.positional.size());
    names.emplace_back("varargs", list({given.positional.begin() + static_cast<ptrdiff_t>(first),
                                        given.positional.end()},
                                       Array::Kind::kTuple));
  }
  std::string result;
  std::string* out = std::exchange(out_, &result);
  execute(*syntax.body);
  out_ = out;
  scope_ = outer;
  return text(std::move(result));
}

}  // namespace tessera::jinja
