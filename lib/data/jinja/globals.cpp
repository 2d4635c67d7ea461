// SPDX-License-Identifier: MIT
#include "lib/data/jinja/date.h"
#include "lib/data/jinja/evaluator.h"

namespace tessera::jinja {
namespace {

// Python's range limit in a sandbox.
constexpr int64_t kMaxRange = 100'000;

Value raise_exception(Evaluator& run, const Arguments& given) {
  const Bound bound = run.bind("raise_exception", given, {"message"});
  if (!bound[0]) run.fail("raise_exception needs a message");
  run.charge(bound[0]->extent().weight);
  run.fail("the template refuses this chat: ", str(*bound[0]));
}

Value strftime_now(Evaluator& run, const Arguments& given) {
  const Bound bound = run.bind("strftime_now", given, {"format"});
  const std::string* form = bound[0] ? bound[0]->as_string() : nullptr;
  if (form == nullptr || form->size() > 1000) {
    run.fail("strftime_now needs a format of at most 1000 bytes, like \"%d %b %Y\"");
  }
  auto text = written_date(*form, run.day());
  if (!text) run.fail("strftime_now: %s depends on a time zone, and only the date is known");
  return run.text(std::move(*text));
}

Value range(Evaluator& run, const Arguments& given) {
  int64_t bounds[3] = {0, 0, 1};
  const size_t count = given.positional.size();
  if (count < 1 || count > 3 || !given.named.empty()) run.fail("range takes 1 to 3 integers");
  for (size_t i = 0; i < count; ++i) {
    if (given.positional[i].is_undefined()) run.fail_undefined(given.positional[i]);
    if (!given.positional[i].is_whole(bounds[count == 1 ? 1 : i])) {
      run.fail("range needs integers, found ", given.positional[i].type_name());
    }
  }
  if (bounds[2] == 0) run.fail("the step of range is 0");
  Values items;
  for (int64_t at = bounds[0]; bounds[2] > 0 ? at < bounds[1] : at > bounds[1];) {
    if (static_cast<int64_t>(items.size()) >= kMaxRange) {
      run.fail("range has more than ", kMaxRange, " items");
    }
    items.emplace_back(at);
    if (__builtin_add_overflow(at, bounds[2], &at)) break;
  }
  return run.list(std::move(items), Array::Kind::kRange);
}

// Members of an optional mapping or list of pairs, plus the named arguments.
Dict members_of(Evaluator& run, const char* function, const Arguments& given) {
  Dict dict;
  if (given.positional.size() > 1) run.fail("'", function, "' takes one mapping");
  for (const Value& value : given.positional) {
    if (const Dict* from = value.as_dict()) {
      run.charge(from->members.size());
      dict = *from;
      continue;
    }
    for (const Value& pair : run.items_of(value)) {
      Values both = run.items_of(pair);
      if (both.size() != 2) run.fail("'", function, "' needs pairs of key and value");
      run.charge(dict.members.size() / 8);
      dict.set(both[0], both[1]);
    }
  }
  for (const auto& [name, value] : given.named) dict.set(name, value);
  return dict;
}

Value make_namespace(Evaluator& run, const Arguments& given) {
  auto names = std::make_shared<Namespace>();
  for (auto& [key, value] : members_of(run, "namespace", given).members) {
    std::string name = str(key);
    if (name.starts_with('_')) run.fail("an attribute of a namespace begins with no '_'");
    names->attributes.emplace_back(std::move(name), std::move(value));
  }
  return run.keep(std::move(names));
}

Value make_dict(Evaluator& run, const Arguments& given) {
  return Value::dict(members_of(run, "dict", given));
}

}  // namespace

std::optional<Value> global(const std::string& name) {
  static const std::pair<const char*, Value (*)(Evaluator&, const Arguments&)> kFunctions[] = {
      {"raise_exception", raise_exception},
      {"strftime_now", strftime_now},
      {"range", range},
      {"namespace", make_namespace},
      {"dict", make_dict},
  };
  for (const auto& [known, function] : kFunctions) {
    if (name == known) return Value(std::make_shared<const Function>(name, function));
  }
  return std::nullopt;
}

}  // namespace tessera::jinja
