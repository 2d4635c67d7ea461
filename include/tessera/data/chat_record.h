// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Chat record: a row of instruction data in any published form, as messages.
#include <optional>
#include <string>

#include "tessera/core/json.h"

namespace tessera {

/// Published form of a row, by its keys.
enum class ChatForm { kMessages, kPromptCompletion, kAlpaca, kShareGpt, kDolly, kQuestionAnswer };
inline constexpr size_t kChatForms = 6;  ///< number of forms
const char* chat_form_name(
    ChatForm form);  ///< named by its keys: "messages", "prompt and completion", ...

/// A row of instruction data as messages.
struct ChatRecord {
  ChatForm form;              ///< form of its keys
  Json messages;              ///< an array of {"role", "content", ...}
  std::optional<Json> tools;  ///< an array
  /// Number of leading messages whose answers are not trained: those of `prompt`.
  size_t prompt = 0;
};

/// Error for a row that cannot be used. what() is one sentence with a remedy, to which the caller
/// adds file and row; reason() groups equal defects for RowIssues.
class ChatRecordError : public Error {
 public:
  /// reason: without the row's values; sentence: with them.
  ChatRecordError(std::string reason, const std::string& sentence)
      : Error(ErrorCode::kDataLoss, sentence), reason_(std::move(reason)) {}
  const std::string& reason() const { return reason_; }  ///< the same for all rows with this defect

 private:
  std::string reason_;
};

/// Reads a row, whose form follows from its keys: `messages`; `prompt` and `completion`, texts or
/// messages;
/// `instruction`, `input` and `output`; `conversations` of {"from", "value"}; `instruction`,
/// `context` and `response`, as Dolly; `question` and `answer`, with or without a `context`.
/// `system` and `tools` are optional in all. Content may be a list of text parts, which are joined.
/// Throws ChatRecordError for other keys, an unknown role, and content that is missing, empty or
/// not text. The order of roles is checked by the template.
ChatRecord read_chat_record(const Json& row);

}  // namespace tessera
