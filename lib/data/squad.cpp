// SPDX-License-Identifier: MIT
#include "tessera/data/squad.h"

#include <algorithm>

#include "lib/data/in_order.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

struct Range {
  size_t begin, end;  // bytes or tokens of the context
};

struct Tokenised {
  std::vector<Token> tokens;
  std::vector<Range> context;  // bytes covered by each of its tokens
  size_t answer_begin;         // byte offset in the whole text
};

// answer null: the prompt only.
Tokenised tokenise(const SquadQuestion& question, std::string_view context,
                   const std::string* answer, const Tokenizer& tokenizer) {
  std::string text = "Question: " + question.question + "\nContext: ";
  const size_t first = text.size(), last = first + context.size();
  text += context;
  text += "\nAnswer:";
  Tokenised result{{}, {}, text.size()};
  if (answer != nullptr) text += " " + *answer;
  result.tokens = tokenizer.encode_with_offsets(text);
  for (const Token& token : result.tokens) {
    if (token.end <= first || token.begin >= last) continue;
    result.context.push_back(
        {std::max(token.begin, first) - first, std::min(token.end, last) - first});
  }
  return result;
}

bool inside_character(std::string_view text, size_t at) {
  return at < text.size() && (text[at] & 0xC0) == 0x80;
}

// Windows of `room` tokens over `count`; each starts `stride` before the previous end.
std::vector<Range> sliding_windows(size_t count, size_t room, size_t stride) {
  const size_t step = std::max(room - std::min(stride, room / 2), size_t{1});
  std::vector<Range> windows;
  for (size_t begin = 0;; begin += step) {
    windows.push_back({begin, std::min(begin + room, count)});
    if (begin + room >= count) return windows;
  }
}

// `room` tokens around those that cover `bytes`, evenly on both sides where possible.
Range window_around(const std::vector<Range>& tokens, Range bytes, size_t room) {
  size_t first = 0, last = tokens.size();
  while (first < tokens.size() && tokens[first].end <= bytes.begin) ++first;
  while (last > first && tokens[last - 1].begin >= bytes.end) --last;
  const size_t spare = room - std::min(room, last - first);
  const size_t begin = first - std::min(first, spare / 2);
  return {begin, std::min(tokens.size(), std::max(last, begin + room))};
}

// Rows of one question, each of at most `most` tokens without the end token: with the answer, or
// prompts only.
class RowMaker {
 public:
  enum class Part { kPromptAndAnswer, kPrompt };

  RowMaker(const SquadQuestion& question, const Tokenizer& tokenizer, int64_t most, int64_t stride,
           Part part)
      : question_(question),
        context_(question.context),
        answers_(part == Part::kPromptAndAnswer),
        answer_(question.answers.empty() || !answers_ ? "" : question.answers.front()),
        tokenizer_(tokenizer),
        most_(static_cast<size_t>(most)),
        stride_(static_cast<size_t>(stride)),
        whole_(row_of(context_)) {}

  const Tokenised& whole() const { return whole_; }
  bool fits() const { return whole_.tokens.size() <= most_; }

  // Windows of a context that does not fit; empty if not even the answer fits.
  std::vector<Tokenised> rows(int64_t& left_out) const {
    const Range answer{question_.answer_begin, question_.answer_begin + answer_.size()};
    const size_t around = whole_.tokens.size() - whole_.context.size();
    std::vector<Tokenised> rows;
    if (around < most_) {
      const size_t room = most_ - around;
      for (const Range tokens : sliding_windows(whole_.context.size(), room, stride_)) {
        const Range window = bytes_of(tokens);
        const bool holds = window.begin <= answer.begin && answer.end <= window.end;
        if (question_.answers.empty() || !answers_) {
          add(window, {window.begin, window.begin}, rows);
        } else if (holds) {
          add(window, answer, rows);
        } else {
          ++left_out;
        }
      }
      if (rows.empty()) add(bytes_of(window_around(whole_.context, answer, room)), answer, rows);
    } else if (answers_) {
      add(answer, answer, rows);
    }
    return rows;
  }

 private:
  Tokenised row_of(std::string_view context) const {
    return tokenise(question_, context, answers_ ? &answer_ : nullptr, tokenizer_);
  }

  Range bytes_of(Range tokens) const {
    Range bytes{whole_.context[tokens.begin].begin, whole_.context[tokens.end - 1].end};
    while (inside_character(context_, bytes.begin)) ++bytes.begin;
    while (inside_character(context_, bytes.end)) --bytes.end;
    return bytes;
  }

