// SPDX-License-Identifier: MIT
#include "lib/run/answers.h"

#include <algorithm>
#include <cmath>

#include "lib/run/output.h"
#include "tessera/core/error.h"
#include "tessera/core/json.h"
#include "tessera/data/row_issues.h"
#include "tessera/generation/generate.h"
#include "tessera/generation/log_probabilities.h"

namespace tessera::programs {
namespace {

struct Candidate {
  std::string text;
  double log_probability = 0;
};

// Tokens that training appends to the prompt of an unanswerable question.
std::vector<int64_t> empty_answer(const Tokenizer& tokenizer) {
  const std::vector<int32_t> asked = tokenizer.encode("Answer:", /*add_special_tokens=*/false),
                             answered = tokenizer.encode("Answer: ", /*add_special_tokens=*/false);
  std::vector<int64_t> ids;
  if (answered.size() > asked.size() && std::equal(asked.begin(), asked.end(), answered.begin())) {
    ids.assign(answered.begin() + static_cast<std::ptrdiff_t>(asked.size()), answered.end());
  }
  ids.push_back(*tokenizer.eos_id());
  return ids;
}

std::vector<std::vector<int64_t>> prompts_of(const QuestionSet& set) {
  std::vector<std::vector<int64_t>> prompts;
  for (const SquadPrompt& prompt : set.prompts) prompts.push_back(prompt.ids);
  return prompts;
}

std::string text_of(const GeneratedRow& row, const Tokenizer& tokenizer) {
  std::vector<int32_t> ids(row.ids.begin(), row.ids.end());
  if (row.finish == FinishReason::kEndToken) ids.pop_back();
  return trimmed(tokenizer.decode(ids, /*skip_special_tokens=*/true));
}

// The candidate answers of each question, one per prompt.
class Candidates {
 public:
  Candidates(const QuestionSet& set, const std::vector<GeneratedRow>& rows,
             const Tokenizer& tokenizer)
      : set_(set), of_question_(set.questions.size()), no_answer_(set.questions.size(), 0) {
    for (size_t i = 0; i < rows.size(); ++i) texts_.push_back(text_of(rows[i], tokenizer));
  }

  void measure(const std::vector<GeneratedRow>& rows, const Tokenizer& tokenizer, int64_t batch,
               Strategy& strategy, const DeviceMesh& mesh) {
    const bool v2 = set_.version == SquadVersion::k2;
    std::vector<size_t> windows(set_.questions.size());
    for (const SquadPrompt& prompt : set_.prompts) ++windows[prompt.question];
    std::vector<Continuation> asked;
    std::vector<size_t> places;  // indices of the prompts to ask
    for (size_t i = 0; i < rows.size(); ++i) {
      if (!v2 && windows[set_.prompts[i].question] == 1) continue;
      asked.push_back({set_.prompts[i].ids, rows[i].ids});
      places.push_back(i);
    }
    const size_t answers = asked.size();
    const std::vector<int64_t> empty = empty_answer(tokenizer);
    for (size_t i = 0; v2 && i < answers; ++i) asked.push_back({asked[i].prompt, empty});
    const std::vector<double> logs = log_probabilities(strategy, mesh, asked, batch);
    std::vector<double> of_prompt(rows.size(), 0);
    for (size_t i = 0; i < answers; ++i) of_prompt[places[i]] = logs[i];
    for (size_t i = 0; i < rows.size(); ++i) add(set_.prompts[i].question, texts_[i], of_prompt[i]);
    if (v2) least_empty({logs.begin() + static_cast<std::ptrdiff_t>(answers), logs.end()});
    for (std::vector<Candidate>& list : of_question_) sort(list);
  }

  // Sorted, best first; empty texts last.
  const std::vector<Candidate>& of(size_t question) const { return of_question_[question]; }
  double no_answer(size_t question) const { return no_answer_[question]; }

 private:
  void add(size_t question, const std::string& text, double log_probability) {
    std::vector<Candidate>& list = of_question_[question];
    const auto known = std::ranges::find(list, text, &Candidate::text);
    if (known == list.end()) {
      list.push_back({text, log_probability});
    } else {
      known->log_probability = std::max(known->log_probability, log_probability);
    }
  }

  void least_empty(const std::vector<double>& logs) {
    std::fill(no_answer_.begin(), no_answer_.end(), 1);
    for (size_t i = 0; i < logs.size(); ++i) {
      double& least = no_answer_[set_.prompts[i].question];
      least = std::min(least, std::exp(logs[i]));
    }
  }

  static void sort(std::vector<Candidate>& list) {
    std::ranges::stable_sort(list, std::greater(), [](const Candidate& c) {
      return std::pair(!c.text.empty(), c.log_probability);
    });
  }

