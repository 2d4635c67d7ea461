// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Chats as rows for causal training, with labels on the assistant's answers.
#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tessera/data/chat_record.h"
#include "tessera/data/chat_template.h"
#include "tessera/data/dataset.h"
#include "tessera/data/row_issues.h"
#include "tessera/data/tokenizer.h"

namespace tessera {

/// Treatment of a chat that is too long: drop whole exchanges behind the system messages; skip the
/// chat; cut off its end.
enum class LongChats { kDropTurns, kSkip, kCut };

/// Options of for_each_chat_example().
struct ChatOptions {
  int64_t max_seq_length = 512;                  ///< most tokens per row
  TrainOn train_on = TrainOn::kAssistant;        ///< which tokens are labels
  LongChats long_chats = LongChats::kDropTurns;  ///< treatment of chats that are too long
  int64_t most_rows = 0;   ///< reading ends after so many rows; 0: at the file's end
  Progress progress = {};  ///< null: not reported
};

/// Counts of for_each_chat_example().
struct ChatCounts {
  int64_t chats = 0;                        ///< rows given to `take`
  std::array<int64_t, kChatForms> forms{};  ///< rows of each ChatForm
  /// kDropTurns: shortened chats and the messages they lost.
  int64_t shortened = 0, dropped_messages = 0;
  int64_t skipped_long = 0;          ///< kSkip
  int64_t cut = 0, cut_answers = 0;  ///< kCut: chats cut, and those cut within an answer
  int64_t in_training_form = 0;      ///< chats not written by the published template
  int64_t rewritten = 0;      ///< chats whose template rewrites answers (RenderedChat::rewritten)
  std::string how_rewritten;  ///< reason of the first of them

  /// Names of the forms that occur, by chat_form_name().
  std::vector<std::string> form_names() const;
  std::string forms_text() const;  ///< "800 chats by messages; 2 by prompt and completion"
};

/// Tokens and labels of a rendered chat, special tokens as the template writes them. Every token
/// that covers a byte of a trained span has a label.
Example chat_example(const RenderedChat& chat, const Tokenizer& tokenizer);

/// The chat without its oldest exchange: the leading system messages, then everything from the
/// second user message on. Nothing without a second user message.
std::optional<Json> without_oldest_exchange(const Json& messages);

/// Passes each chat's row to `take`, from JSON lines or a JSON array. Skips with `issues`, and
/// throws without: rows that read_chat_record() or the template rejects, chats without a trained
/// token, and under kDropTurns chats whose last exchange alone is too long. Counts chats whose
/// template rewrites answers; without `issues`, or with strict ones, they are
/// Error(kInvalidArgument). Under kCut a share of cut answers above RowIssues::kMostSkipped is
/// Error(kDataLoss), and any cut answer without `issues`. Throws Error(kInvalidArgument) for
/// another file format, and Error(kDataLoss) with file and place for malformed files. Uses all
/// cores and bounded memory; files may be larger than memory.
ChatCounts for_each_chat_example(const std::string& path, const Tokenizer& tokenizer,
                                 const ChatTemplate& chat_template, const ChatOptions& options,
                                 RowIssues* issues,
                                 const std::function<void(const Example&)>& take);

/// The row's text with its trained parts in colour, or between the signs U+27E6 and U+27E7.
std::string shown_chat(const Example& row, const Tokenizer& tokenizer, bool colour);

}  // namespace tessera
