// SPDX-License-Identifier: MIT
#pragma once
// --generation: answers to the questions of a SQuAD validation file, and their scores.
#include <string>
#include <vector>

#include "lib/plan/layout_plan.h"
#include "lib/settings/train_flags.h"
#include "tessera/backends/strategy.h"
#include "tessera/comm/device_mesh.h"
#include "tessera/data/squad.h"
#include "tessera/data/squad_scores.h"
#include "tessera/data/tokenizer.h"
#include "tessera/generation/generate.h"
#include "tessera/models/decoder_config.h"

namespace tessera::programs {

std::string trimmed(const std::string& text);  // without blanks around it

// How answers are generated that are scored: the best token, up to the end token.
GenerationOptions answer_generation(const Tokenizer& tokenizer, const DecoderConfig& model,
                                    const TrainOptions& options);
BatchShape batch_shape(const GenerationShape& shape);

// The questions that are scored, and what the model is given: one prompt a question, several where
// its context is cut into windows.
struct QuestionSet {
  SquadVersion version = SquadVersion::k1;
  std::vector<SquadQuestion> questions;
  std::vector<SquadPrompt> prompts;
};

// Throws Error(kDataLoss) for a file without a question to score.
QuestionSet read_questions(const TrainOptions& options, const Tokenizer& tokenizer);

struct Answers {
  SquadEvaluation scores;
  // Files in the formats of the official scripts: id -> text; id -> candidates, best first; id ->
  // probability that there is no answer (v2.0).
  std::string predictions, nbest, no_answer;

  void write(const std::string& directory) const;  // Error(kDataLoss)
};

// The best token at every place, up to the end token. Of the windows of a question counts the
// answer that is not empty and has the greatest probability (the sum of its tokens' logarithms, end
// token included); that there is none has the least probability of an empty answer over the
// windows. The same on every rank; collective.
Answers answer_questions(const QuestionSet& set, const Tokenizer& tokenizer,
                         const DecoderConfig& model, const TrainOptions& options,
                         Strategy& strategy, const DeviceMesh& mesh);

// The rows' beginnings that it gives the model at once.
BatchShape generation_shape(const QuestionSet& set, const Tokenizer& tokenizer,
                            const DecoderConfig& model, const TrainOptions& options,
                            const DeviceMesh& mesh);

}  // namespace tessera::programs
