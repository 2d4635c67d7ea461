// SPDX-License-Identifier: MIT
#include "tessera/data/chat_examples.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "lib/core/printable.h"
#include "lib/data/foreign_input.h"
#include "lib/data/in_order.h"
#include "lib/data/jinja/template.h"
#include "lib/data/lines.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

constexpr size_t kTextsAtOnce = size_t{8} << 20;  // bytes
constexpr size_t kMostRefusals = 3;               // distinct refusals kept per template
constexpr const char* kRefused = "refused by the chat template";

Example example_of(const std::vector<TextSpan>& trained, const std::vector<Token>& tokens) {
  Example example;
  auto span = trained.begin();
  for (const Token& token : tokens) {
    const size_t end = std::max(token.end, token.begin + 1);  // a token may cover nothing
    while (span != trained.end() && span->end <= token.begin) ++span;
    const bool is_trained = span != trained.end() && span->begin < end;
    example.input_ids.push_back(token.id);
    example.labels.push_back(is_trained ? token.id : static_cast<int32_t>(kIgnoredLabel));
  }
  return example;
}

// True if the row has a target; its first token is never predicted.
bool has_target(const Example& row) {
  return std::any_of(row.labels.begin() + (row.labels.empty() ? 0 : 1), row.labels.end(),
                     [](int32_t label) { return label != kIgnoredLabel; });
}

// The letters of a message outside quotation marks.
std::string without_quotes(const std::string& message) {
  std::string words;
  char open = '\0';
  for (const char c : message) {
    if (open != '\0' ? c == open : c == '\'' || c == '"') {
      open = open != '\0' ? '\0' : c;
    } else if (open == '\0' && (c < '0' || c > '9')) {
      words += c;
    }
  }
  return words;
}

Json list_of(const std::vector<Json>& messages, const std::string& origin) {
  JsonWriter out;
  out.begin_array();
  for (const Json& message : messages) out.value(message);
  const std::string& text = out.end_array().text();
  return Json::parse(text, {.max_bytes = text.size()}, origin);
}

bool has_role(const Json& message, const char* role) { return message.get("role", "") == role; }

// System messages at the start, and the exchanges after them.
struct Exchanges {
  explicit Exchanges(const Json& list) : messages(list.items()) {
    while (head < messages.size() &&
           (has_role(messages[head], "system") || has_role(messages[head], "developer"))) {
      ++head;
    }
    for (size_t i = head + 1; i < messages.size(); ++i) {
      if (has_role(messages[i], "user")) later.push_back(i);
    }
  }

  // The chat from message `first` on, with the system messages.
  Json from(size_t first, const std::string& origin) const {
    std::vector<Json> kept(messages.begin(), messages.begin() + static_cast<ptrdiff_t>(head));
    kept.insert(kept.end(), messages.begin() + static_cast<ptrdiff_t>(first), messages.end());
    return list_of(kept, origin);
  }

  std::vector<Json> messages;
  size_t head = 0;
  std::vector<size_t> later;
};

// Result of one row.
struct MadeChat {
  std::optional<ChatForm> form;
  std::optional<Example> example;
  int64_t dropped = 0;  // messages
  bool cut = false, cut_answer = false, refused = false, in_training_form = false;
  std::string rewritten;
  std::string place, reason, detail;  // why it is unusable
};

class ChatReader {
 public:
  ChatReader(const std::string& path, const Tokenizer& tokenizer, const ChatTemplate& chat_template,
             const ChatOptions& options, RowIssues* issues,
             const std::function<void(const Example&)>& take)
      : path_(path),
        tokenizer_(tokenizer),
        template_(chat_template),
        options_(options),
        most_(static_cast<size_t>(options.max_seq_length)),
        in_training_form_(options.train_on != TrainOn::kAll &&
                          chat_template.training_form().has_value()),
        issues_(issues),
        take_(take) {
    refuse_table_or_text(path, DataReader::kChats);
  }

  ChatCounts read() {
    struct Enough {};
    try {
      for_each_json_text(
          path_,
          [&](std::string_view text, const std::string& place) {
            bytes_ += text.size();
            texts_.emplace_back(text, place);
            const bool last = options_.most_rows > 0 &&
                              rows_ + static_cast<int64_t>(texts_.size()) == options_.most_rows;
            if (bytes_ >= kTextsAtOnce || last) flush();
            if (last) throw Enough();
          },
          options_.progress);
      flush();
    } catch (const Enough&) {
    }
    if (issues_) issues_->add_rows(rows_);
    if (options_.most_rows > 0) return counts_;
    if (issues_) issues_->check_share(path_);
    check(counts_.chats > 0 || counts_.skipped_long == 0, ErrorCode::kDataLoss, path_, ": all ",
          counts_.skipped_long, " chats are longer than --max_seq_length ", most_,
          "; raise it, or use --long_chats drop_turns");
    const double most = RowIssues::kMostSkipped * static_cast<double>(rows_);
    check(static_cast<double>(counts_.cut_answers) <= most, ErrorCode::kDataLoss, path_,
          ": more than ", 100 * RowIssues::kMostSkipped,
          " % of the rows lose the end of an answer: ", counts_.cut_answers, " of ", rows_,
          "; raise --max_seq_length, or use --long_chats drop_turns or skip");
    return counts_;
  }

