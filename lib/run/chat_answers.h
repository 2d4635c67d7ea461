// SPDX-License-Identifier: MIT
#pragma once
// --generation of tessera-finetune-chat: answers to held-out chats, compared with the assistant's
// own.
#include <string>
#include <vector>

#include "lib/run/answers.h"
#include "lib/run/chats.h"

namespace tessera::programs {

struct HeldOutChats {
  std::vector<std::string> answers;           // the assistant's last messages
  std::vector<std::vector<int64_t>> prompts;  // the chats before them
  EndOfTurn end;
  int64_t too_long = 0;  // chats without any exchange that fits
};

// Chats of --validation_file that end with an answer. Throws Error(kDataLoss) when there are none.
HeldOutChats read_held_out_chats(const TrainOptions& options, const Tokenizer& tokenizer,
                                 const ChatTemplate& chat_template);

struct ChatAnswers {
  double exact_match = 0;   // percent
  std::string predictions;  // JSON lines with prompt, answer, expected, match

  void write(const std::string& directory) const;  // throws Error(kDataLoss)
};

// Greedy decoding up to an end token. Compared with the assistant's text without surrounding white
// space. Equal on every rank; collective.
ChatAnswers answer_chats(const HeldOutChats& chats, const Tokenizer& tokenizer,
                         const DecoderConfig& model, const TrainOptions& options,
                         Strategy& strategy, const DeviceMesh& mesh);

BatchShape generation_shape(const HeldOutChats& chats, const Tokenizer& tokenizer,
                            const DecoderConfig& model, const TrainOptions& options,
                            const DeviceMesh& mesh);

}  // namespace tessera::programs