  const QuestionSet& set_;
  std::vector<std::string> texts_;  // by prompt
  std::vector<std::vector<Candidate>> of_question_;
  std::vector<double> no_answer_;
};

void write_candidates(const std::vector<Candidate>& list, JsonWriter& json) {
  double sum = 0;
  for (const Candidate& c : list) sum += std::exp(c.log_probability - list[0].log_probability);
  json.begin_array();
  for (const Candidate& c : list) {
    json.begin_object().field("text", c.text);
    json.field("probability", std::exp(c.log_probability - list[0].log_probability) / sum);
    json.field("log_probability", c.log_probability).end_object();
  }
  json.end_array();
}

}  // namespace

std::string trimmed(const std::string& text) {
  const char* blank = " \t\r\n";
  const size_t begin = text.find_first_not_of(blank);
  return begin == text.npos ? "" : text.substr(begin, text.find_last_not_of(blank) + 1 - begin);
}

GenerationOptions answer_generation(const Tokenizer& tokenizer, const DecoderConfig& model,
                                    const TrainOptions& o) {
  GenerationOptions options{.max_new_tokens = o.output.generation_max_new_tokens,
                            .end_tokens = {*tokenizer.eos_id()},
                            .max_positions = model.max_positions,
                            .vocabulary = model.vocabulary,
                            .batch_size = o.training.per_device_eval_batch_size,
                            .fill_token = model.pad_token.value_or(0)};
  if (model.eos_token && *model.eos_token != *tokenizer.eos_id()) {
    options.end_tokens.push_back(*model.eos_token);
  }
  return options;
}

QuestionSet read_questions(const TrainOptions& o, const Tokenizer& tokenizer) {
  RowIssues issues(o.data.strict_data);
  QuestionSet set{.version = o.data.squad_v2 ? SquadVersion::k2 : SquadVersion::k1,
                  .questions = read_squad(o.data.validation_file, &issues)};
  if (!o.data.validation_slice.empty()) {
    const auto [begin, end] =
        Slice::parse(o.data.validation_slice).within(static_cast<int64_t>(set.questions.size()));
    set.questions = {set.questions.begin() + begin, set.questions.begin() + end};
  }
  if (!o.data.squad_v2) {
    std::erase_if(set.questions, [](const SquadQuestion& q) { return q.answers.empty(); });
  }
  check(!set.questions.empty(), ErrorCode::kDataLoss, o.data.validation_file,
        ": no question has an answer, so --generation has nothing to score; with --squad_v2 the "
        "right answer to such questions is none");
  set.prompts =
      squad_prompts(set.questions, tokenizer,
                    {.max_seq_length = o.data.max_seq_length, .doc_stride = o.data.doc_stride},
                    o.output.generation_max_new_tokens);
  return set;
}

BatchShape batch_shape(const GenerationShape& shape) {
  return {.rows = shape.rows,
          .length = shape.width,
          .head_rows = shape.rows,
          .capacity = shape.capacity};
}

BatchShape generation_shape(const QuestionSet& set, const Tokenizer& tokenizer,
                            const DecoderConfig& model, const TrainOptions& options,
                            const DeviceMesh& mesh) {
  return batch_shape(tessera::generation_shape(mesh, prompts_of(set),
                                               answer_generation(tokenizer, model, options)));
}

Answers answer_questions(const QuestionSet& set, const Tokenizer& tokenizer,
                         const DecoderConfig& model, const TrainOptions& options,
                         Strategy& strategy, const DeviceMesh& mesh) {
  const std::vector<GeneratedRow> rows =
      generate(strategy, mesh, prompts_of(set), answer_generation(tokenizer, model, options));
  Candidates candidates(set, rows, tokenizer);
  candidates.measure(rows, tokenizer, options.training.per_device_eval_batch_size, strategy, mesh);
  JsonWriter texts(/*indent=*/2), nbest(/*indent=*/2), odds(/*indent=*/2);
  texts.begin_object();
  nbest.begin_object();
  odds.begin_object();
  std::vector<SquadPrediction> predictions;
  std::vector<std::vector<std::string>> answers;
  for (size_t i = 0; i < set.questions.size(); ++i) {
    const SquadQuestion& question = set.questions[i];
    const std::vector<Candidate>& list = candidates.of(i);
    const std::string text = list.empty() ? "" : list.front().text;
    texts.field(question.id, text);
    nbest.key(question.id);
    write_candidates(list, nbest);
    odds.field(question.id, candidates.no_answer(i));
    predictions.push_back({text, candidates.no_answer(i)});
    answers.push_back(question.answers);
  }
  const bool v2 = set.version == SquadVersion::k2;
  return {.scores = evaluate_squad(answers, predictions, set.version),
          .predictions = texts.end_object().text(),
          .nbest = nbest.end_object().text(),
          .no_answer = v2 ? odds.end_object().text() : ""};
}

void Answers::write(const std::string& directory) const {
  write_text_file(directory + "/predictions.json", predictions + "\n");
  write_text_file(directory + "/nbest_predictions.json", nbest + "\n");
  write_text_file(directory + "/scores.json", scores.to_json() + "\n");
  if (!no_answer.empty()) write_text_file(directory + "/na_prob.json", no_answer + "\n");
}

}  // namespace tessera::programs
