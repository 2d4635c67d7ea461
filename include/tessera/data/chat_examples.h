// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Chats as rows for causal training, whose labels are on what the assistant says.
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

/// Of a chat that is too long: whole turns are dropped from its front, behind those of the system;
/// it is left out; its end is cut off.
enum class LongChats { kDropTurns, kSkip, kCut };

/// How chats become rows.
struct ChatOptions {
  int64_t max_seq_length = 512;                  ///< tokens of a row at most
  TrainOn train_on = TrainOn::kAssistant;        ///< which tokens are labels
  LongChats long_chats = LongChats::kDropTurns;  ///< what becomes of chats that are too long
  int64_t most_rows = 0;   ///< after which reading ends, whatever they are; 0: at the file's end
  Progress progress = {};  ///< null: nobody is told
};

/// What for_each_chat_example() did.
struct ChatCounts {
  int64_t chats = 0;                            ///< rows given to `take`
  std::array<int64_t, kChatForms> forms{};      ///< rows of each ChatForm
  int64_t shortened = 0, dropped_messages = 0;  ///< kDropTurns: chats, and what they lost
  int64_t skipped_long = 0;                     ///< kSkip
  int64_t cut = 0, cut_answers = 0;             ///< kCut: chats; of them those within an answer
  int64_t in_training_form = 0;                 ///< chats not written by the published template
  int64_t rewritten = 0;      ///< chats whose template rewrites answers (RenderedChat::rewritten)
  std::string how_rewritten;  ///< the first of them

  /// Of the forms that occur, as chat_form_name() calls them.
  std::vector<std::string> form_names() const;
  std::string forms_text() const;  ///< "800 chats by messages; 2 by prompt and completion"
};

/// The tokens of the text, special ones as the template writes them. Trained is every token that
/// covers a byte of a trained span, so that none of it is left out.
Example chat_example(const RenderedChat& chat, const Tokenizer& tokenizer);

/// The chat without the oldest exchange: from its second message of the user on, behind the first
/// messages of the system. Nothing where there is no such message.
std::optional<Json> without_oldest_exchange(const Json& messages);

/// Gives `take` the row of one chat after the other: of JSON lines, or of a JSON array. Skipped
/// with `issues`, errors without: what read_chat_record or the template refuses, chats of which no
/// token is trained, with kDropTurns chats whose last exchange alone is too long. Chats whose
/// template rewrites answers are counted, and are an Error(kInvalidArgument) without `issues` or
/// with strict ones. With kCut more
/// than RowIssues::kMostSkipped of answers cut off is an Error(kDataLoss), as any is without
/// `issues`. Throws Error(kInvalidArgument) for a file of another format, and Error(kDataLoss) with
/// file and place for malformed files. Works on all cores and with bounded memory: files may be
/// larger than it.
ChatCounts for_each_chat_example(const std::string& path, const Tokenizer& tokenizer,
                                 const ChatTemplate& chat_template, const ChatOptions& options,
                                 RowIssues* issues,
                                 const std::function<void(const Example&)>& take);

/// The row's text with trained parts in colour, or between the signs U+27E6 and U+27E7.
std::string shown_chat(const Example& row, const Tokenizer& tokenizer, bool colour);

}  // namespace tessera
