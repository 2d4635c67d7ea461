// SPDX-License-Identifier: MIT
#include <algorithm>

#include "lib/data/jinja/evaluator.h"
#include "lib/data/jinja/text.h"

namespace tessera::jinja {

Value Evaluator::evaluate(const Expression& node) {
  charge(1);
  if (++depth_ > limits_.depth) {
    fail("more than ", limits_.depth, " blocks, expressions and macros are entered in one another");
  }
  line_ = node.line;
  Value value = evaluated(node);
  --depth_;  // not restored after an error, which ends the run
  return value;
}

Value Evaluator::lookup(const std::string& name) const {
  if (const Value* value = scope_->find(name)) return *value;
  if (const auto function = global(name)) return *function;
  return Value::undefined("'" + name + "' is undefined");
}

Value Evaluator::evaluated(const Expression& node) {
  const auto part = [&](size_t i) { return evaluate(*node.parts[i]); };
  const auto parts = [&] {
    Values values;
    for (const ExpressionPtr& one : node.parts) values.push_back(evaluate(*one));
    line_ = node.line;
    return values;
  };
  switch (node.operation) {
    case Operation::kConstant:
      return node.value;
    case Operation::kName:
      return lookup(node.name);
    case Operation::kList:
      return list(parts());
    case Operation::kTuple:
      return list(parts(), Array::Kind::kTuple);
    case Operation::kDict: {
      Dict dict;
      for (size_t i = 0; i < node.parts.size(); i += 2) {
        Value key = part(i);
        charge(dict.members.size() / 8);
        dict.set(std::move(key), part(i + 1));
      }
      return Value::dict(std::move(dict));
    }
    case Operation::kAttribute: {
      const Value value = part(0);
      line_ = node.line;
      return attribute(value, node.name);
    }
    case Operation::kItem: {
      const Value value = part(0), key = part(1);
      line_ = node.line;
      return item(value, key);
    }
    case Operation::kSlice: {
      const Value value = part(0);
      Value at[3];
      for (size_t i = 0; i < 3; ++i) {
        if (node.parts[i + 1]) at[i] = part(i + 1);
      }
      line_ = node.line;
      return slice(value, at[0], at[1], at[2]);
    }
    case Operation::kCall: {
      const Value function = part(0);
      if (function.is_undefined() && node.parts[0]->operation == Operation::kName) {
        throw Defect(concat(origin_, ":", node.line, ": ", *function.as_undefined()->why));
      }
      const Arguments given = arguments(node.call);
      line_ = node.line;
      return call(function, given);
    }
    case Operation::kFilter: {
      const Value value = part(0);
      const Arguments given = arguments(node.call);
      line_ = node.line;
      return filter(node.name, value, given);
    }
    case Operation::kTest: {
      const Value value = part(0);
      const Arguments given = arguments(node.call);
      line_ = node.line;
      return test(node.name, value, given);
    }
    case Operation::kNot:
      return !part(0).truth();
    case Operation::kNegate:
    case Operation::kPlus: {
      const Value value = part(0);
      line_ = node.line;
      if (value.is_undefined()) fail_undefined(value);
      if (double number = 0; !value.is_number(number)) {
        fail("'", value.type_name(), "' has no sign");
      }
      if (node.operation == Operation::kNegate) {
        const double* number = value.as_float();
        return number ? Value(-*number) : binary("-", int64_t{0}, value);
      }
      return binary("+", int64_t{0}, value);
    }
    case Operation::kBinary: {
      const Value a = part(0), b = part(1);
      line_ = node.line;
      return binary(node.name, a, b);
    }
    case Operation::kConcat: {
      std::string joined;
      for (const Value& value : parts()) {
        charge(value.extent().weight);
        joined += str(value);
      }
      return text(std::move(joined));
    }
    case Operation::kCompare: {
      Value left = part(0);
      for (size_t i = 0; i < node.names.size(); ++i) {
        Value right = part(i + 1);
        line_ = node.line;
        if (!compare(node.names[i], left, right)) return false;
        left = std::move(right);
      }
      return true;
    }
    case Operation::kAnd:
    case Operation::kOr: {
      Value left = part(0);
      return left.truth() == (node.operation == Operation::kOr) ? left : part(1);
    }
    case Operation::kConditional:
      if (part(0).truth()) return part(1);
      if (node.parts[2]) return part(2);
      return Value::undefined("the inline if-expression of line " + std::to_string(node.line) +
                              " has no else and its condition is false");
    case Operation::kBody:
      return body_;
    case Operation::kAssigned:
      break;
  }
  fail("this cannot be evaluated");
}

Arguments Evaluator::arguments(const CallSyntax& call) {
  Arguments given;
  for (const ExpressionPtr& node : call.positional) given.positional.push_back(evaluate(*node));
  for (const auto& [name, node] : call.named) given.named.emplace_back(name, evaluate(*node));
  if (call.rest) {
    for (Value& value : items_of(evaluate(*call.rest))) {
      given.positional.push_back(std::move(value));
    }
  }
  if (call.named_rest) {
    const Value value = evaluate(*call.named_rest);
    const Dict* dict = value.as_dict();
    if (dict == nullptr) fail("expected a dict behind **, found ", value.type_name());
    charge(dict->members.size());
    for (const auto& [key, member] : dict->members) given.named.emplace_back(str(key), member);
  }
  for (size_t i = 1; i < given.named.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (given.named[i].first == given.named[j].first) {
        fail("the argument '", given.named[i].first, "' is given twice");
      }
    }
    charge(i / 8);
  }
  return given;
}

