#include <absl/container/flat_hash_set.h>

#include "lib/data/unicode.h"
#include "tessera/core/error.h"
#include "tessera/core/json.h"
#include "tessera/data/squad.h"

namespace tessera {
namespace {

// Byte offset of every character of the context and of its end.
std::vector<size_t> character_offsets(const std::string& text) {
  std::vector<size_t> offsets;
  for (size_t at = 0; at < text.size(); at += code_point_at(text, at).length) offsets.push_back(at);
  offsets.push_back(text.size());
  return offsets;
}

SquadQuestion read_question(const Json& qa, const std::string& context,
                            const std::vector<size_t>& offsets) {
  SquadQuestion question;
  question.id = qa.at("id").as_string();
  question.question = qa.at("question").as_string();
  question.context = context;
  question.where = concat(qa.origin(), ": ", qa.path());
  const bool impossible = qa.get("is_impossible", false);
  const auto answers = qa.find("answers");
  if (!answers && !impossible) qa.fail("has no \"answers\"");
  if (!answers) return question;
  for (const Json& answer : answers->items()) {
    const std::string text = answer.at("text").as_string();
    const Json start = answer.at("answer_start");
    const auto first =
        static_cast<size_t>(start.as_int64(0, static_cast<int64_t>(offsets.size()) - 1));
    if (context.compare(offsets[first], text.size(), text) != 0) {
      start.fail(concat("the answer does not stand at character ", first, " of its context"));
    }
    if (text.empty()) answer.at("text").fail("an answer is empty; a question without one has none");
    question.answers.push_back(text);
  }
  if (impossible && !question.answers.empty()) {
    answers->fail("is_impossible is true, but there are answers");
  }
  return question;
}

}  // namespace

std::vector<SquadQuestion> read_squad(const std::string& path) {
  const Json file = Json::parse_file(path, {.max_bytes = size_t{1} << 30});
  std::vector<SquadQuestion> questions;
  absl::flat_hash_set<std::string> ids;
  for (const Json& article : file.at("data").items()) {
    for (const Json& paragraph : article.at("paragraphs").items()) {
      const std::string context = paragraph.at("context").as_string();
      const std::vector<size_t> offsets = character_offsets(context);
      for (const Json& qa : paragraph.at("qas").items()) {
        questions.push_back(read_question(qa, context, offsets));
        if (!ids.insert(questions.back().id).second) qa.at("id").fail("this id appears twice");
      }
    }
  }
  check(!questions.empty(), ErrorCode::kDataLoss, path, ": no questions");
  return questions;
}

}  // namespace tessera
