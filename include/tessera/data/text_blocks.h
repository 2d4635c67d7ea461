// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Text blocks for causal training: documents joined and cut into blocks of equal length.
#include <cstdint>
#include <functional>
#include <string>

#include "tessera/data/dataset.h"
#include "tessera/data/row_issues.h"
#include "tessera/data/tokenizer.h"

namespace tessera {

/// Options of for_each_text_block().
struct TextBlockOptions {
  int64_t block_size = 512;          ///< tokens per block
  std::string text_column = "text";  ///< key of the text in JSON lines
  Progress progress = {};            ///< null: not reported
};

/// Counts of for_each_text_block().
struct TextCounts {
  int64_t blocks = 0;          ///< blocks given to `take`
  int64_t documents = 0;       ///< documents with text
  int64_t dropped_tokens = 0;  ///< tokens after the last whole block
};

/// Passes each block to `take`; its labels are its ids. A .txt file is one document; in a .jsonl
/// file every line is one. Documents, tokenised with the tokenizer's template, are joined with
/// their end tokens and cut into blocks, like run_clm of transformers; the rest is dropped. Throws
/// Error(kInvalidArgument) for another format or extension. Throws Error(kDataLoss) with file and
/// place for text that is not UTF-8, malformed lines, and less text than one block. Documents
/// without text are skipped with `issues`, errors without. Uses all cores and bounded memory; files
/// may be larger than memory. (A .txt file is read as a whole if its tokenizer looks beyond line
/// ends, or if no line begins and ends with words.)
TextCounts for_each_text_block(const std::string& path, const Tokenizer& tokenizer,
                               const TextBlockOptions& options, RowIssues* issues,
                               const std::function<void(const Example&)>& take);

}  // namespace tessera