Bound Evaluator::bind(const char* function, const Arguments& given,
                      std::initializer_list<const char*> parameters) const {
  Bound bound(parameters.size());
  if (given.positional.size() > parameters.size()) {
    fail("'", function, "' takes at most ", parameters.size(), " arguments, found ",
         given.positional.size());
  }
  std::ranges::copy(given.positional, bound.begin());
  for (const auto& [name, value] : given.named) {
    const auto found = std::ranges::find(parameters, std::string_view(name));
    const auto index = static_cast<size_t>(found - parameters.begin());
    if (found == parameters.end()) fail("'", function, "' has no argument '", name, "'");
    if (bound[index]) fail("the argument '", name, "' is given twice");
    bound[index] = value;
  }
  return bound;
}

int64_t Evaluator::whole(const char* user, const std::optional<Value>& value,
                         int64_t fallback) const {
  int64_t number = fallback;
  if (value && !value->is_whole(number)) {
    fail("'", user, "' needs an integer, found ", value->type_name());
  }
  return number;
}

void Evaluator::fail_undefined(const Value& value) const { fail(*value.as_undefined()->why); }

Values Evaluator::items_of(const Value& value) {
  if (value.is_undefined()) return {};
  if (Array* array = value.as_array()) {
    charge(array->items.size());
    const auto first = array->items.begin() + static_cast<ptrdiff_t>(array->taken);
    if (array->kind == Array::Kind::kOnce) array->taken = array->items.size();
    return {first, array->items.end()};
  }
  Values items;
  if (const Dict* dict = value.as_dict()) {
    charge(dict->members.size());
    for (const auto& member : dict->members) items.push_back(member.first);
    return items;
  }
  if (const Text* text = value.as_text()) {
    charge(text->bytes->size());
    for (size_t at = 0; at < text->bytes->size();) {
      size_t end = at + 1;
      while (end < text->bytes->size() && ((*text->bytes)[end] & 0xC0) == 0x80) ++end;
      items.push_back(text->bytes->substr(at, end - at));
      at = end;
    }
    return items;
  }
  fail("'", value.type_name(), "' cannot be walked over");
}

Value Evaluator::call(const Value& function, const Arguments& given) {
  if (function.is_undefined()) fail_undefined(function);
  const Function* called = function.as_function();
  if (called == nullptr) fail("'", function.type_name(), "' cannot be called");
  return called->call(*this, given);
}

int64_t Evaluator::length(const Value& value) {
  if (value.is_undefined()) return 0;
  if (const std::string* text = value.as_string()) {
    charge(text->size() / 16);
    return static_cast<int64_t>(length_of(*text));
  }
  if (value.as_array() && !value.is_once()) {
    return static_cast<int64_t>(value.as_array()->items.size());
  }
  if (const Dict* dict = value.as_dict()) return static_cast<int64_t>(dict->members.size());
  if (Loop* loop = value.as_loop()) return *loop->attribute(*this, "length").as_integer();
  fail("'", value.type_name(), "' has no length");
}