 private:
  void flush() {
    in_order(
        static_cast<int64_t>(texts_.size()),
        [&](int64_t i) {
          const auto& [text, place] = texts_[static_cast<size_t>(i)];
          return made(text, place);
        },
        [&](int64_t, MadeChat& chat) { add(chat); }, /*share_size=*/8);
    rows_ += static_cast<int64_t>(texts_.size());
    texts_.clear();
    bytes_ = 0;
  }

  MadeChat made(const std::string& text, const std::string& place) const {
    MadeChat chat{.place = place};
    try {
      const ChatRecord record = read_chat_record(Json::parse(text, {}, place));
      chat.form = record.form;
      make(record, chat);
    } catch (const ChatRecordError& error) {
      refuse(chat, error.reason(), error.what());
    }
    return chat;
  }

  static void refuse(MadeChat& chat, std::string reason, std::string detail) {
    chat.reason = std::move(reason);
    chat.detail = std::move(detail);
  }

  void make(const ChatRecord& record, MadeChat& chat) const {
    try {
      RenderedChat rendered = for_training(record.messages, record, chat);
      std::vector<Token> tokens = tokens_of(rendered.text);
      const bool too_long = tokens.size() > most_;
      if (too_long && options_.long_chats == LongChats::kSkip) return;
      if (too_long && options_.long_chats == LongChats::kDropTurns) {
        const auto kept = shortened(record, chat.dropped);
        if (!kept) {
          return refuse(chat, concat("last exchange longer than --max_seq_length ", most_),
                        concat("the last exchange alone takes more than --max_seq_length ", most_,
                               " tokens; raise it or leave the chat out"));
        }
        rendered = for_training(*kept, record, chat);
        tokens = tokens_of(rendered.text);
      }
      chat.in_training_form = rendered.in_training_form;
      chat.rewritten = rendered.rewritten;
      check_written_alike(chat, record);
      chat.example = example_of(rendered.trained, tokens);
    } catch (const jinja::Defect& defect) {
      fail(ErrorCode::kInvalidArgument, chat.place, ": ", defect.what());
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kInvalidArgument) throw;
      chat.refused = true;
      return refuse(chat, concat(kRefused, ": ", error.what()), error.what());
    }
    if (chat.example->input_ids.size() > most_) cut(chat);
    if (!has_target(*chat.example)) {
      chat.example.reset();
      refuse(chat, "no token is trained",
             chat.cut ? "no token is trained: the answers stand behind --max_seq_length; raise it "
                        "or leave the chat out"
                      : "no token is trained: the assistant says nothing; give the chat an answer "
                        "or leave it out");
    }
  }

  // Renders `messages`, from which chat.dropped messages after the system's were removed.
  RenderedChat for_training(const Json& messages, const ChatRecord& record,
                            const MadeChat& chat) const {
    size_t prompt = record.prompt;
    if (chat.dropped > 0) {
      const size_t head = Exchanges(record.messages).head;
      const auto dropped = static_cast<size_t>(chat.dropped);
      if (prompt > head) prompt = prompt > head + dropped ? prompt - dropped : head;
    }
    return template_.render_for_training(messages, record.tools, options_.train_on, prompt);
  }

  std::string text_of(const Json& messages, const ChatRecord& record) const {
    return in_training_form_
               ? template_.render_for_training(messages, record.tools, options_.train_on).text
               : template_.render(messages, record.tools, false);
  }

  std::vector<Token> tokens_of(const std::string& text) const {
    return tokenizer_.encode_with_offsets(text, false);
  }

  // In strict mode, answers must be trained as they are generated.
  void check_written_alike(const MadeChat& chat, const ChatRecord& record) const {
    if (chat.rewritten.empty() || !stops_at_first(issues_)) return;
    const bool last = options_.train_on == TrainOn::kAssistant &&
                      template_.render_for_training(record.messages, record.tools, TrainOn::kLast)
                          .rewritten.empty();
    throw jinja::Defect(concat(chat.rewritten, "; ",
                               last ? "train on the last answer alone (--train_on last), " : "",
                               "mark answers in the template by {% generation %}, or leave out "
                               "--strict_data: then answers are trained as the whole chat writes "
                               "them"));
  }

  // The chat with as many exchanges as fit; empty if not even the last one fits.
  std::optional<Json> shortened(const ChatRecord& record, int64_t& dropped) const {
    const Exchanges chat(record.messages);
    const std::string& origin = record.messages.origin();
    const auto fits = [&](size_t first) {
      return tokens_of(text_of(chat.from(first, origin), record)).size() <= most_;
    };
    const auto first = std::ranges::partition_point(chat.later, std::not_fn(fits));
    if (first == chat.later.end()) return std::nullopt;
    dropped = static_cast<int64_t>(*first - chat.head);
    return chat.from(*first, origin);
  }

  void cut(MadeChat& chat) const {
    Example& row = *chat.example;
    chat.cut = true;
    chat.cut_answer = row.labels[most_ - 1] != kIgnoredLabel && row.labels[most_] != kIgnoredLabel;
    row.input_ids.resize(most_);
    row.labels.resize(most_);
  }

  void add(MadeChat& chat) {
    if (chat.form) ++counts_.forms[static_cast<size_t>(*chat.form)];
    if (!chat.reason.empty()) return skip(chat);
    if (!chat.example) {
      ++counts_.skipped_long;
      return;
    }
    counts_.shortened += chat.dropped > 0;
    counts_.dropped_messages += chat.dropped;
    counts_.cut += chat.cut;
    counts_.cut_answers += chat.cut_answer;
    counts_.in_training_form += chat.in_training_form;
    counts_.rewritten += !chat.rewritten.empty();
    if (counts_.how_rewritten.empty()) counts_.how_rewritten = chat.rewritten;
    check(!chat.cut_answer || !stops_at_first(issues_), ErrorCode::kDataLoss, chat.place,
          ": the end of an answer is cut off; raise --max_seq_length, or use --long_chats "
          "drop_turns or skip");
    ++counts_.chats;
    take_(*chat.example);
  }

  // Counts a skipped row. A template's message may quote the row, so messages that differ only in
  // quotes count as one reason, shown by its first; few are kept.
  void skip(const MadeChat& chat) {
    std::string reason = chat.reason;
    if (chat.refused) {
      const std::string words = without_quotes(reason);
      const auto known =
          std::ranges::find(refusals_, words, &std::pair<std::string, std::string>::first);
      if (known != refusals_.end()) {
        reason = known->second;
      } else if (refusals_.size() < kMostRefusals) {
        refusals_.emplace_back(words, reason);
      } else {
        reason = kRefused;
      }
    }
    skip_row(issues_, reason, chat.place, chat.detail);
  }

  const std::string& path_;
  const Tokenizer& tokenizer_;
  const ChatTemplate& template_;
  const ChatOptions& options_;
  const size_t most_;
  const bool in_training_form_;  // possibly: the training form renders another text
  RowIssues* issues_;
  const std::function<void(const Example&)>& take_;
  std::vector<std::pair<std::string, std::string>> texts_;  // with their positions
  size_t bytes_ = 0;
  int64_t rows_ = 0;
  std::vector<std::pair<std::string, std::string>> refusals_;  // without quotes, and in full
  ChatCounts counts_;
};

}  // namespace

