// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// SQuAD v1.1 and v2.0 files and the prompts made of them.
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/data/dataset.h"
#include "tessera/data/row_issues.h"
#include "tessera/data/tokenizer.h"

namespace tessera {

/// One question of a file.
struct SquadQuestion {
  std::string id, question, context;  ///< texts in UTF-8, as in the file
  std::vector<std::string> answers;   ///< empty: the question has none
  size_t answer_begin = 0;            ///< byte of the context where the first one stands
  std::string where;                  ///< file and place, for messages
};

/// Every question of the file in its order. Throws Error(kInvalidArgument) for a file of another
/// format (gzip, parquet, a table), Error(kDataLoss) with file, path and byte for anything
/// malformed. Skipped with `issues`, errors without: duplicate ids, empty answers, answers
/// that are not where answer_start says (counted in characters) or contradict is_impossible.
std::vector<SquadQuestion> read_squad(const std::string& path, RowIssues* issues = nullptr);

/// How questions become rows.
struct SquadOptions {
  int64_t max_seq_length = 512;  ///< tokens of a row at most
  int64_t doc_stride = 128;    ///< tokens that two windows of a context share, at most half of one
  bool supervise_all = false;  ///< labels on every token, not on the answer and the end token only
  bool keep_unanswerable = false;  ///< with an empty answer (SQuAD v2) instead of skipping them
  Progress progress = {};          ///< null: nobody is told
};

/// "Question: {q}\nContext: {c}\nAnswer:" — what a model is given to answer.
std::string squad_prompt(const SquadQuestion& question);

/// What a model is given to answer one question, or a window of its context.
struct SquadPrompt {
  size_t question = 0;       ///< place among the questions
  std::vector<int64_t> ids;  ///< the prompt's tokens
};

/// The prompts of all questions, in their order, each of at most max_seq_length - max_new_tokens
/// tokens: a context that is too long is cut into overlapping windows, whether they hold an answer
/// or not. A question that leaves no room for any of its context has none.
std::vector<SquadPrompt> squad_prompts(const std::vector<SquadQuestion>& questions,
                                       const Tokenizer& tokenizer, const SquadOptions& options,
                                       int64_t max_new_tokens);

/// Rows, and which questions they are of.
struct SquadExamples {
  Dataset dataset;                     ///< in the questions' order
  std::vector<size_t> question_index;  ///< of each example, into the questions
  int64_t skipped_unanswerable = 0;    ///< questions without an answer that were skipped
  int64_t cut_contexts = 0;            ///< questions whose context did not fit
  int64_t windows = 0;                 ///< examples made of them
  int64_t windows_left_out = 0;        ///< without the answer
};

/// `{prompt} {first answer}` and the tokenizer's end token. A context that is too long is cut into
/// overlapping windows, as run_qa of transformers does; an example is made of each that holds the
/// answer, and where none does of one around it (unanswerable questions: of each). The ids are
/// those of the whole text with the window as context. Question and answer are never cut: a row in
/// which they alone do not fit is skipped, or Error(kDataLoss) without `issues`.
SquadExamples squad_examples(const std::vector<SquadQuestion>& questions,
                             const Tokenizer& tokenizer, const SquadOptions& options,
                             RowIssues* issues = nullptr);

}  // namespace tessera
