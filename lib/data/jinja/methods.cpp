// SPDX-License-Identifier: MIT
// Methods of Python's str, dict and list allowed by the sandbox.
#include <algorithm>
#include <map>
#include <set>

#include "lib/data/jinja/evaluator.h"
#include "lib/data/jinja/text.h"
#include "lib/data/unicode.h"

namespace tessera::jinja {
namespace {

const std::string& text_of(Evaluator& run, const char* method, const Value& value) {
  if (value.is_undefined()) run.fail_undefined(value);
  if (value.as_string() == nullptr) {
    run.fail("str.", method, " needs a str, found ", value.type_name());
  }
  return *value.as_string();
}

std::optional<std::string> optional_text(Evaluator& run, const char* method,
                                         const std::optional<Value>& value) {
  if (!value || value->is_none()) return std::nullopt;
  return text_of(run, method, *value);
}

Value strings(Evaluator& run, const std::vector<std::string>& parts, bool markup) {
  Values items;
  for (const std::string& part : parts) items.push_back(run.text(part, markup));
  return run.list(std::move(items));
}

using Method = Value (*)(Evaluator&, const Text&, const Arguments&);

template <bool kLeft, bool kRight>
Value strip(Evaluator& run, const Text& text, const Arguments& given) {
  const Bound bound = run.bind("strip", given, {"chars"});
  const auto characters = optional_text(run, "strip", bound[0]);
  if (characters) run.charge_search(*text.bytes, *characters);
  return run.text(std::string(stripped(*text.bytes, kLeft, kRight, characters)), text.markup);
}

template <bool kFromRight>
Value cut(Evaluator& run, const Text& text, const Arguments& given) {
  const Bound bound = run.bind("split", given, {"sep", "maxsplit"});
  const auto separator = optional_text(run, "split", bound[0]);
  if (separator && separator->empty()) run.fail("str.split needs a separator that is not empty");
  if (separator) run.charge_search(*text.bytes, *separator);
  return strings(run, split(*text.bytes, separator, run.whole("split", bound[1], -1), kFromRight),
                 text.markup);
}

// True if the text starts or ends with one of these.
template <bool kEnd>
Value borders(Evaluator& run, const Text& text, const Arguments& given) {
  const char* name = kEnd ? "endswith" : "startswith";
  const Bound bound = run.bind(name, given, {"prefix"});
  if (!bound[0]) run.fail("str.", name, " needs a str");
  const bool several = bound[0]->is_list() && bound[0]->as_array()->kind == Array::Kind::kTuple;
  for (const Value& one : several ? bound[0]->as_array()->items : Values{*bound[0]}) {
    const std::string& part = text_of(run, name, one);
    run.charge(1 + part.size() / 16);
    if (kEnd ? text.bytes->ends_with(part) : text.bytes->starts_with(part)) return true;
  }
  return false;
}

template <bool kLast, bool kMust>
Value find(Evaluator& run, const Text& text, const Arguments& given) {
  const Bound bound = run.bind("find", given, {"sub"});
  const std::string& part = text_of(run, "find", bound[0].value_or(Value()));
  run.charge_search(*text.bytes, part);
  const size_t at = kLast ? text.bytes->rfind(part) : text.bytes->find(part);
  if (at == std::string::npos && kMust) run.fail("str.index finds no ", string_repr(part));
  if (at == std::string::npos) return int64_t{-1};
  return static_cast<int64_t>(length_of(std::string_view(*text.bytes).substr(0, at)));
}

Value count(Evaluator& run, const Text& text, const Arguments& given) {
  const Bound bound = run.bind("count", given, {"sub"});
  const std::string& part = text_of(run, "count", bound[0].value_or(Value()));
  run.charge_search(*text.bytes, part);
  if (part.empty()) return static_cast<int64_t>(length_of(*text.bytes)) + 1;
  int64_t found = 0;
  for (size_t at = 0; (at = text.bytes->find(part, at)) != std::string::npos; at += part.size()) {
    ++found;
  }
  return found;
}

Value replace(Evaluator& run, const Text& text, const Arguments& given) {
  const Bound bound = run.bind("replace", given, {"old", "new", "count"});
  const auto part = [&](size_t i) {
    const std::string& bytes = text_of(run, "replace", bound[i].value_or(Value()));
    return text.markup && !bound[i]->as_text()->markup ? escaped(bytes) : bytes;
  };
  return run.replaced(text, part(0), part(1), run.whole("replace", bound[2], -1));
}

Value join(Evaluator& run, const Text& text, const Arguments& given) {
  const Bound bound = run.bind("join", given, {"iterable"});
  std::string result;
  bool first = true;
  for (const Value& item : run.items_of(bound[0].value_or(Value()))) {
    const std::string& part = text_of(run, "join", item);
    run.charge(1 + (part.size() + text.bytes->size()) / 16);
    if (!first) result += *text.bytes;
    first = false;
    result += part;
  }
  return run.text(std::move(result), text.markup);
}

Value lines(Evaluator& run, const Text& text, const Arguments& given) {
  const Bound bound = run.bind("splitlines", given, {"keepends"});
  return strings(run, split_lines(*text.bytes, bound[0] && bound[0]->truth()), text.markup);
}

Value without_prefix(Evaluator& run, const Text& text, const Arguments& given) {
  const std::string& part = text_of(
      run, "removeprefix", run.bind("removeprefix", given, {"prefix"})[0].value_or(Value()));
  return run.text(text.bytes->substr(text.bytes->starts_with(part) ? part.size() : 0));
}

Value without_suffix(Evaluator& run, const Text& text, const Arguments& given) {
  const std::string& part = text_of(
      run, "removesuffix", run.bind("removesuffix", given, {"suffix"})[0].value_or(Value()));
  const bool there = text.bytes->ends_with(part);
  return run.text(text.bytes->substr(0, text.bytes->size() - (there ? part.size() : 0)));
}

template <typename Change>
Value changed(Evaluator& run, const Text& text, const Arguments& given, const char* name,
              Change change) {
  run.bind(name, given, {});
  run.charge(text.bytes->size() / 4);
  return run.text(change(*text.bytes), text.markup);
}

// True if the text is not empty and all its characters are of this kind.
template <typename Is>
Value all_are(Evaluator& run, const Text& text, const Arguments& given, const char* name, Is is) {
  run.bind(name, given, {});
  run.charge(text.bytes->size() / 4);
  for (size_t at = 0; at < text.bytes->size();) {
    const CodePoint point = code_point_at(*text.bytes, at);
    if (!is(point.code)) return false;
    at += point.length;
  }
  return !text.bytes->empty();
}

const std::map<std::string, Method>& string_methods() {
  static const std::map<std::string, Method> kMethods = {
      {"strip", strip<true, true>},
      {"lstrip", strip<true, false>},
      {"rstrip", strip<false, true>},
      {"split", cut<false>},
      {"rsplit", cut<true>},
      {"startswith", borders<false>},
      {"endswith", borders<true>},
      {"find", find<false, false>},
      {"rfind", find<true, false>},
      {"index", find<false, true>},
      {"rindex", find<true, true>},
      {"count", count},
      {"replace", replace},
      {"join", join},
      {"splitlines", lines},
      {"removeprefix", without_prefix},
      {"removesuffix", without_suffix},
      {"upper",
       [](Evaluator& run, const Text& text, const Arguments& given) {
         return changed(run, text, given, "upper", python_upper);
       }},
      {"lower",
       [](Evaluator& run, const Text& text, const Arguments& given) {
         return changed(run, text, given, "lower", python_lower);
       }},
      {"title", [](Evaluator& run, const Text& text,
                   const Arguments& given) { return changed(run, text, given, "title", titled); }},
      {"capitalize",
       [](Evaluator& run, const Text& text, const Arguments& given) {
         return changed(run, text, given, "capitalize", capitalized);
       }},
      {"isspace",
       [](Evaluator& run, const Text& text, const Arguments& given) {
         return all_are(run, text, given, "isspace", is_python_space);
       }},
      {"isalnum",
       [](Evaluator& run, const Text& text, const Arguments& given) {
         return all_are(run, text, given, "isalnum", is_python_alnum);
       }},
      {"isalpha",
       [](Evaluator& run, const Text& text, const Arguments& given) {
         return all_are(run, text, given, "isalpha", is_letter);
       }},
      {"isdigit",
       [](Evaluator& run, const Text& text, const Arguments& given) {
         return all_are(run, text, given, "isdigit", [](uint32_t code) {
           return code < 0x80 ? code >= '0' && code <= '9' : is_number(code);
         });
       }},
      {"format",
       [](Evaluator& run, const Text& text, const Arguments& given) {
         return run.text(braced(run, *text.bytes, given), text.markup);
       }},
  };
  return kMethods;
}

Value dict_view(Evaluator& run, const Dict& dict, Array::Kind kind) {
  Values items;
  for (const auto& [key, value] : dict.members) {
    if (kind == Array::Kind::kKeys) {
      items.push_back(key);
    } else if (kind == Array::Kind::kValues) {
      items.push_back(value);
    } else {
      items.push_back(run.list({key, value}, Array::Kind::kTuple));
    }
  }
  return run.list(std::move(items), kind);
}

}  // namespace

// Calls a method; undefined value if there is none, or it changes a list or dict, as in the
// sandbox.
Value Evaluator::method(const Value& value, const std::string& name) {
  static const std::set<std::string> kChanging = {"append",     "clear",   "extend", "insert",
                                                  "pop",        "popitem", "remove", "reverse",
                                                  "setdefault", "sort",    "update"};
  Extent extent;
  extent.add(value.extent());
  const auto made = [&](Function::Body body) {
    return Value(std::make_shared<const Function>(name, std::move(body), extent));
  };
  const bool list = value.is_list() && value.as_array()->kind == Array::Kind::kList;
  if ((value.as_dict() || list) && kChanging.contains(name)) {
    return Value::undefined(
        concat("'", name, "' would change a ", value.type_name(), ", which templates may not"));
  }
  if (value.as_text()) {
    const auto found = string_methods().find(name);
    if (found == string_methods().end()) return {};
    return made([value, method = found->second](Evaluator& run, const Arguments& given) {
      return method(run, *value.as_text(), given);
    });
  }
  if (value.as_dict()) {
    constexpr std::pair<const char*, Array::Kind> kViews[] = {{"items", Array::Kind::kItems},
                                                              {"keys", Array::Kind::kKeys},
                                                              {"values", Array::Kind::kValues}};
    for (const auto& [view, kind] : kViews) {
      if (name != view) continue;
      return made([value, view, kind](Evaluator& run, const Arguments& given) {
        run.bind(view, given, {});
        return dict_view(run, *value.as_dict(), kind);
      });
    }
    if (name == "copy") {
      return made([value](Evaluator&, const Arguments&) { return value; });
    }
    if (name == "get") {
      return made([value](Evaluator& run, const Arguments& given) {
        const Bound bound = run.bind("get", given, {"key", "default"});
        if (!bound[0]) run.fail("dict.get needs a key");
        run.charge(value.as_dict()->members.size() / 8 + bound[0]->extent().weight);
        const Value* found = value.as_dict()->find(*bound[0]);
        return found ? *found : bound[1].value_or(Value());
      });
    }
  }
  if (value.is_list() && (name == "index" || name == "count")) {
    return made([value, name](Evaluator& run, const Arguments& given) {
      const Value wanted = run.bind(name.c_str(), given, {"value"})[0].value_or(Value());
      const Values& items = value.as_array()->items;
      run.charge(value.extent().weight);
      if (name == "count") return Value(int64_t{std::ranges::count(items, wanted)});
      const auto found = std::ranges::find(items, wanted);
      if (found == items.end()) run.fail("the list has no such item");
      return Value(int64_t{found - items.begin()});
    });
  }
  return {};
}

}  // namespace tessera::jinja
