// SPDX-License-Identifier: MIT
#include "tessera/data/token_rows.h"

#include <set>

#include "lib/data/foreign_input.h"
#include "lib/data/lines.h"
#include "tessera/core/error.h"
#include "tessera/core/json.h"

namespace tessera {
namespace {

void check_length(const Json& list, size_t length) {
  if (list.size() != length) {
    list.fail(concat(list.size(), " elements, but input_ids has ", length));
  }
}

std::vector<int32_t> causal_labels(const Json& row, const Example& example,
                                   const TokenRowOptions& options) {
  std::vector<int32_t> labels = example.input_ids;
  const auto list = row.find("labels");
  if (!list) {
    for (size_t i = 0; i < example.attention_mask.size(); ++i) {
      if (!example.attention_mask[i]) labels[i] = static_cast<int32_t>(kIgnoredLabel);
    }
    return labels;
  }
  check_length(*list, labels.size());
  labels.clear();
  for (const Json& label : list->items()) {
    const bool ignored = label.as_int64() == kIgnoredLabel;
    labels.push_back(
        static_cast<int32_t>(ignored ? kIgnoredLabel : label.as_int64(0, options.vocab_size - 1)));
  }
  return labels;
}

Example read_row(const Json& row, const TokenRowOptions& options) {
  Example example;
  for (const Json& id : row.at("input_ids").items()) {
    example.input_ids.push_back(static_cast<int32_t>(id.as_int64(0, options.vocab_size - 1)));
  }
  if (const auto mask = row.find("attention_mask")) {
    check_length(*mask, example.input_ids.size());
    bool all = true;
    for (const Json& flag : mask->items()) {
      example.attention_mask.push_back(static_cast<uint8_t>(flag.as_int64(0, 1)));
      all = all && example.attention_mask.back();
    }
    if (all) example.attention_mask.clear();
  }
  if (options.task == Task::kCausal) {
    example.labels = causal_labels(row, example, options);
  } else {
    example.labels.push_back(
        static_cast<int32_t>(row.at("labels").as_int64(0, options.num_labels - 1)));
  }
  return example;
}

// True if something was cut off.
bool cut_to(size_t length, Task task, Example& example) {
  if (length == 0 || example.input_ids.size() <= length) return false;
  example.input_ids.resize(length);
  if (task == Task::kCausal) example.labels.resize(length);
  if (!example.attention_mask.empty()) example.attention_mask.resize(length);
  return true;
}

}  // namespace

TokenRows read_token_rows(const std::string& path, const TokenRowOptions& options,
                          RowIssues* issues) {
  TokenRows rows{{options.task, {}, options.num_labels}, 0, {}};
  const std::set<std::string> known{"input_ids", "attention_mask", "labels"};
  std::set<std::string> ignored;
  int64_t count = 0;
  const auto take = [&](const Json& row, int64_t line) {
    ++count;
    if (!row.is_object() || !row.contains("input_ids")) {
      row.fail(concat("has no \"input_ids\"; ", keys_of(row), other_reader(row, DataReader::kIds)));
    }
    for (const auto& [key, value] : row.members()) {
      if (!known.contains(key)) ignored.insert(key);
    }
    const std::string where = concat(path, ":", line);
    if (row.at("input_ids").size() == 0) {
      return skip_row(issues, "no tokens", where, "input_ids: a row needs at least one token");
    }
    if (options.task == Task::kClassification && !row.find("labels")) {
      return skip_row(issues, "no label", where, "has no \"labels\"");
    }
    Example example = read_row(row, options);
    rows.cut += cut_to(static_cast<size_t>(options.max_seq_length), options.task, example);
    rows.dataset.examples.push_back(std::move(example));
  };
  for_each_json_line(path, take, options.progress);
  check(count > 0, ErrorCode::kDataLoss, path, ": no rows");
  if (issues) {
    issues->add_rows(count);
    issues->check_share(path);
  }
  rows.ignored_keys.assign(ignored.begin(), ignored.end());
  return rows;
}

}  // namespace tessera