  // A cut may tokenise a window's ends differently. So excess tokens are dropped, first at the end
  // up to the answer, then at the start.
  void add(Range window, Range keep, std::vector<Tokenised>& rows) const {
    window = {std::min(window.begin, keep.begin), std::max(window.end, keep.end)};
    while (true) {
      while (window.begin < keep.begin && context_[window.begin] == ' ') ++window.begin;
      const std::string_view context = context_.substr(window.begin, window.end - window.begin);
      Tokenised row = row_of(context);
      if (row.tokens.size() <= most_) return rows.push_back(std::move(row));
      const size_t excess = std::min(row.tokens.size() - most_, row.context.size());
      if (window.end > keep.end) {
        size_t end = window.begin + row.context[row.context.size() - excess].begin;
        while (inside_character(context_, end)) --end;
        window.end = std::max(end, keep.end);
      } else if (window.begin < keep.begin) {
        size_t begin = window.begin + row.context[excess - 1].end;
        while (inside_character(context_, begin)) ++begin;
        window.begin = std::min(begin, keep.begin);
      } else {
        return;
      }
    }
  }

  const SquadQuestion& question_;
  const std::string_view context_;
  const bool answers_;
  const std::string answer_;
  const Tokenizer& tokenizer_;
  const size_t most_, stride_;
  const Tokenised whole_;
};

Example example_of(const Tokenised& row, int32_t end_token, bool supervise_all) {
  Example example;
  for (const Token& token : row.tokens) {
    example.input_ids.push_back(token.id);
    const bool supervised = supervise_all || token.end > row.answer_begin;
    example.labels.push_back(supervised ? token.id : static_cast<int32_t>(kIgnoredLabel));
  }
  example.input_ids.push_back(end_token);
  example.labels.push_back(end_token);
  return example;
}

}  // namespace

std::string squad_prompt(const SquadQuestion& question) {
  return "Question: " + question.question + "\nContext: " + question.context + "\nAnswer:";
}

std::vector<SquadPrompt> squad_prompts(const std::vector<SquadQuestion>& questions,
                                       const Tokenizer& tokenizer, const SquadOptions& options,
                                       int64_t max_new_tokens) {
  check(max_new_tokens > 0 && max_new_tokens < options.max_seq_length, ErrorCode::kInvalidArgument,
        max_new_tokens, " new tokens leave nothing of ", options.max_seq_length,
        " tokens for a prompt");
  std::vector<SquadPrompt> prompts;
  const auto make = [&](int64_t index) {
    const RowMaker maker(questions[static_cast<size_t>(index)], tokenizer,
                         options.max_seq_length - max_new_tokens, options.doc_stride,
                         RowMaker::Part::kPrompt);
    int64_t left_out = 0;
    return maker.fits() ? std::vector{maker.whole()} : maker.rows(left_out);
  };
  const auto take = [&](int64_t index, std::vector<Tokenised>& rows) {
    for (const Tokenised& row : rows) {
      SquadPrompt& prompt = prompts.emplace_back(SquadPrompt{static_cast<size_t>(index), {}});
      for (const Token& token : row.tokens) prompt.ids.push_back(token.id);
    }
  };
  in_order(static_cast<int64_t>(questions.size()), make, take, /*share_size=*/64, options.progress);
  return prompts;
}

SquadExamples squad_examples(const std::vector<SquadQuestion>& questions,
                             const Tokenizer& tokenizer, const SquadOptions& options,
                             RowIssues* issues) {
  check(tokenizer.eos_id().has_value(), ErrorCode::kDataLoss, tokenizer.origin(),
        ": no end token; name eos_token in tokenizer_config.json");
  SquadExamples result;
  const auto wanted = [&](const SquadQuestion& question) {
    return !question.answers.empty() || options.keep_unanswerable;
  };
  struct Made {
    std::vector<Example> rows;
    bool fits = true;
    int64_t left_out = 0;
  };
  const auto make = [&](int64_t index) {
    Made made;
    const SquadQuestion& question = questions[static_cast<size_t>(index)];
    if (!wanted(question)) return made;
    const auto add = [&](const Tokenised& row) {
      made.rows.push_back(example_of(row, *tokenizer.eos_id(), options.supervise_all));
    };
    const RowMaker maker(question, tokenizer, options.max_seq_length - 1, options.doc_stride,
                         RowMaker::Part::kPromptAndAnswer);
    made.fits = maker.fits();
    if (made.fits) {
      add(maker.whole());
    } else {
      for (const Tokenised& row : maker.rows(made.left_out)) add(row);
    }
    return made;
  };
  const auto take = [&](int64_t index, Made& made) {
    const SquadQuestion& question = questions[static_cast<size_t>(index)];
    if (!wanted(question)) {
      ++result.skipped_unanswerable;
      return;
    }
    result.windows_left_out += made.left_out;
    if (made.rows.empty()) {
      return skip_row(
          issues,
          concat("question and answer longer than --max_seq_length ", options.max_seq_length),
          question.where,
          concat("question and answer alone take more than --max_seq_length ",
                 options.max_seq_length, " tokens; raise it or leave the question out"));
    }
    if (!made.fits) {
      ++result.cut_contexts;
      result.windows += static_cast<int64_t>(made.rows.size());
    }
    for (Example& row : made.rows) {
      result.dataset.examples.push_back(std::move(row));
      result.question_index.push_back(static_cast<size_t>(index));
    }
  };
  in_order(static_cast<int64_t>(questions.size()), make, take, /*share_size=*/64, options.progress);
  return result;
}

}  // namespace tessera
