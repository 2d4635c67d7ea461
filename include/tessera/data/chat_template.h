// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Chats as the text that a model was made for, and which of it the assistant wrote.
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/core/json.h"

namespace tessera {

/// Which tokens are labels: everything, all answers, the last answer.
enum class TrainOn { kAll, kAssistant, kLast };

/// A part of a text.
struct TextSpan {
  size_t begin, end;                                 ///< bytes
  bool operator==(const TextSpan&) const = default;  ///< compares all members
};

/// A chat as text, and what is trained of it.
struct RenderedChat {
  std::string text;               ///< the whole chat, in UTF-8
  std::vector<TextSpan> trained;  ///< in order, none empty; without answers there are none
  bool in_training_form = false;  ///< not as the published template writes it
  /// Why answers are trained as the whole chat writes them, and not as they are generated; may be
  /// empty.
  std::string rewritten;
};

/// The form in which chats of a published template are trained.
struct TrainingForm {
  std::string name;     ///< of the template, like "Qwen3"
  std::string differs;  ///< in which the text is not what the published template writes
  std::string text;     ///< Jinja with {% generation %}
};

/// A template in the Jinja of transformers, whose `apply_chat_template` gives the same text. The
/// text holds the special tokens: tokenise it without adding any. Templates run in a sandbox with
/// bounds on time, output and depth. Immutable: a copy shares its parts and threads may use one
/// together.
class ChatTemplate {
 public:
  /// Of a tokenizer's directory: chat_template.jinja, additional_chat_templates/, or chat_template
  /// of tokenizer_config.json, which also names the special tokens. Throws Error(kInvalidArgument)
  /// with the remedy where there is none, and "file:line: what" for what a template asks and is not
  /// there.
  static ChatTemplate load(const std::string& directory);
  /// One of names(), ignoring case, or a file; special tokens of that directory.
  static ChatTemplate choose(const std::string& name_or_file, const std::string& directory);
  static std::vector<std::string> names();  ///< names of the templates that are built in

  /// `messages`: an array of objects with "role"; `tools`: an array. Throws Error(kInvalidArgument)
  /// "file:line: what" where the template refuses them.
  std::string render(const Json& messages, const std::optional<Json>& tools,
                     bool add_generation_prompt) const;

  /// The whole chat and what is trained of it: the answers of the assistant with their end tokens,
  /// but for those of the first `prompt` messages. These are what the template marks by
  /// {% generation %}; in one without marks, what an answer adds to the text of the chat before it
  /// and its generation prompt, without white space behind the end token. An answer that the whole
  /// chat writes otherwise is found in the whole text, and `rewritten` says so. With
  /// training_form() kAssistant has its text and marks; so has kLast where the published template
  /// rewrites the last answer.
  RenderedChat render_for_training(const Json& messages, const std::optional<Json>& tools,
                                   TrainOn train_on, size_t prompt = 0) const;

  /// Of published templates that are known: they rewrite answers, or mark none. render() and
  /// sources() have the published one.
  std::optional<TrainingForm> training_form() const;

  /// Whether the text may depend on date(): a template calls strftime_now.
  bool asks_for_date() const;
  /// YYYY-MM-DD, what strftime_now gives, at midnight: today's in UTC unless dated() says another.
  std::string date() const;
  /// The same template on that day. Throws Error(kInvalidArgument) for what is no date.
  ChatTemplate dated(const std::string& date) const;

  /// Names and texts; the one of a chat without tools is called "default".
  std::vector<std::pair<std::string, std::string>> sources() const;
  bool marks_generation() const;  ///< whether the template marks answers itself
  /// What stands behind an answer, like "<|im_end|>": generation stops there. May be empty.
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
