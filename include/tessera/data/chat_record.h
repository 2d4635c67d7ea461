// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// One row of instruction data, in any of the forms in which it is published, as messages.
#include <optional>
#include <string>

#include "tessera/core/json.h"

namespace tessera {

/// The form in which a row was published.
enum class ChatForm { kMessages, kPromptCompletion, kAlpaca, kShareGpt };
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
/// `instruction`, `input` and `output`; `conversations` of {"from", "value"}. `system` and `tools`
/// may stand beside. Throws ChatRecordError: no such keys, an unknown role, content that is
/// missing, empty or in parts. Whether roles may follow one another so is the template's to say.
ChatRecord read_chat_record(const Json& row);

}  // namespace tessera
