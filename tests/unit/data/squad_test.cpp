// SPDX-License-Identifier: MIT
#include "tessera/data/squad.h"

#include <algorithm>
#include <random>

#include "lib/core/file.h"
#include "tests/support/messages.hpp"
#include "tests/support/mutate.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/support/test.hpp"
#include "tests/unit/data/sample_paths.hpp"

using namespace tessera;

namespace {

const std::string kSample = source_path("examples/data/squad_sample.json");

std::string one_question(const std::string& qa,
                         const std::string& context = "Ein Fluß, née Rhône.") {
  return R"({"version": "v2.0", "data": [{"title": "t", "paragraphs": [{"context": ")" + context +
         R"(", "qas": [)" + qa + "]}]}]}";
}

std::string refusal(const std::string& text) {
  const TempDir dir;
  const std::string path = dir.write("s.json", text);
  const std::string message = error_of([&] { read_squad(path); });
  return message.rfind(path + ": ", 0) == 0 ? message.substr(path.size() + 2) : message;
}

std::string supervised_text(const Tokenizer& tokenizer, const Example& example) {
  std::vector<int32_t> ids;
  for (const int32_t label : example.labels) {
    if (label != kIgnoredLabel) ids.push_back(label);
  }
  return tokenizer.decode(ids);
}

}  // namespace

TEST_CASE("the shipped sample has about 200 questions, each answered in its context") {
  const auto questions = read_squad(kSample);
  CHECK(questions.size() == 197);
  const Tokenizer tokenizer = Tokenizer::load(sample_tokenizer());
  double done = 0;
  const SquadExamples examples =
      squad_examples(questions, tokenizer, {.progress = [&](double share) { done = share; }});
  CHECK(done == 1.0);
  CHECK(examples.dataset.size() == 197);
  CHECK(examples.cut_contexts == 0);
  CHECK(examples.skipped_unanswerable == 0);
  for (size_t i = 0; i < questions.size(); ++i) {
    const Example& example = examples.dataset.examples[i];
    // The ids are the whole text's, the labels the answer's and the end token's.
    std::vector<int32_t> whole =
        tokenizer.encode(squad_prompt(questions[i]) + " " + questions[i].answers[0]);
    whole.push_back(*tokenizer.eos_id());
    REQUIRE(example.input_ids == whole);
    REQUIRE(supervised_text(tokenizer, example) == " " + questions[i].answers[0] + "</s>");
  }
}

TEST_CASE("supervising everything labels every token") {
  const Tokenizer tokenizer = Tokenizer::load(sample_tokenizer());
  const auto examples = squad_examples(read_squad(kSample), tokenizer, {.supervise_all = true});
  for (const Example& example : examples.dataset.examples) {
    REQUIRE(example.labels == example.input_ids);
  }
}

TEST_CASE("questions without an answer are skipped with a count, or kept with an empty one") {
  const TempDir dir;
  const std::string path = dir.write(
      "s.json", one_question(R"({"id": "1", "question": "Q?", "answers": [], "is_impossible": true},
                                {"id": "2", "question": "R?", "answers": [{"text": "Rhône", "answer_start": 14},
                                                                          {"text": "née Rhône", "answer_start": 10}]})"));
  const auto questions = read_squad(path);
  CHECK(questions[1].answers == std::vector<std::string>{"Rhône", "née Rhône"});
  const Tokenizer tokenizer = Tokenizer::load(sample_tokenizer());
  const auto skipped = squad_examples(questions, tokenizer, {});
  CHECK(skipped.skipped_unanswerable == 1);
  CHECK(skipped.question_index == std::vector<size_t>{1});
  const auto kept = squad_examples(questions, tokenizer, {.keep_unanswerable = true});
  CHECK(kept.dataset.size() == 2);
  CHECK(supervised_text(tokenizer, kept.dataset.examples[0]) == " </s>");
}

TEST_CASE("malformed SQuAD files are refused with their place") {
  CHECK(
      refusal(
          one_question(
              R"({"id": "1", "question": "Q?", "answers": [{"text": "Rhône", "answer_start": 13}]})"))
          .find("data[0].paragraphs[0].qas[0].answers[0].answer_start: the answer does not stand "
                "at character 13 "
                "of its context") == 0);
  CHECK(refusal(
            one_question(
                R"({"id": "1", "question": "Q?", "answers": [{"text": "R", "answer_start": 99}]})"))
            .find("the answer does not stand at character 99") != std::string::npos);
  CHECK(refusal(one_question(R"({"id": "1", "question": "Q?"})")).find("has no \"answers\"") !=
        std::string::npos);
  CHECK(refusal(one_question(R"({"id": "1", "answers": []})")).find("has no \"question\"") !=
        std::string::npos);
  CHECK(
      refusal(one_question(
                  R"({"id": "1", "question": "Q?", "answers": [{"text": "", "answer_start": 0}]})"))
          .find("an answer is empty") != std::string::npos);
  CHECK(
      refusal(
          one_question(
              R"({"id": "1", "question": "Q?", "answers": []}, {"id": "1", "question": "R?", "answers": []})"))
          .find("qas[1].id: this id appears twice") != std::string::npos);
  CHECK(refusal(R"({"data": {}})").find("data: expected an array, found object") == 0);
  CHECK(refusal(R"({"data": []})") == "no questions");
  CHECK(refusal(one_question("", "bad \xff")).find("not valid UTF-8") != std::string::npos);
}

TEST_CASE("mutated SQuAD files are read or end in a tessera::Error") {
  const TempDir dir;
  const Tokenizer tokenizer = Tokenizer::load(sample_tokenizer());
  const std::string seed = one_question(
      R"({"id": "1", "question": "Q?", "is_impossible": false, "answers": [{"text": "née Rhône", "answer_start": 10}]})");
  const std::string alphabet("{}[]\",:\\u019-.t \x80\xc3\xff");
  const size_t read = count_read(seed, alphabet, 3000, /*seed=*/5, [&](const std::string& text) {
    squad_examples(read_squad(dir.write("s.json", text)), tokenizer, {.max_seq_length = 40});
  });
  CHECK(read > 100);
  CHECK(read < 2900);
}
