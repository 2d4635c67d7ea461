// SPDX-License-Identifier: MIT
#pragma once
// --generation of tessera-finetune-chat: answers to held-out chats, compared with what the
// assistant said there.
#include <string>
#include <vector>

#include "lib/run/answers.h"
#include "lib/run/chats.h"

namespace tessera::programs {

struct HeldOutChats {
  std::vector<std::string> answers;           // the last turns
  std::vector<std::vector<int64_t>> prompts;  // the chats before them
  EndOfTurn end;
  int64_t too_long = 0;  // chats of which no exchange fits
};

// The chats of --validation_file that end with an answer. Throws Error(kDataLoss) where none does.
HeldOutChats read_held_out_chats(const TrainOptions& options, const Tokenizer& tokenizer,
                                 const ChatTemplate& chat_template);

struct ChatAnswers {
  double exact_match = 0;   // percent
  std::string predictions;  // JSON lines of prompt, answer, expected, match

  void write(const std::string& directory) const;  // Error(kDataLoss)
};

// The best token at every place, up to an end token; equal to the assistant's text but for white
// space around it. The same on every rank; collective.
ChatAnswers answer_chats(const HeldOutChats& chats, const Tokenizer& tokenizer,
                         const DecoderConfig& model, const TrainOptions& options,
                         Strategy& strategy, const DeviceMesh& mesh);

BatchShape generation_shape(const HeldOutChats& chats, const Tokenizer& tokenizer,
                            const DecoderConfig& model, const TrainOptions& options,
                            const DeviceMesh& mesh);

}  // namespace tessera::programs
