// SPDX-License-Identifier: MIT
#include "lib/run/cached_rows.h"

#include <filesystem>

#include "lib/core/file.h"
#include "lib/core/hash.h"
#include "lib/data/rows_hash.h"
#include "lib/run/chats.h"
#include "tessera/core/error.h"
#include "tessera/core/json.h"
#include "tessera/core/log.h"

namespace tessera::programs {
namespace {

namespace fs = std::filesystem;

// Increase when the same file, tokenizer and options yield different rows.
constexpr int kRowsVersion = 2;
constexpr int kChatRowsVersion = 3;
// Without --cache_dir, files below this many bytes are tokenised every time, in under a second.
constexpr uintmax_t kWorthKeeping = 4 << 20;

std::string cache_directory(const TrainOptions& options, const std::string& path) {
  std::string directory = options.data.cache_dir;
  std::error_code error;
  if (directory.empty()) {
    directory = fs::file_size(path, error) >= kWorthKeeping ? user_cache_directory() : "none";
  }
  return directory == "none" ? "" : directory;
}

// Hash of everything that the rows and their messages depend on.
Hash128 key_of(const Prepared& run, const std::string& path) {
  JsonWriter key;
  key.begin_object()
      .field("version", run.program == Program::kChat ? kChatRowsVersion : kRowsVersion)
      .field("file", utf8_text(fs::absolute(path).string()))
      .field("content", hash_file(path).hex())
      .field("tokenizer", run.tokenizer ? tokenizer_hash(*run.tokenizer) : "")
      .field("ids", path == run.options.data.train_ids || path == run.options.data.validation_ids)
      .field("program", static_cast<int>(run.program))
      .field("chat_template", run.chat_template ? chat_template_hash(*run.chat_template) : "")
      .field("vocabulary", run.config().vocabulary)
      .field("labels", run.config().labels)
      .field("options", data_recipe(run.options));
  if (run.chat_template && run.chat_template->asks_for_date()) {
    key.field("template_date", run.chat_template->date());
  }
  key.end_object();
  return xxh3_128(key.text().data(), key.text().size());
}

std::vector<std::string> strings(const Json& list) {
  std::vector<std::string> texts;
  for (const Json& text : list.items()) texts.push_back(text.as_string());
  return texts;
}

// Visits the record's members that are counted while rows are made.
template <typename Record, typename Visit>
void each_count(Record& record, const Visit& visit) {
  visit("cut_contexts", record.cut_contexts);
  visit("windows", record.windows);
  visit("cut_rows", record.cut_rows);
  visit("dropped_tokens", record.dropped_tokens);
}

}  // namespace

std::string FileFacts::pack() const {
  JsonWriter out;
  out.begin_object().field("notices", notices).field("labels", labels).field("sha256", sha256);
  out.field("rows_hash", rows_hash);
  out.field("rows", record.rows).field("examples", record.examples);
  out.field("skipped_rows", record.skipped_rows).key("issues").begin_array();
  for (const auto& issue : record.issues) {
    out.begin_object().field("reason", issue.reason).field("count", issue.count);
    out.field("places", issue.places).end_object();
  }
  out.end_array().field("text_columns", record.text_columns);
  out.field("label_columns", record.label_columns);
  each_count(record, [&](const char* name, const std::optional<int64_t>& count) {
    if (count) out.field(name, *count);
  });
  return out.end_object().text();
}

void FileFacts::unpack(const std::string& notes) {
  const Json in = Json::parse(notes, {}, "the notes of a token cache");
  notices = strings(in.at("notices"));
  labels = strings(in.at("labels"));
  sha256 = in.at("sha256").as_string();
  rows_hash = in.at("rows_hash").as_string();
  record.rows = in.at("rows").as_int64();
  record.examples = in.at("examples").as_int64();
  record.skipped_rows = in.at("skipped_rows").as_int64();
  for (const Json& issue : in.at("issues").items()) {
    record.issues.push_back({issue.at("reason").as_string(), issue.at("count").as_int64(),
                             strings(issue.at("places"))});
  }
  record.text_columns = strings(in.at("text_columns"));
  record.label_columns = strings(in.at("label_columns"));
  each_count(record, [&](const char* name, std::optional<int64_t>& count) {
    if (in.contains(name)) count = in.at(name).as_int64();
  });
}

std::string tokenizer_hash(const Tokenizer& tokenizer) {
  const auto id = [](std::optional<int32_t> token) { return token ? std::to_string(*token) : "-"; };
  const std::string all =
      concat(hash_file(tokenizer.origin()).hex(), " ", id(tokenizer.bos_id()), " ",
             id(tokenizer.eos_id()), " ", id(tokenizer.pad_id()), " ", id(tokenizer.unk_id()));
  return xxh3_128(all.data(), all.size()).hex();
}

TokenTable cached_rows(const Prepared& run, FileFacts& facts, const RowReader& read) {
  const std::string& path = facts.record.file;
  TokenCacheEntry entry{.directory = cache_directory(run.options, path),
                        .name = fs::path(path).filename().string(),
                        .task = run.task};
  if (!entry.directory.empty()) entry.key = key_of(run, path);
  const auto make = [&](const RowTaker& take) {
    RowsHash hash;
    const int64_t classes = read([&](const Example& row) {
      hash.add(row);
      take(row);
    });
    facts.rows_hash = hash.text();
    facts.sha256 = sha256_file_hex(path);
    return RowFacts{classes, facts.pack()};
  };
  const TokenisedRows result =
      tokenised_rows(entry, make, [](const std::string& text) { log(LogLevel::kInfo, text); });
  if (!result.made) facts.unpack(result.facts.notes);
  return result.rows;
}

}  // namespace tessera::programs
