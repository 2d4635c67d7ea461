// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// One row of instruction data, in any of the forms in which it is published, as messages.
#include <optional>
#include <string>

#include "tessera/core/json.h"

namespace tessera {

/// The form in which a row was published.
enum class ChatForm { kMessages, kPromptCompletion, kAlpaca, kShareGpt, kDolly, kQuestionAnswer };
inline constexpr size_t kChatForms = 6;  ///< how many there are
const char* chat_form_name(
    ChatForm form);  ///< by its keys: "messages", "prompt and completion", ...

/// A row of instruction data as messages.
struct ChatRecord {
  ChatForm form;              ///< which keys it had
  Json messages;              ///< an array of {"role", "content", ...}
  std::optional<Json> tools;  ///< an array
  size_t prompt = 0;  ///< messages in front whose answers are not trained: those of `prompt`
};

/// Why a row cannot be used: what() is one sentence with what to do, to which the caller adds file
/// and row; reason() counts equal ones together, as RowIssues does.
class ChatRecordError : public Error {
 public:
  /// reason: without the row's own values; sentence: with them.
  ChatRecordError(std::string reason, const std::string& sentence)
      : Error(ErrorCode::kDataLoss, sentence), reason_(std::move(reason)) {}
  const std::string& reason() const { return reason_; }  ///< the same for all rows with this defect

 private:
  std::string reason_;
};

/// The form follows from the keys: `messages`; `prompt` and `completion`, texts or messages;
/// `instruction`, `input` and `output`; `conversations` of {"from", "value"}; `instruction`,
/// `context` and `response`, as Dolly; `question` and `answer`, with a `context` or without.
/// `system` and `tools` may stand beside. Content may be a list of text parts, which are joined.
/// Throws ChatRecordError: no such keys, an unknown role, content that is missing, empty or has a
/// part that is no text. Whether roles may follow one another so is the template's to say.
ChatRecord read_chat_record(const Json& row);

}  // namespace tessera
