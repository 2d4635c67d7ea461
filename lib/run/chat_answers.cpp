// SPDX-License-Identifier: MIT
#include "lib/run/chat_answers.h"

#include <optional>

#include "lib/data/lines.h"
#include "lib/run/output.h"
#include "tessera/core/error.h"
#include "tessera/core/json.h"
#include "tessera/data/chat_examples.h"
#include "tessera/data/chat_record.h"
#include "tessera/generation/generate.h"

namespace tessera::programs {
namespace {

GenerationOptions chat_generation(const HeldOutChats& chats, const Tokenizer& tokenizer,
                                  const DecoderConfig& model, const TrainOptions& options) {
  GenerationOptions generation = answer_generation(tokenizer, model, options);
  if (chats.end.token) generation.end_tokens.push_back(*chats.end.token);
  return generation;
}

// Prompt and reference answer of a usable row.
std::optional<std::pair<ChatRecord, std::string>> held_out(std::string_view text,
                                                           const std::string& place) {
  try {
    ChatRecord record = read_chat_record(Json::parse(text, {}, place));
    std::optional<std::string> answer = take_last_answer(record.messages);
    if (!answer || record.messages.size() == 0) return std::nullopt;
    return std::pair(std::move(record), trimmed(*answer));
  } catch (const ChatRecordError&) {  // such rows were counted when rows were made
    return std::nullopt;
  }
}

}  // namespace

HeldOutChats read_held_out_chats(const TrainOptions& o, const Tokenizer& tokenizer,
                                 const ChatTemplate& chat_template) {
  HeldOutChats chats{.end = end_of_turn(chat_template, tokenizer)};
  const auto most = static_cast<size_t>(o.data.max_seq_length - o.output.generation_max_new_tokens);
  const auto add = [&](std::string_view text, const std::string& place) {
    const auto found = held_out(text, place);
    if (!found) return;
    try {
      auto ids = chat_prompt(found->first, chat_template, tokenizer, most);
      if (!ids) {
        ++chats.too_long;
        return;
      }
      chats.prompts.push_back(std::move(*ids));
      chats.answers.push_back(found->second);
    } catch (const Error& error) {  // the template rejects the chat; counted when rows were made
      if (error.code() != ErrorCode::kInvalidArgument) throw;
    }
  };
  for_each_json_text(o.data.validation_file, add);
  if (!o.data.validation_slice.empty()) {
    const auto [begin, end] =
        Slice::parse(o.data.validation_slice).within(static_cast<int64_t>(chats.prompts.size()));
    chats.prompts = {chats.prompts.begin() + begin, chats.prompts.begin() + end};
    chats.answers = {chats.answers.begin() + begin, chats.answers.begin() + end};
  }
  check(!chats.prompts.empty(), ErrorCode::kDataLoss, o.data.validation_file,
        ": no chat ends with an answer of the assistant that has room, so --generation has nothing "
        "to score");
  return chats;
}

BatchShape generation_shape(const HeldOutChats& chats, const Tokenizer& tokenizer,
                            const DecoderConfig& model, const TrainOptions& options,
                            const DeviceMesh& mesh) {
  return batch_shape(tessera::generation_shape(mesh, chats.prompts,
                                               chat_generation(chats, tokenizer, model, options)));
}

ChatAnswers answer_chats(const HeldOutChats& chats, const Tokenizer& tokenizer,
                         const DecoderConfig& model, const TrainOptions& options,
                         Strategy& strategy, const DeviceMesh& mesh) {
  const std::vector<GeneratedRow> rows =
      generate(strategy, mesh, chats.prompts, chat_generation(chats, tokenizer, model, options));
  ChatAnswers result;
  int64_t matches = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const std::string answer = trimmed(chat_answer(rows[i], tokenizer, chats.end));
    const bool match = answer == chats.answers[i];
    matches += match;
    const std::vector<int32_t> prompt(chats.prompts[i].begin(), chats.prompts[i].end());
    result.predictions += JsonWriter()
                              .begin_object()
                              .field("prompt", tokenizer.decode(prompt))
                              .field("answer", answer)
                              .field("expected", chats.answers[i])
                              .field("match", match)
                              .end_object()
                              .text() +
                          "\n";
  }
  result.exact_match = 100.0 * static_cast<double>(matches) / static_cast<double>(rows.size());
  return result;
}

void ChatAnswers::write(const std::string& directory) const {
  write_text_file(directory + "/predictions.jsonl", predictions);
}

}  // namespace tessera::programs
