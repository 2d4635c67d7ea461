// SPDX-License-Identifier: MIT
#include <map>
#include <set>
#include <sstream>

#include "tessera/data/squad.h"
#include "tests/support/messages.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/support/test.hpp"
#include "tests/unit/data/sample_paths.hpp"

using namespace tessera;

namespace {

// The row's text between "Context: " and the answer.
std::string window_of(const Tokenizer& tokenizer, const SquadQuestion& question,
                      const Example& row) {
  const std::string text = tokenizer.decode(row.input_ids);
  const std::string head = "Question: " + question.question + "\nContext: ";
  const std::string answer = question.answers.empty() ? "" : question.answers.front();
  const std::string tail = "\nAnswer: " + answer + "</s>";
  REQUIRE(text.rfind(head, 0) == 0);
  REQUIRE(text.size() >= head.size() + tail.size());
  REQUIRE(text.substr(text.size() - tail.size()) == tail);
  return text.substr(head.size(), text.size() - head.size() - tail.size());
}

// True if the context contains `window` at a place that covers the annotated answer.
bool holds_answer(const SquadQuestion& question, const std::string& window) {
  const size_t end = question.answer_begin + question.answers.front().size();
  size_t at = question.context.find(window);
  for (; at != std::string::npos; at = question.context.find(window, at + 1)) {
    if (at <= question.answer_begin && end <= at + window.size()) return true;
  }
  return false;
}

SquadQuestion question_about(const std::string& context, const std::string& answer) {
  SquadQuestion question{"1", "What is it?", context, {}, 0, "f.json: q"};
  if (!answer.empty()) {
    question.answers = {answer};
    question.answer_begin = context.find(answer);
  }
  return question;
}

// Numbers as words of several scripts: characters of one to four bytes, without repetition.
std::string long_context(int words) {
  std::string text;
  for (int i = 0; i < words; ++i) {
    const char* kind[] = {"river", "Fluß", "नदी", "河流", "😀"};
    if (i > 0) text += ' ';
    text += kind[i % 5];
    text += std::to_string(i);
  }
  return text;
}

}  // namespace

TEST_CASE("every row of a context that is cut holds its answer and fits") {
  const Tokenizer tokenizer = Tokenizer::load(sample_tokenizer());
  std::vector<SquadQuestion> questions = read_squad(source_path("examples/data/squad_sample.json"));
  for (const char* answer : {"river0", "नदी77", "😀199", "Fluß101 नदी102 河流103 😀104 river105"}) {
    questions.push_back(question_about(long_context(200), answer));
  }
  for (const int64_t length : {64, 100, 128}) {
    for (const int64_t stride : {0, 16, 128}) {
      RowIssues issues;
      const SquadExamples rows = squad_examples(
          questions, tokenizer, {.max_seq_length = length, .doc_stride = stride}, &issues);
      std::set<size_t> answered;
      for (size_t i = 0; i < rows.question_index.size(); ++i) {
        const SquadQuestion& question = questions[rows.question_index[i]];
        const Example& row = rows.dataset.examples[i];
        REQUIRE(static_cast<int64_t>(row.input_ids.size()) <= length);
        REQUIRE(holds_answer(question, window_of(tokenizer, question, row)));
        answered.insert(rows.question_index[i]);
      }
      CHECK(static_cast<int64_t>(answered.size()) + issues.skipped() ==
            static_cast<int64_t>(questions.size()));
      CHECK(issues.skipped() < 5);
      CHECK(rows.cut_contexts >= 4);
      CHECK(rows.windows >= rows.cut_contexts);
    }
  }
}

TEST_CASE("windows overlap by doc_stride, at most by half, and cover the context") {
  const Tokenizer tokenizer = Tokenizer::load(sample_tokenizer());
  const std::string context = long_context(300);
  const std::vector<SquadQuestion> questions{question_about(context, "")};
  for (const int64_t stride : {10, 40, 1000}) {
    const SquadExamples rows =
        squad_examples(questions, tokenizer,
                       {.max_seq_length = 120, .doc_stride = stride, .keep_unanswerable = true});
    CHECK(rows.cut_contexts == 1);
    CHECK(rows.windows == rows.dataset.size());
    size_t covered = 0;
    for (int64_t i = 0; i < rows.dataset.size(); ++i) {
      const std::string window =
          window_of(tokenizer, questions[0], rows.dataset.examples[static_cast<size_t>(i)]);
      const size_t begin = context.find(window);
      REQUIRE(begin != std::string::npos);
      REQUIRE(begin <= covered);
      if (i > 0) {
        const auto shared =
            static_cast<int64_t>(tokenizer.encode(context.substr(begin, covered - begin)).size());
        const int64_t wanted = std::min<int64_t>(stride, 50);
        REQUIRE(shared >= wanted - 6);  // lost at the ends so that the row fits
        REQUIRE(shared <= wanted + 6);
      }
      covered = begin + window.size();
    }
    CHECK(covered == context.size());
  }
}

