#include "tessera/data/token_rows.h"

#include "lib/data/lines.h"
#include "tessera/core/error.h"
#include "tessera/core/json.h"

namespace tessera {
namespace {

Example read_row(const Json& row, const TokenRowOptions& options) {
  Example example;
  for (const auto& [key, value] : row.members()) {
    if (key != "input_ids" && key != "attention_mask" && key != "labels") {
      value.fail("unknown key; known are input_ids, attention_mask and labels");
    }
  }
  const Json ids = row.at("input_ids");
  if (ids.size() == 0) ids.fail("a row needs at least one token");
  if (options.max_seq_length > 0 && ids.size() > static_cast<size_t>(options.max_seq_length)) {
    ids.fail(concat(ids.size(), " tokens, more than max_seq_length ", options.max_seq_length));
  }
  for (const Json& id : ids.items()) {
    example.input_ids.push_back(static_cast<int32_t>(id.as_int64(0, options.vocab_size - 1)));
  }
  const auto same_length = [&](const Json& list) {
    if (list.size() != ids.size()) {
      list.fail(concat(list.size(), " elements, but input_ids has ", ids.size()));
    }
  };
  if (const auto mask = row.find("attention_mask")) {
    same_length(*mask);
    bool all = true;
    for (const Json& flag : mask->items()) {
      example.attention_mask.push_back(static_cast<uint8_t>(flag.as_int64(0, 1)));
      all = all && example.attention_mask.back();
    }
    if (all) example.attention_mask.clear();
  }
  const Json labels = row.at("labels");
  if (options.task == Task::kClassification) {
    example.labels.push_back(static_cast<int32_t>(labels.as_int64(0, options.num_labels - 1)));
    return example;
  }
  same_length(labels);
  for (const Json& label : labels.items()) {
    const bool ignored = label.as_int64() == kIgnoredLabel;
    example.labels.push_back(
        static_cast<int32_t>(ignored ? kIgnoredLabel : label.as_int64(0, options.vocab_size - 1)));
  }
  return example;
}

}  // namespace

Dataset read_token_rows(const std::string& path, const TokenRowOptions& options) {
  Dataset dataset{options.task, {}, options.num_labels};
  for_each_json_line(
      path, [&](const Json& row, int64_t) { dataset.examples.push_back(read_row(row, options)); });
  check(dataset.size() > 0, ErrorCode::kDataLoss, path, ": no rows");
  return dataset;
}

}  // namespace tessera