std::vector<std::string> ChatCounts::form_names() const {
  std::vector<std::string> names;
  for (size_t i = 0; i < forms.size(); ++i) {
    if (forms[i] > 0) names.emplace_back(chat_form_name(static_cast<ChatForm>(i)));
  }
  return names;
}

std::string ChatCounts::forms_text() const {
  std::string text;
  for (size_t i = 0; i < forms.size(); ++i) {
    if (forms[i] == 0) continue;
    text += concat(text.empty() ? "" : "; ", forms[i], text.empty() ? " chats by " : " by ",
                   chat_form_name(static_cast<ChatForm>(i)));
  }
  return text;
}

Example chat_example(const RenderedChat& chat, const Tokenizer& tokenizer) {
  return example_of(chat.trained, tokenizer.encode_with_offsets(chat.text, false));
}

std::optional<Json> without_oldest_exchange(const Json& messages) {
  const Exchanges chat(messages);
  if (chat.later.empty()) return std::nullopt;
  return chat.from(chat.later.front(), messages.origin());
}

ChatCounts for_each_chat_example(const std::string& path, const Tokenizer& tokenizer,
                                 const ChatTemplate& chat_template, const ChatOptions& options,
                                 RowIssues* issues,
                                 const std::function<void(const Example&)>& take) {
  return ChatReader(path, tokenizer, chat_template, options, issues, take).read();
}

std::string shown_chat(const Example& row, const Tokenizer& tokenizer, bool colour) {
  const std::string_view before = colour ? kGreenText : "\u27E6";
  const std::string_view after = colour ? kPlainText : "\u27E7";
  const std::vector<int32_t>& ids = row.input_ids;
  std::string text, shown;
  for (size_t begin = 0, end = 0; begin < ids.size(); begin = end) {
    const bool trained = row.labels[begin] != kIgnoredLabel;
    while (end < ids.size() && (row.labels[end] != kIgnoredLabel) == trained) ++end;
    // Spaces of a part's first token depend on the text before it.
    std::string longer = tokenizer.decode(std::span(ids).first(end));
    const bool goes_on = longer.starts_with(text);
    const std::string part = goes_on ? longer.substr(text.size())
                                     : tokenizer.decode(std::span(ids).subspan(begin, end - begin));
    shown += trained ? concat(before, printable(part), after) : printable(part);
    text = std::move(longer);
  }
  return shown;
}

}  // namespace tessera