TEST_CASE("an answer that no window holds gets one around it; one that cannot fit is skipped") {
  const Tokenizer tokenizer = Tokenizer::load(sample_tokenizer());
  const std::string context = long_context(100);
  const std::string across = context.substr(0, context.size() / 2).substr(context.find("river40"));
  const auto rows = [&](const std::string& answer, int64_t length, RowIssues* issues = nullptr) {
    return squad_examples({question_about(context, answer)}, tokenizer,
                          {.max_seq_length = length, .doc_stride = 0}, issues);
  };
  const auto length_of = [&](const std::string& text) {
    return static_cast<int64_t>(tokenizer.encode(text).size());
  };
  const int64_t twice =
      2 * length_of(across) + length_of("Question: What is it?\nContext: \nAnswer:");
  const SquadExamples around = rows(across, twice + 8);
  REQUIRE(around.windows == 1);
  CHECK(around.windows_left_out >= 1);
  CHECK(holds_answer(
      question_about(context, across),
      window_of(tokenizer, question_about(context, across), around.dataset.examples[0])));
  RowIssues issues;
  CHECK(rows(across, twice - 8, &issues).dataset.size() == 0);
  REQUIRE(issues.kinds().size() == 1);
  CHECK(issues.kinds()[0].reason ==
        "question and answer longer than --max_seq_length " + std::to_string(twice - 8));
  CHECK(issues.kinds()[0].places == std::vector<std::string>{"f.json: q"});
  CHECK(error_of([&] {
          rows(across, twice - 8);
        }).find("f.json: q: question and answer alone take more than") == 0);
}

TEST_CASE("bad questions are skipped with reason and place, or stop a strict reader") {
  const TempDir dir;
  const std::string path =
      dir.write("s.json", R"({"data": [{"paragraphs": [{"context": "A née B", "qas": [
    {"id": "1", "question": "Q", "answers": [{"text": "B", "answer_start": 6}]},
    {"id": "2", "question": "Q", "answers": [{"text": "B", "answer_start": 5}]},
    {"id": "3", "question": "Q", "answers": [{"text": "B", "answer_start": -1}]},
    {"id": "4", "question": "Q", "answers": [{"text": "", "answer_start": 0}]},
    {"id": "1", "question": "Q", "answers": [{"text": "B", "answer_start": 6}]},
    {"id": "5", "question": "Q", "is_impossible": true, "answers": [{"text": "B", "answer_start": 6}]}]}]}]})");
  RowIssues issues;
  const auto questions = read_squad(path, &issues);
  REQUIRE(questions.size() == 1);
  CHECK(questions[0].answer_begin == 7);
  CHECK(issues.rows() == 6);
  CHECK(issues.skipped() == 5);
  const std::string at = path + ": data[0].paragraphs[0].qas[";
  CHECK(issues.text() == "5 of 6 rows skipped: answer not at its answer_start (2): " + at + "1], " +
                             at + "2]; empty answer (1): " + at + "3]; id appears twice (1): " +
                             at + "4]; is_impossible with answers (1): " + at + "5]");
  CHECK(error_of([&] {
          issues.check_share("s.json");
        }).find("s.json: more than 5 % of the rows cannot be used: 5 of 6 rows") == 0);
  RowIssues strict(true);
  CHECK(error_of([&] { read_squad(path, &strict); }).find("does not stand at character 5") !=
        std::string::npos);
}

TEST_CASE("five percent of bad rows are borne, more are not; three places are kept") {
  RowIssues issues;
  issues.add_rows(100);
  for (int i = 1; i <= 5; ++i) issues.skip("no label", "f.csv:" + std::to_string(i));
  issues.check_share("f.csv");
  CHECK(issues.text() == "5 of 100 rows skipped: no label (5): f.csv:1, f.csv:2, f.csv:3, ...");
  issues.skip("empty text", "f.csv:9");
  CHECK_FALSE(error_of([&] { issues.check_share("f.csv"); }).empty());
}

TEST_CASE("prompts show every part of a context, whether it holds the answer or not") {
  const Tokenizer tokenizer = Tokenizer::load(sample_tokenizer());
  const std::vector<SquadQuestion> questions{
      question_about("A river.", "river"), question_about(long_context(200), "river0"),
      question_about(long_context(100), ""), question_about(long_context(3), "")};
  const SquadOptions options{.max_seq_length = 90, .doc_stride = 8};
  const std::vector<SquadPrompt> prompts = squad_prompts(questions, tokenizer, options, 10);
  std::map<size_t, std::string> seen;
  for (const SquadPrompt& prompt : prompts) {
    REQUIRE(prompt.ids.size() <= 80);
    const std::string text =
        tokenizer.decode(std::vector<int32_t>(prompt.ids.begin(), prompt.ids.end()));
    const std::string head = "Question: What is it?\nContext: ", tail = "\nAnswer:";
    REQUIRE(text.starts_with(head));
    REQUIRE(text.ends_with(tail));
    seen[prompt.question] +=
        text.substr(head.size(), text.size() - head.size() - tail.size()) + " ";
  }
  for (size_t i = 0; i < questions.size(); ++i) {
    std::istringstream words(questions[i].context);
    for (std::string word; words >> word;) {
      INFO("question " << i << ": " << word);
      CHECK(seen[i].find(word + " ") != std::string::npos);
    }
  }
  CHECK(prompts.front().ids.size() == tokenizer.encode(squad_prompt(questions[0])).size());
  // No space for any context: no prompt. The answer's position is ignored.
  CHECK(squad_prompts({question_about("A river.", "river")}, tokenizer,
                      {.max_seq_length = 8, .doc_stride = 8}, 4)
            .empty());
  CHECK(error_of([&] { squad_prompts(questions, tokenizer, options, 90); }) ==
        "90 new tokens leave nothing of 90 tokens for a prompt");
}
