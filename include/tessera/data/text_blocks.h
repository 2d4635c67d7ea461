// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Plain text for causal training: documents joined and cut into blocks of equal length.
#include <cstdint>
#include <functional>
#include <string>

#include "tessera/data/dataset.h"
#include "tessera/data/row_issues.h"
#include "tessera/data/tokenizer.h"

namespace tessera {

/// How documents are cut.
struct TextBlockOptions {
  int64_t block_size = 512;          ///< tokens of a block
  std::string text_column = "text";  ///< of JSON lines
  Progress progress = {};            ///< null: nobody is told
};

/// What for_each_text_block() did.
struct TextCounts {
  int64_t blocks = 0;          ///< blocks given to `take`
  int64_t documents = 0;       ///< documents with text
  int64_t dropped_tokens = 0;  ///< the rest after the last whole block
};

/// Gives `take` one block after the other; their labels are the ids. A .txt file is one document,
/// every line of a .jsonl file another. The tokens of each (with the tokenizer's template) and its
/// end token follow one another and are cut into blocks, as run_clm of transformers groups texts;
/// the rest is dropped. Throws Error(kInvalidArgument) for a file of another format or name, and
/// Error(kDataLoss) with file and place for text that is not UTF-8, malformed lines, and less text
/// than one block. Documents without text are skipped with `issues`, errors without. Works on all
/// cores and with bounded memory: files may be larger than it. (A .txt file whose tokenizer looks
/// beyond the ends of lines, or in which no line begins and ends with words, is read as a whole.)
TextCounts for_each_text_block(const std::string& path, const Tokenizer& tokenizer,
                               const TextBlockOptions& options, RowIssues* issues,
                               const std::function<void(const Example&)>& take);

}  // namespace tessera
