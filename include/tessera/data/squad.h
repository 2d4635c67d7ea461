// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// SQuAD v1.1 and v2.0 files, and prompts of their questions.
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/data/dataset.h"
#include "tessera/data/row_issues.h"
#include "tessera/data/tokenizer.h"

namespace tessera {

/// One question of a SQuAD file.
struct SquadQuestion {
  std::string id, question, context;  ///< texts in UTF-8, as in the file
  std::vector<std::string> answers;   ///< empty: unanswerable
  size_t answer_begin = 0;            ///< byte offset of the first answer in the context
  std::string where;                  ///< file and place, for messages
};

/// All questions of a file, in order. Throws Error(kInvalidArgument) for another file format (gzip,
/// parquet, a table), and Error(kDataLoss) with file, path and byte for malformed input. Skipped
/// with `issues`, errors without: duplicate ids, empty answers, answers that are not where
/// answer_start says (counted in characters) or contradict is_impossible.
std::vector<SquadQuestion> read_squad(const std::string& path, RowIssues* issues = nullptr);

/// Options of squad_prompts() and squad_examples().
struct SquadOptions {
  int64_t max_seq_length = 512;  ///< most tokens per row
  int64_t doc_stride = 128;      ///< tokens shared by two windows of a context, at most half of one
  bool supervise_all = false;  ///< labels on every token, not only on the answer and the end token
  bool keep_unanswerable = false;  ///< keep with an empty answer (SQuAD v2) instead of skipping
  Progress progress = {};          ///< null: not reported
};

/// Prompt of a question: "Question: {q}\nContext: {c}\nAnswer:".
std::string squad_prompt(const SquadQuestion& question);

/// Prompt for one question, or for a window of its context.
struct SquadPrompt {
  size_t question = 0;       ///< index of the question
  std::vector<int64_t> ids;  ///< the prompt's tokens
};

/// Prompts of all questions, in order, of at most max_seq_length - max_new_tokens tokens each. A
/// longer context is cut into overlapping windows, with or without an answer in them. A question
/// that leaves no space for its context has no prompt.
std::vector<SquadPrompt> squad_prompts(const std::vector<SquadQuestion>& questions,
                                       const Tokenizer& tokenizer, const SquadOptions& options,
                                       int64_t max_new_tokens);

/// Rows and their questions.
struct SquadExamples {
  Dataset dataset;                     ///< in the order of the questions
  std::vector<size_t> question_index;  ///< index of each example's question
  int64_t skipped_unanswerable = 0;    ///< questions without an answer that were skipped
  int64_t cut_contexts = 0;            ///< questions whose context did not fit
  int64_t windows = 0;                 ///< examples made of those contexts
  int64_t windows_left_out = 0;        ///< windows without the answer, which make no example
};

/// Examples `{prompt} {first answer}` with the tokenizer's end token. A longer context is cut into
/// overlapping windows, like run_qa of transformers. Every window with the answer makes an example;
/// if none has it, a window around the answer does. Unanswerable questions: every window. Ids are
/// those of the whole text with the window as its context. Question and answer are never cut: a row
/// that they alone overflow is skipped, or Error(kDataLoss) without `issues`.
SquadExamples squad_examples(const std::vector<SquadQuestion>& questions,
                             const Tokenizer& tokenizer, const SquadOptions& options,
                             RowIssues* issues = nullptr);

}  // namespace tessera
