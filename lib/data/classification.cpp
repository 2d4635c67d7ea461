// SPDX-License-Identifier: MIT
#include "tessera/data/classification.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>

#include "lib/data/in_order.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

constexpr int64_t kMaxClasses = 100'000;

std::optional<int64_t> integer(const std::string& text) {
  int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stop == end ? std::optional(value) : std::nullopt;
}

}  // namespace

void LabelMap::set_names(std::vector<std::string> names) {
  names_ = std::move(names);
  for (size_t i = 0; i < names_.size(); ++i) {
    check(ids_.emplace(names_[i], static_cast<int32_t>(i)).second, ErrorCode::kDataLoss,
          "two classes have the name \"", names_[i], "\"");
  }
}

LabelMap LabelMap::from(const LabelledTexts& texts) {
  std::set<std::string> words;
  std::set<int64_t> numbers;
  bool all_numbers = true;
  for (const LabelledText& row : texts.rows) {
    check(!row.label.empty(), ErrorCode::kDataLoss, texts.path, ":", row.line, ": empty label");
    const auto number = integer(row.label);
    all_numbers = all_numbers && number;
    if (number) numbers.insert(*number);
    words.insert(row.label);
  }
  std::vector<std::string> names;
  if (!all_numbers) {
    names.assign(words.begin(), words.end());
  } else if (const int64_t least = *numbers.begin(); least == 0 || least == 1) {
    check(*numbers.rbegin() < kMaxClasses, ErrorCode::kDataLoss, texts.path, ": label ",
          *numbers.rbegin(), ": labels from ", least, " to ", kMaxClasses - 1, " are accepted");
    for (int64_t i = least; i <= *numbers.rbegin(); ++i) names.push_back(std::to_string(i));
  } else {
    for (const int64_t number : numbers) names.push_back(std::to_string(number));
  }
  LabelMap map;
  map.set_names(std::move(names));
  return map;
}

LabelMap LabelMap::from_names(std::vector<std::string> names, bool accept_numbers) {
  LabelMap map;
  map.accept_numbers_ =
      accept_numbers && std::none_of(names.begin(), names.end(), [](const std::string& name) {
        return integer(name).has_value();
      });
  map.set_names(std::move(names));
  return map;
}

std::optional<int32_t> LabelMap::find(const std::string& label) const {
  const auto found = ids_.find(label);
  if (found != ids_.end()) return found->second;
  const auto number = integer(label);
  if (!number) return std::nullopt;
  // "01" is also class 1, as when the map was made.
  const auto plain = ids_.find(std::to_string(*number));
  if (plain != ids_.end()) return plain->second;
  const bool in_range = accept_numbers_ && *number >= 0 && *number < size();
  return in_range ? std::optional(static_cast<int32_t>(*number)) : std::nullopt;
}

int32_t LabelMap::id(const std::string& label, const std::string& where) const {
  if (const auto found = find(label)) return *found;
  std::string known;
  for (size_t i = 0; i < std::min(names_.size(), size_t{10}); ++i) {
    known += (i ? ", " : "") + names_[i];
  }
  fail(ErrorCode::kDataLoss, where, ": label \"", label, "\" is not among the ", size(),
       " known ones: ", known, names_.size() > 10 ? ", ..." : "");
}

Dataset classification_examples(const LabelledTexts& texts, const LabelMap& labels,
                                const Tokenizer& tokenizer, int64_t max_seq_length,
                                RowIssues* issues, const Progress& progress) {
  Dataset dataset{Task::kClassification, {}, labels.size()};
  const auto encode = [&](int64_t index) {
    std::vector<int32_t> ids = tokenizer.encode(texts.rows[static_cast<size_t>(index)].text);
    ids.resize(std::min(ids.size(), static_cast<size_t>(max_seq_length)));
    return ids;
  };
  const auto take = [&](int64_t index, std::vector<int32_t>& ids) {
    const LabelledText& row = texts.rows[static_cast<size_t>(index)];
    const std::string where = concat(texts.path, ":", row.line);
    const auto label = labels.find(row.label);
    if (!label) {
      if (stops_at_first(issues)) labels.id(row.label, where);
      return issues->skip("label not among the known ones", where);
    }
    if (ids.empty()) return skip_row(issues, "empty text", where, "the text has no tokens");
    dataset.examples.push_back({std::move(ids), {*label}, {}});
  };
  in_order(static_cast<int64_t>(texts.rows.size()), encode, take, /*share_size=*/64, progress);
  return dataset;
}

}  // namespace tessera
