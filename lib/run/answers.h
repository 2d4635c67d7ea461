// SPDX-License-Identifier: MIT
#pragma once
// --generation: answers to the questions of a SQuAD validation file, and their scores.
#include <string>
#include <vector>

#include "lib/plan/planned_layout.h"
#include "lib/settings/train_flags.h"
#include "tessera/backends/strategy.h"
#include "tessera/comm/device_mesh.h"
#include "tessera/data/squad.h"
#include "tessera/data/squad_scores.h"
#include "tessera/data/tokenizer.h"
#include "tessera/generation/generate.h"
#include "tessera/models/decoder_config.h"

namespace tessera::programs {

std::string trimmed(const std::string& text);  // without surrounding white space

// Options of scored answers: greedy decoding up to the end token.
GenerationOptions answer_generation(const Tokenizer& tokenizer, const DecoderConfig& model,
                                    const TrainOptions& options);
BatchShape batch_shape(const GenerationShape& shape);

// Questions to score, and their prompts: one per question, several where its context is split into
// windows.
struct QuestionSet {
  SquadVersion version = SquadVersion::k1;
  std::vector<SquadQuestion> questions;
  std::vector<SquadPrompt> prompts;
};

// Throws Error(kDataLoss) for a file without questions to score.
QuestionSet read_questions(const TrainOptions& options, const Tokenizer& tokenizer);

struct Answers {
  SquadEvaluation scores;
  // Files in the official scripts' formats: id -> text; id -> candidates, best first; id ->
  // probability of no answer (v2.0).
  std::string predictions, nbest, no_answer;

  void write(const std::string& directory) const;  // throws Error(kDataLoss)
};

// Greedy decoding up to the end token. Over a question's windows, the non-empty answer of greatest
// probability counts (sum of its tokens' log-probabilities, end token included). The no-answer
// probability is the least probability of an empty answer over the windows. Equal on every rank;
// collective.
Answers answer_questions(const QuestionSet& set, const Tokenizer& tokenizer,
                         const DecoderConfig& model, const TrainOptions& options,
                         Strategy& strategy, const DeviceMesh& mesh);

// Shape of the prompt batches that it generates from.
BatchShape generation_shape(const QuestionSet& set, const Tokenizer& tokenizer,
                            const DecoderConfig& model, const TrainOptions& options,
                            const DeviceMesh& mesh);

}  // namespace tessera::programs
