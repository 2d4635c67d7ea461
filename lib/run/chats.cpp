#include "lib/run/chats.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "lib/core/hash.h"
#include "lib/run/prepare.h"
#include "tessera/core/log.h"
#include "tessera/data/chat_examples.h"

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
  return xxh3_128(all.data(), all.size()).hex();
}

std::string first_chat(const TokenTable& rows, const Tokenizer& tokenizer) {
  const TokenRow row = rows.row(0);
  Example example{.input_ids = {row.input_ids.begin(), row.input_ids.end()}};
  for (size_t i = 0; i < row.input_ids.size(); ++i) example.labels.push_back(row.label_at(i));
  const bool colour = isatty(STDERR_FILENO) != 0;
  return concat("the first row (", counted(example), ", ", how_marked(colour), "; --show_rows N ",
                "prints more):\n", shown_chat(example, tokenizer, colour));
}

void show_chats(const TrainOptions& options) {
  Prepared run{.options = options};
  take_from_hub_cache(run);
  prepare_tokenizer(run);
  const DataOptions& data = run.options.data;
  const ChatTemplate chat_template =
      choose_chat_template(data.chat_template, run.tokenizer_directory);
  const bool colour = isatty(STDOUT_FILENO) != 0;
  RowIssues issues(data.strict_data);
  int64_t number = 0;
  const auto show = [&](const Example& row) {
    const std::string text =
        concat("--- row ", ++number, " of ", data.train_file, ": ", counted(row), ", ",
               how_marked(colour), "\n", shown_chat(row, *run.tokenizer, colour), "\n");
    std::fputs(text.c_str(), stdout);
  };
  for_each_chat_example(data.train_file, *run.tokenizer, chat_template,
                        {.max_seq_length = data.max_seq_length,
                         .train_on = data.train_on,
                         .long_chats = data.long_chats,
                         .most_rows = data.show_rows},
                        &issues, show);
  if (issues.skipped() > 0) log(LogLevel::kInfo, data.train_file, ": ", issues.text());
}

}  // namespace tessera::programs
