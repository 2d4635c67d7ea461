// SPDX-License-Identifier: MIT
#include <map>
#include <set>

#include "lib/data/jinja/evaluator.h"
#include "lib/data/unicode.h"

namespace tessera::jinja {
namespace {

using Test = bool (*)(Evaluator&, const Value&, const Arguments&);
using PlainTest = bool (*)(Evaluator&, const Value&);

bool rest_is(Evaluator& run, const Value& value, int64_t rest) {
  return run.binary("%", value, int64_t{2}) == Value(rest);
}

const Value& other(Evaluator& run, const Arguments& given) {
  if (given.positional.size() != 1 || !given.named.empty()) {
    run.fail("this test needs one value to compare with");
  }
  return given.positional[0];
}

template <const char* kOperation>
bool compared(Evaluator& run, const Value& value, const Arguments& given) {
  return run.compare(kOperation, value, other(run, given));
}
constexpr char kEqual[] = "==", kDiffers[] = "!=", kLess[] = "<", kMore[] = ">",
               kAtMost[] = "<=", kAtLeast[] = ">=";

bool is_same(Evaluator& run, const Value& value, const Arguments& given) {
  const Value& wanted = other(run, given);
  if (value.as_array() || value.as_dict()) {
    return value.as_array() == wanted.as_array() && value.as_dict() == wanted.as_dict();
  }
  return value.type_name() == std::string_view(wanted.type_name()) &&
         run.compare("==", value, wanted);
}

// As str.islower() and isupper(): has cased letters, all of this case.
bool has_case(Evaluator& run, const Value& value, std::string (*change)(std::string_view)) {
  run.charge(value.extent().weight * 4);
  const std::string text = str(value);
  bool any = false;
  for (size_t at = 0; at < text.size() && !any;) {
    const CodePoint point = code_point_at(text, at);
    any = is_cased(point.code);
    at += point.length;
  }
  return any && change(text) == text;
}

const std::map<std::string, PlainTest>& plain_tests() {
  static const std::map<std::string, PlainTest> kTests = {
      {"defined", [](Evaluator&, const Value& v) { return !v.is_undefined(); }},
      {"undefined", [](Evaluator&, const Value& v) { return v.is_undefined(); }},
      {"none", [](Evaluator&, const Value& v) { return v.is_none(); }},
      {"boolean", [](Evaluator&, const Value& v) { return v.as_bool() != nullptr; }},
      {"true", [](Evaluator&, const Value& v) { return v.as_bool() && *v.as_bool(); }},
      {"false", [](Evaluator&, const Value& v) { return v.as_bool() && !*v.as_bool(); }},
      {"integer", [](Evaluator&, const Value& v) { return v.as_integer() != nullptr; }},
      {"float", [](Evaluator&, const Value& v) { return v.as_float() != nullptr; }},
      {"number",
       [](Evaluator&, const Value& v) { return v.as_bool() || v.as_integer() || v.as_float(); }},
      {"string", [](Evaluator&, const Value& v) { return v.as_text() != nullptr; }},
      {"mapping", [](Evaluator&, const Value& v) { return v.as_dict() != nullptr; }},
      {"sequence",
       [](Evaluator&, const Value& v) {
         const Array* array = v.as_array();
         return v.is_undefined() || v.as_text() || v.as_dict() || v.is_list() ||
                (array && array->kind == Array::Kind::kRange);
       }},
      {"iterable",
       [](Evaluator&, const Value& v) {
         return v.is_undefined() || v.as_text() || v.as_dict() || v.as_array() || v.as_loop();
       }},
      {"callable",
       [](Evaluator&, const Value& v) {
         return v.is_undefined() || v.as_function() || v.as_loop();
       }},
      {"escaped", [](Evaluator&, const Value& v) { return v.as_text() && v.as_text()->markup; }},
      {"odd", [](Evaluator& run, const Value& v) { return rest_is(run, v, 1); }},
      {"even", [](Evaluator& run, const Value& v) { return rest_is(run, v, 0); }},
      {"lower", [](Evaluator& run, const Value& v) { return has_case(run, v, python_lower); }},
      {"upper", [](Evaluator& run, const Value& v) { return has_case(run, v, python_upper); }},
  };
  return kTests;
}

// Tests that compare with another value.
const std::map<std::string, Test>& tests() {
  static const std::map<std::string, Test> kTests = {
      {"divisibleby",
       [](Evaluator& run, const Value& v, const Arguments& given) {
         return !run.binary("%", v, other(run, given)).truth();
       }},
      {"in", [](Evaluator& run, const Value& v,
                const Arguments& given) { return run.contains(other(run, given), v); }},
      {"sameas", is_same},
      {"eq", compared<kEqual>},
      {"equalto", compared<kEqual>},
      {"==", compared<kEqual>},
      {"ne", compared<kDiffers>},
      {"!=", compared<kDiffers>},
      {"lt", compared<kLess>},
      {"lessthan", compared<kLess>},
      {"<", compared<kLess>},
      {"gt", compared<kMore>},
      {"greaterthan", compared<kMore>},
      {">", compared<kMore>},
      {"le", compared<kAtMost>},
      {"<=", compared<kAtMost>},
      {"ge", compared<kAtLeast>},
      {">=", compared<kAtLeast>},
  };
  return kTests;
}

}  // namespace

bool Evaluator::test(const std::string& name, const Value& input, const Arguments& given) {
  if (const auto plain = plain_tests().find(name); plain != plain_tests().end()) {
    bind(name.c_str(), given, {});
    return plain->second(*this, input);
  }
  if (const auto found = tests().find(name); found != tests().end()) {
    return found->second(*this, input, given);
  }
  std::set<std::string> names;
  for (const auto& one : plain_tests()) names.insert(one.first);
  for (const auto& one : tests()) names.insert(one.first);
  std::string known;
  for (const std::string& one : names) known += (known.empty() ? "" : ", ") + one;
  fail("there is no test '", name, "'; there are ", known);
}

}  // namespace tessera::jinja
