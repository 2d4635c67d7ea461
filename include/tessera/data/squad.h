#pragma once
// SQuAD v1.1 and v2.0 files and the prompts made of them.
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/data/dataset.h"
#include "tessera/data/tokenizer.h"

namespace tessera {

struct SquadQuestion {
  std::string id, question, context;
  std::vector<std::string> answers;  // empty: the question has none
  std::string where;                 // file and place, for messages
};

// Every question of the file in its order. Throws Error(kDataLoss) with file, path and byte for
// anything malformed, duplicate ids, and answers that are not where answer_start says (counted in
// characters).
std::vector<SquadQuestion> read_squad(const std::string& path);

struct SquadOptions {
  int64_t max_seq_length = 512;
  bool supervise_all = false;  // labels on every token, not on the answer and the end token only
  bool keep_unanswerable = false;  // with an empty answer (SQuAD v2) instead of skipping them
};

// "Question: {q}\nContext: {c}\nAnswer:" — what a model is given to answer.
std::string squad_prompt(const SquadQuestion& question);

struct SquadExamples {
  Dataset dataset;
  std::vector<size_t> question_index;  // of each example, into the questions
  int64_t skipped_unanswerable = 0;
  int64_t truncated = 0;  // examples whose context was shortened at its end
};

// `{prompt} {first answer}` and the tokenizer's end token. A context that is too long is cut so
// that the ids are those of the whole text with the shorter context; question and answer are never
// cut: Error(kDataLoss) when they alone do not fit.
SquadExamples squad_examples(const std::vector<SquadQuestion>& questions,
                             const Tokenizer& tokenizer, const SquadOptions& options);

// The official measures on one prediction: best over the answers after lower-casing and dropping
// ASCII punctuation, articles and extra space. A question without answers wants an empty
// prediction.
bool squad_exact_match(const std::string& prediction, const std::vector<std::string>& answers);
double squad_f1(const std::string& prediction, const std::vector<std::string>& answers);

}  // namespace tessera
