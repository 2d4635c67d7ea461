// SPDX-License-Identifier: MIT
// Filters of lists, dicts and other iterables.
#include <algorithm>
#include <cmath>

#include "lib/data/jinja/filters.h"
#include "lib/data/jinja/text.h"
#include "lib/data/unicode.h"

namespace tessera::jinja {
namespace {

Value once(Evaluator& run, Values items) { return run.list(std::move(items), Array::Kind::kOnce); }

// An item's attribute such as "function.name" or 0; `fallback` if undefined.
Value picked(Evaluator& run, Value item, const std::optional<Value>& attribute,
             const std::optional<Value>& fallback = std::nullopt) {
  if (!attribute || attribute->is_none()) return item;
  const std::string* path = attribute->as_string();
  if (path == nullptr) return run.item(item, *attribute);
  for (const std::string& part : split(*path, ".", -1, false)) {
    const bool index = !part.empty() && part.find_first_not_of("0123456789") == std::string::npos;
    const auto number = index ? parse_int(part, 10) : std::nullopt;
    item = run.item(item, number ? Value(*number) : Value(part));
    if (item.is_undefined() && fallback && !fallback->is_none()) item = *fallback;
  }
  return item;
}

// Sort key; ignores letter case unless case_sensitive.
Value sort_key(Evaluator& run, Value value, bool case_sensitive) {
  if (case_sensitive || !value.as_string()) return value;
  return run.text(python_lower(*value.as_string()));
}

bool is_true(const std::optional<Value>& value) { return value && value->truth(); }

struct Keyed {
  Values key;
  Value item;
};

Values sorted(Evaluator& run, std::vector<Keyed> rows, bool reverse) {
  size_t weight = 1;
  for (const Keyed& row : rows) {
    for (const Value& key : row.key) weight += key.extent().weight;
  }
  run.charge(weight * (1 + static_cast<size_t>(std::log2(rows.size() + 1))));
  const auto less = [](const Keyed& a, const Keyed& b) {
    for (size_t i = 0; i < a.key.size(); ++i) {
      if (!(a.key[i] == b.key[i])) return order(a.key[i], b.key[i]) < 0;
    }
    return false;
  };
  std::ranges::stable_sort(
      rows, [&](const Keyed& a, const Keyed& b) { return reverse ? less(b, a) : less(a, b); });
  Values items;
  for (Keyed& row : rows) items.push_back(std::move(row.item));
  return items;
}

Value sort(Evaluator& run, const Value& input, const Arguments& given) {
  const Bound bound = run.bind("sort", given, {"reverse", "case_sensitive", "attribute"});
  std::vector<std::optional<Value>> attributes = {bound[2]};
  if (const std::string* several = bound[2] ? bound[2]->as_string() : nullptr) {
    attributes.clear();
    for (const std::string& one : split(*several, ",", -1, false)) attributes.emplace_back(one);
  }
  std::vector<Keyed> rows;
  for (Value& item : run.items_of(input)) {
    Values key;
    for (const auto& attribute : attributes) {
      key.push_back(sort_key(run, picked(run, item, attribute), is_true(bound[1])));
    }
    rows.push_back({std::move(key), std::move(item)});
  }
  return run.list(sorted(run, std::move(rows), is_true(bound[0])));
}

const Dict& dict_of(Evaluator& run, const char* filter, const Value& input) {
  if (input.is_undefined()) run.fail_undefined(input);
  if (!input.as_dict())
    run.fail("the filter '", filter, "' needs a dict, found ", input.type_name());
  return *input.as_dict();
}

Value dictsort(Evaluator& run, const Value& input, const Arguments& given) {
  const Bound bound = run.bind("dictsort", given, {"case_sensitive", "by", "reverse"});
  const std::string by = bound[1] ? str(*bound[1]) : "key";
  if (by != "key" && by != "value") run.fail("the filter 'dictsort' sorts by key or value");
  std::vector<Keyed> rows;
  for (const auto& [key, value] : dict_of(run, "dictsort", input).members) {
    rows.push_back({{sort_key(run, by == "key" ? key : value, is_true(bound[0]))},
                    run.list({key, value}, Array::Kind::kTuple)});
  }
  return run.list(sorted(run, std::move(rows), is_true(bound[2])));
}

Value items(Evaluator& run, const Value& input, const Arguments& given) {
  run.bind("items", given, {});
  if (input.is_undefined()) return once(run, {});
  Values pairs;
  for (const auto& [key, value] : dict_of(run, "items", input).members) {
    pairs.push_back(run.list({key, value}, Array::Kind::kTuple));
  }
  return once(run, std::move(pairs));
}

Value join(Evaluator& run, const Value& input, const Arguments& given) {
  const Bound bound = run.bind("join", given, {"d", "attribute"});
  const std::string between = bound[0] ? str(*bound[0]) : "";
  std::string joined;
  bool first = true;
  for (Value& item : run.items_of(input)) {
    if (!first) joined += between;
    first = false;
    const Value part = picked(run, std::move(item), bound[1]);
    run.charge(part.extent().weight + between.size() / 16);
    joined += str(part);
  }
  return run.text(std::move(joined));
}

template <bool kLast>
Value end_of(Evaluator& run, const Value& input, const Arguments& given) {
  run.bind(kLast ? "last" : "first", given, {});
  if (kLast && input.is_once()) run.fail("an iterator has no last item; make a list of it first");
  if (!kLast && input.is_once()) {
    Array& array = *input.as_array();
    if (array.taken < array.items.size()) return array.items[array.taken++];
    return Value::undefined("No first item, sequence was empty.");
  }
  const Values all = run.items_of(input);
  if (all.empty()) {
    return Value::undefined(kLast ? "No last item, sequence was empty."
                                  : "No first item, sequence was empty.");
  }
  return kLast ? all.back() : all.front();
}

Value reverse(Evaluator& run, const Value& input, const Arguments& given) {
  run.bind("reverse", given, {});
  if (const Text* text = input.as_text()) {
    std::string reversed;
    const Values points = run.items_of(input);
    for (auto at = points.rbegin(); at != points.rend(); ++at) reversed += *at->as_string();
    return run.text(std::move(reversed), text->markup);
  }
  Values all = run.items_of(input);
  std::ranges::reverse(all);
  return once(run, std::move(all));
}

Value map(Evaluator& run, const Value& input, const Arguments& given) {
  Values mapped;
  if (!input.truth()) return once(run, {});
  if (given.positional.empty()) {
    const Bound bound = run.bind("map", given, {"attribute", "default"});
    if (!bound[0]) run.fail("the filter 'map' needs an attribute or the name of a filter");
    for (Value& item : run.items_of(input)) {
      mapped.push_back(picked(run, std::move(item), bound[0], bound[1]));
    }
    return once(run, std::move(mapped));
  }
  const std::string* name = given.positional[0].as_string();
  if (name == nullptr) run.fail("the filter 'map' needs the name of a filter");
  const Arguments rest{{given.positional.begin() + 1, given.positional.end()}, given.named};
  for (const Value& item : run.items_of(input)) mapped.push_back(run.filter(*name, item, rest));
  return once(run, std::move(mapped));
}

// select, reject, selectattr and rejectattr.
template <bool kKeeps, bool kAttribute>
Value selected(Evaluator& run, const Value& input, const Arguments& given) {
  if (!input.truth()) return once(run, {});
  const size_t skipped = kAttribute ? 1 : 0;
  if (given.positional.size() < skipped) run.fail("selectattr and rejectattr need an attribute");
  const std::optional<Value> attribute =
      kAttribute ? std::optional(given.positional[0]) : std::nullopt;
  const std::string* test = nullptr;
  Arguments rest;
  if (given.positional.size() > skipped) {
    test = given.positional[skipped].as_string();
    if (test == nullptr) run.fail("select and reject need the name of a test");
    rest = {
        {given.positional.begin() + static_cast<ptrdiff_t>(skipped) + 1, given.positional.end()},
        given.named};
  }
  Values kept;
  for (Value& item : run.items_of(input)) {
    const Value asked = picked(run, item, attribute);
    const bool passes = test ? run.test(*test, asked, rest) : asked.truth();
    if (passes == kKeeps) kept.push_back(std::move(item));
  }
  return once(run, std::move(kept));
}

Value unique(Evaluator& run, const Value& input, const Arguments& given) {
  const Bound bound = run.bind("unique", given, {"case_sensitive", "attribute"});
  Values seen, kept;
  for (Value& item : run.items_of(input)) {
    Value key = sort_key(run, picked(run, item, bound[1]), is_true(bound[0]));
    if (!key.is_hashable()) run.fail("'", key.type_name(), "' cannot be told apart by unique");
    run.charge(seen.size() * (1 + key.extent().weight / 16));
    if (std::ranges::find(seen, key) != seen.end()) continue;
    seen.push_back(std::move(key));
    kept.push_back(std::move(item));
  }
  return once(run, std::move(kept));
}

template <bool kMost>
Value extreme(Evaluator& run, const Value& input, const Arguments& given) {
  const Bound bound = run.bind(kMost ? "max" : "min", given, {"case_sensitive", "attribute"});
  const auto key = [&](const Value& item) {
    return sort_key(run, picked(run, item, bound[1]), is_true(bound[0]));
  };
  std::optional<Value> best;
  for (const Value& item : run.items_of(input)) {
    if (!best || run.compare(kMost ? ">" : "<", key(item), key(*best))) best = item;
  }
  return best ? *best : Value::undefined("No aggregated item, sequence was empty.");
}

Value sum(Evaluator& run, const Value& input, const Arguments& given) {
  const Bound bound = run.bind("sum", given, {"attribute", "start"});
  Value total = bound[1].value_or(Value(int64_t{0}));
  for (Value& item : run.items_of(input)) {
    total = run.binary("+", total, picked(run, std::move(item), bound[0]));
  }
  return total;
}

Value batch(Evaluator& run, const Value& input, const Arguments& given) {
  const Bound bound = run.bind("batch", given, {"linecount", "fill_with"});
  int64_t size = 0;
  if (!bound[0] || !bound[0]->is_whole(size) || size < 1) {
    run.fail("the filter 'batch' needs a number of items");
  }
  Values batches, row;
  for (Value& item : run.items_of(input)) {
    if (static_cast<int64_t>(row.size()) == size) {
      batches.push_back(run.list(std::exchange(row, {})));
    }
    row.push_back(std::move(item));
  }
  if (!row.empty()) {
    const bool fills = bound[1] && !bound[1]->is_none();
    while (fills && static_cast<int64_t>(row.size()) < size) {
      run.charge(1);
      row.push_back(*bound[1]);
    }
    batches.push_back(run.list(std::move(row)));
  }
  return once(run, std::move(batches));
}

Value list(Evaluator& run, const Value& input, const Arguments& given) {
  run.bind("list", given, {});
  return run.list(run.items_of(input));
}

Value length(Evaluator& run, const Value& input, const Arguments& given) {
  run.bind("length", given, {});
  return run.length(input);
}

}  // namespace

const Filters& sequence_filters() {
  static const Filters kFilters = {
      {"batch", batch},
      {"count", length},
      {"dictsort", dictsort},
      {"first", end_of<false>},
      {"items", items},
      {"join", join},
      {"last", end_of<true>},
      {"length", length},
      {"list", list},
      {"map", map},
      {"max", extreme<true>},
      {"min", extreme<false>},
      {"reject", selected<false, false>},
      {"rejectattr", selected<false, true>},
      {"reverse", reverse},
      {"select", selected<true, false>},
      {"selectattr", selected<true, true>},
      {"sort", sort},
      {"sum", sum},
      {"unique", unique},
  };
  return kFilters;
}

}  // namespace tessera::jinja
