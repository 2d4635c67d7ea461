// SPDX-License-Identifier: MIT
#include "lib/run/chats.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "lib/core/hash.h"
#include "lib/core/terminal.h"
#include "lib/run/prepare.h"
#include "lib/run/template_date.h"
#include "tessera/core/log.h"

namespace tessera::programs {
namespace {

std::string how_marked(bool colour) { return colour ? "in colour" : "between \u27E6 and \u27E7"; }

std::string counted(const Example& row) {
  const auto trained =
      std::ranges::count_if(row.labels, [](int32_t label) { return label != kIgnoredLabel; });
  return concat(row.input_ids.size(), " tokens, ", trained, " trained");
}

}  // namespace

ChatTemplate choose_chat_template(const std::string& name_or_file, const std::string& tokenizer) {
  namespace fs = std::filesystem;
  const fs::path path(tokenizer);
  const std::string directory = fs::is_directory(path)   ? tokenizer
                                : path.has_parent_path() ? path.parent_path().string()
                                                         : ".";
  return name_or_file.empty() ? ChatTemplate::load(directory)
                              : ChatTemplate::choose(name_or_file, directory);
}

std::string chat_template_hash(const ChatTemplate& chat_template) {
  std::string all;
  for (const auto& [name, text] : chat_template.sources()) {
    all += concat(name, '\0', text, '\0');
  }
  if (const auto form = chat_template.training_form()) all += concat(form->text, '\0');
  return xxh3_128(all.data(), all.size()).hex();
}

std::vector<std::string> how_written(const ChatCounts& counts, const ChatTemplate& chat_template) {
  std::vector<std::string> notices;
  if (counts.in_training_form > 0) {
    const auto form = chat_template.training_form();
    notices.push_back(concat(counts.in_training_form, " chats in the training form of the ",
                             form ? form->name : "", " chat template: ", form ? form->differs : "",
                             "; the exported model keeps its own template"));
  }
  if (counts.rewritten > 0) {
    notices.push_back(concat(counts.rewritten,
                             " chats whose template rewrites answers, trained as the whole chat "
                             "writes them (--strict_data refuses them): ",
                             counts.how_rewritten));
  }
  return notices;
}

std::string first_chat(const TokenTable& rows, const Tokenizer& tokenizer) {
  const TokenRow row = rows.row(0);
  Example example{.input_ids = {row.input_ids.begin(), row.input_ids.end()}};
  for (size_t i = 0; i < row.input_ids.size(); ++i) example.labels.push_back(row.label_at(i));
  const bool colour = isatty(STDERR_FILENO) != 0 && terminal_has_colours();
  return concat("the first row (", counted(example), ", ", how_marked(colour), "; --show_rows N ",
                "prints more):\n", shown_chat(example, tokenizer, colour));
}

void show_chats(const TrainOptions& options) {
  Prepared run{.options = options};
  take_from_hub_cache(run);
  prepare_tokenizer(run);
  const DataOptions& data = run.options.data;
  const ChatTemplate chosen = choose_chat_template(data.chat_template, run.tokenizer_directory);
  const std::string date = template_date(run.options);
  const ChatTemplate chat_template = date.empty() ? chosen : chosen.dated(date);
  const bool colour = isatty(STDOUT_FILENO) != 0 && terminal_has_colours();
  RowIssues issues(data.strict_data);
  int64_t number = 0;
  const auto show = [&](const Example& row) {
    const std::string text =
        concat("--- row ", ++number, " of ", data.train_file, ": ", counted(row), ", ",
               how_marked(colour), "\n", shown_chat(row, *run.tokenizer, colour), "\n");
    std::fputs(text.c_str(), stdout);
  };
  const ChatCounts counts = for_each_chat_example(data.train_file, *run.tokenizer, chat_template,
                                                  {.max_seq_length = data.max_seq_length,
                                                   .train_on = data.train_on,
                                                   .long_chats = data.long_chats,
                                                   .most_rows = data.show_rows},
                                                  &issues, show);
  for (const std::string& notice : how_written(counts, chat_template)) {
    log(LogLevel::kInfo, data.train_file, ": ", notice);
  }
  if (issues.skipped() > 0) log(LogLevel::kInfo, data.train_file, ": ", issues.text());
}

EndOfTurn end_of_turn(const ChatTemplate& chat_template, const Tokenizer& tokenizer) {
  EndOfTurn end{chat_template.end_of_turn(), std::nullopt};
  const std::vector<int32_t> ids = tokenizer.encode(end.text, /*add_special_tokens=*/false);
  if (ids.size() == 1) end.token = ids.front();
  return end;
}

std::optional<std::string> take_last_answer(Json& messages) {
  const std::vector<Json> all = messages.items();
  if (all.empty() || all.back().get("role", "") != "assistant") return std::nullopt;
  const auto content = all.back().find("content");
  if (!content || !content->is_string()) return std::nullopt;
  JsonWriter out;
  out.begin_array();
  for (size_t i = 0; i + 1 < all.size(); ++i) out.value(all[i]);
  const std::string& text = out.end_array().text();
  const std::string answer = content->as_string();
  messages = Json::parse(text, {.max_bytes = text.size()}, messages.origin());
  return answer;
}

std::optional<std::vector<int64_t>> chat_prompt(const ChatRecord& chat,
                                                const ChatTemplate& chat_template,
                                                const Tokenizer& tokenizer, size_t most) {
  std::optional<Json> messages = chat.messages;
  while (messages) {
    const std::string text = chat_template.render(*messages, chat.tools, true);
    const std::vector<int32_t> ids = tokenizer.encode(text, /*add_special_tokens=*/false);
    if (ids.size() <= most) return std::vector<int64_t>(ids.begin(), ids.end());
    messages = without_oldest_exchange(*messages);
  }
  return std::nullopt;
}

std::string chat_answer(const GeneratedRow& row, const Tokenizer& tokenizer, const EndOfTurn& end) {
  std::vector<int32_t> ids;
  for (const int64_t id : row.ids) {  // an embedding may have more rows than there are tokens
    if (id < tokenizer.size()) ids.push_back(static_cast<int32_t>(id));
  }
  if (row.finish == FinishReason::kEndToken && !ids.empty()) ids.pop_back();
  const std::string text = tokenizer.decode(ids, /*skip_special_tokens=*/true);
  return end.text.empty() ? text : text.substr(0, text.find(end.text));
}

}  // namespace tessera::programs
