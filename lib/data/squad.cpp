#include "tessera/data/squad.h"

#include <algorithm>

#include "tessera/core/error.h"

namespace tessera {
namespace {

struct Tokenised {
  std::vector<Token> tokens;
  size_t context_begin, answer_begin;  // bytes
};

Tokenised tokenise(const SquadQuestion& question, std::string_view context,
                   const std::string& answer, const Tokenizer& tokenizer) {
  Tokenised result;
  std::string text = "Question: " + question.question + "\nContext: ";
  result.context_begin = text.size();
  text += context;
  text += "\nAnswer:";
  result.answer_begin = text.size();
  text += " " + answer;
  result.tokens = tokenizer.encode_with_offsets(text);
  return result;
}

// Start of the character that holds byte `at`.
size_t character_start(std::string_view text, size_t at) {
  while (at > 0 && at < text.size() && (text[at] & 0xC0) == 0x80) --at;
  return at;
}

}  // namespace

std::string squad_prompt(const SquadQuestion& question) {
  return "Question: " + question.question + "\nContext: " + question.context + "\nAnswer:";
}

SquadExamples squad_examples(const std::vector<SquadQuestion>& questions,
                             const Tokenizer& tokenizer, const SquadOptions& options) {
  check(tokenizer.eos_id().has_value(), ErrorCode::kDataLoss, tokenizer.origin(),
        ": no end token; name eos_token in tokenizer_config.json");
  SquadExamples result;
  for (size_t index = 0; index < questions.size(); ++index) {
    const SquadQuestion& question = questions[index];
    if (question.answers.empty() && !options.keep_unanswerable) {
      ++result.skipped_unanswerable;
      continue;
    }
    const std::string answer = question.answers.empty() ? "" : question.answers.front();
    const auto most = static_cast<size_t>(options.max_seq_length - 1);  // one for the end token
    std::string_view context = question.context;
    Tokenised full = tokenise(question, context, answer, tokenizer);
    if (full.tokens.size() > most) ++result.truncated;
    while (full.tokens.size() > most) {
      check(!context.empty(), ErrorCode::kDataLoss, question.where,
            ": question and answer alone take ", full.tokens.size() + 1,
            " tokens; raise --max_seq_length from ", options.max_seq_length);
      // Cut where the excess ends, counted from the context's last token; a cut may change how its
      // end is split, hence the loop, and always takes at least one character.
      size_t excess = full.tokens.size() - most, keep = context.size() - 1;
      for (size_t i = full.tokens.size(); i-- > 0 && excess > 0;) {
        if (full.tokens[i].begin >= full.context_begin + context.size()) continue;
        if (full.tokens[i].begin < full.context_begin) {
          keep = 0;
          break;
        }
        keep = std::min(keep, full.tokens[i].begin - full.context_begin);
        --excess;
      }
      context = context.substr(0, character_start(context, keep));
      full = tokenise(question, context, answer, tokenizer);
    }
    Example example;
    for (const Token& token : full.tokens) {
      example.input_ids.push_back(token.id);
      const bool supervised = options.supervise_all || token.end > full.answer_begin;
      example.labels.push_back(supervised ? token.id : static_cast<int32_t>(kIgnoredLabel));
    }
    example.input_ids.push_back(*tokenizer.eos_id());
    example.labels.push_back(*tokenizer.eos_id());
    result.dataset.examples.push_back(std::move(example));
    result.question_index.push_back(index);
  }
  return result;
}

}  // namespace tessera