Value Evaluator::attribute(const Value& value, const std::string& name) {
  if (value.is_undefined()) fail_undefined(value);
  const std::string missing = concat("'", value.type_name(), "' has no attribute '", name, "'");
  if (name.starts_with('_')) return Value::undefined(missing);
  if (Loop* loop = value.as_loop()) return loop->attribute(*this, name);
  if (Namespace* names = value.as_namespace()) {
    charge(names->attributes.size() / 8);
    for (const auto& [known, held] : names->attributes) {
      if (known == name) return held;
    }
    return Value::undefined(missing);
  }
  Value found = method(value, name);
  if (!found.is_none()) return found;
  if (const Dict* dict = value.as_dict()) {
    charge(dict->members.size() / 8);
    if (const Value* member = dict->find(std::string_view(name))) return *member;
  }
  return Value::undefined(missing);
}

Value Evaluator::item(const Value& value, const Value& key) {
  if (value.is_undefined()) fail_undefined(value);
  if (const Dict* dict = value.as_dict()) {
    charge(dict->members.size() / 8 + key.extent().weight);
    const Value* member = key.is_hashable() ? dict->find(key) : nullptr;
    if (member) return *member;
  } else if (int64_t index = 0; key.is_whole(index)) {
    const Array* array = value.as_array();
    const Text* text = value.as_text();
    const bool kept = array && (value.is_list() || array->kind == Array::Kind::kRange);
    if (kept || text) {
      const int64_t count = length(value);
      if (index < 0) index += count;
      if (index >= 0 && index < count) {
        const auto at = static_cast<size_t>(index);
        if (kept) return array->items[at];
        const size_t begin = byte_of(*text->bytes, at);
        return {
            text->bytes->substr(begin, byte_of(std::string_view(*text->bytes).substr(begin), 1)),
            text->markup};
      }
    }
  }
  if (const std::string* name = key.as_string()) {
    // Python attributes; members of a dict are looked up above.
    if (value.as_namespace() || value.as_loop()) return attribute(value, *name);
    Value found = name->starts_with('_') ? Value() : method(value, *name);
    if (!found.is_none()) return found;
  }
  charge(key.extent().weight);
  return Value::undefined(concat("'", value.type_name(), "' has no element ", repr(key)));
}

Value Evaluator::slice(const Value& value, const Value& start, const Value& stop,
                       const Value& step) {
  if (value.is_undefined()) fail_undefined(value);
  const Array* array = value.as_array();
  const Text* text = value.as_text();
  if (!text && !(array && (value.is_list() || array->kind == Array::Kind::kRange))) {
    fail("'", value.type_name(), "' cannot be cut");
  }
  const auto whole = [&](const Value& bound, int64_t fallback) {
    if (bound.is_none()) return fallback;
    if (bound.is_undefined()) fail_undefined(bound);
    int64_t number = 0;
    if (!bound.is_whole(number)) fail("a slice needs integers, found ", bound.type_name());
    return number;
  };
  const int64_t count = length(value), by = whole(step, 1);
  if (by == 0) fail("the step of a slice is 0");
  const auto bounded = [&](int64_t at) {
    if (at < 0) at = at < -count ? -1 : at + count;
    return std::clamp<int64_t>(at, by < 0 ? -1 : 0, by < 0 ? count - 1 : count);
  };
  const int64_t first = start.is_none() ? (by < 0 ? count - 1 : 0) : bounded(whole(start, 0));
  const int64_t last = stop.is_none() ? (by < 0 ? -1 : count) : bounded(whole(stop, 0));
  if (text && by == 1) {
    const size_t begin = byte_of(*text->bytes, static_cast<size_t>(first));
    const size_t end = byte_of(*text->bytes, static_cast<size_t>(std::max(first, last)));
    return this->text(text->bytes->substr(begin, end - begin), text->markup);
  }
  const Values items = text ? items_of(value) : array->items;
  Values picked;
  for (int64_t at = first; by < 0 ? at > last : at < last;) {
    picked.push_back(items[static_cast<size_t>(at)]);
    if (by > 0 ? by >= last - at : by <= last - at) break;
    at += by;
  }
  if (array) return list(std::move(picked), array->kind);
  std::string joined;
  for (const Value& point : picked) joined += *point.as_string();
  return this->text(std::move(joined), text->markup);
}

}  // namespace tessera::jinja
