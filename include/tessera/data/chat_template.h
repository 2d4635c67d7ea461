// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Chat template: a chat as the model's text, with the spans that the assistant wrote.
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/core/json.h"

namespace tessera {

/// Tokens with labels: all, all answers, the last answer.
enum class TrainOn { kAll, kAssistant, kLast };

/// A byte range of a text.
struct TextSpan {
  size_t begin, end;                                 ///< bytes [begin, end)
  bool operator==(const TextSpan&) const = default;  ///< compares all members
};

/// A chat as text, with its trained spans.
struct RenderedChat {
  std::string text;               ///< the whole chat, in UTF-8
  std::vector<TextSpan> trained;  ///< in order, none empty; none without answers
  bool in_training_form = false;  ///< whether the text differs from the published template's
  /// Reason why answers are trained as the whole chat writes them, not as they are generated; may
  /// be empty.
  std::string rewritten;
};

/// Variant of a published template that is used for training.
struct TrainingForm {
  std::string name;     ///< the template's name, like "Qwen3"
  std::string differs;  ///< how the text differs from the published template's
  std::string text;     ///< Jinja with {% generation %}
};

/// Jinja chat template with the text of transformers' `apply_chat_template`. The text contains the
/// special tokens: tokenise it without adding any. Runs in a sandbox with bounds on time, output
/// and depth. Immutable; copies share memory, and threads may share one.
class ChatTemplate {
 public:
  /// Loads a tokenizer directory's template: chat_template.jinja, additional_chat_templates/, or
  /// chat_template of tokenizer_config.json. That file also names the special tokens. Throws
  /// Error(kInvalidArgument) with a remedy when there is none, and with "file:line: what" for
  /// unsupported Jinja.
  static ChatTemplate load(const std::string& directory);
  /// A built-in template of names(), ignoring case, or a file; special tokens from the directory.
  static ChatTemplate choose(const std::string& name_or_file, const std::string& directory);
  static std::vector<std::string> names();  ///< names of the built-in templates

  /// The chat's text. messages: an array of objects with "role"; tools: an array. Throws
  /// Error(kInvalidArgument) "file:line: what" when the template rejects them.
  std::string render(const Json& messages, const std::optional<Json>& tools,
                     bool add_generation_prompt) const;

  /// The chat's text and its trained spans: the assistant's answers with their end tokens, except
  /// in the first `prompt` messages. Spans are the template's {% generation %} marks. Without
  /// marks: the text that an answer adds to the chat before it and its generation prompt, without
  /// white space behind the end token. An answer that the whole chat writes differently is searched
  /// in the whole text, and `rewritten` says so. kAssistant uses training_form() if there is one;
  /// kLast does so when the published template rewrites the last answer.
  RenderedChat render_for_training(const Json& messages, const std::optional<Json>& tools,
                                   TrainOn train_on, size_t prompt = 0) const;

  /// Training variant of a known published template that rewrites answers or marks none. render()
  /// and sources() use the published one.
  std::optional<TrainingForm> training_form() const;

  /// Whether the text may depend on date(): the template calls strftime_now.
  bool asks_for_date() const;
  /// Date of strftime_now, at midnight, YYYY-MM-DD: today in UTC unless dated() set another.
  std::string date() const;
  /// The same template with that date. Throws Error(kInvalidArgument) unless it is a date.
  ChatTemplate dated(const std::string& date) const;

  /// Names and texts; the template for chats without tools is called "default".
  std::vector<std::pair<std::string, std::string>> sources() const;
  bool marks_generation() const;  ///< whether the template marks answers itself
  /// Text behind an answer, like "<|im_end|>", at which generation stops. May be empty.
  std::string end_of_turn() const;

 private:
  struct Parts;
  class Chat;
  static RenderedChat marked_chat(const Chat& chat, TrainOn train_on, size_t prompt);
  static RenderedChat unmarked_chat(const Chat& chat, TrainOn train_on, size_t prompt);
  explicit ChatTemplate(std::shared_ptr<const Parts> parts) : parts_(std::move(parts)) {}
  std::shared_ptr<const Parts> parts_;
};

}  // namespace tessera
