// SPDX-License-Identifier: MIT
#include <absl/container/flat_hash_set.h>

#include <optional>

#include "lib/data/foreign_input.h"
#include "lib/data/unicode.h"
#include "tessera/core/error.h"
#include "tessera/core/json.h"
#include "tessera/data/squad.h"

namespace tessera {
namespace {

// Byte offset of every character of the context, and of its end.
std::vector<size_t> character_offsets(const std::string& text) {
  std::vector<size_t> offsets;
  for (size_t at = 0; at < text.size(); at += code_point_at(text, at).length) offsets.push_back(at);
  offsets.push_back(text.size());
  return offsets;
}

// Byte offset of the answer in the context; nullopt if it is not at the given position.
std::optional<size_t> byte_of(const Json& answer, const std::string& text,
                              const std::string& context, const std::vector<size_t>& offsets) {
  const int64_t start = answer.at("answer_start").as_int64();
  if (start < 0 || start >= static_cast<int64_t>(offsets.size())) return std::nullopt;
  const size_t byte = offsets[static_cast<size_t>(start)];
  return context.compare(byte, text.size(), text) == 0 ? std::optional(byte) : std::nullopt;
}

// False if the row is skipped.
bool read_answers(const Json& qa, const std::vector<size_t>& offsets, SquadQuestion& question,
                  RowIssues* issues) {
  const bool impossible = qa.get("is_impossible", false);
  const auto answers = qa.find("answers");
  if (!answers && !impossible) qa.fail("has no \"answers\"");
  if (!answers) return true;
  const auto skip = [&](const std::string& reason, const Json& at, const std::string& detail) {
    if (stops_at_first(issues)) at.fail(detail);
    issues->skip(reason, question.where, detail);
    return false;
  };
  for (const Json& answer : answers->items()) {
    const std::string text = answer.at("text").as_string();
    const auto byte = byte_of(answer, text, question.context, offsets);
    if (!byte) {
      return skip("answer not at its answer_start", answer.at("answer_start"),
                  concat("the answer does not stand at character ",
                         answer.at("answer_start").as_int64(), " of its context"));
    }
    if (text.empty()) {
      return skip("empty answer", answer.at("text"),
                  "an answer is empty; a question without one has none");
    }
    if (question.answers.empty()) question.answer_begin = *byte;
    question.answers.push_back(text);
  }
  if (impossible && !question.answers.empty()) {
    return skip("is_impossible with answers", *answers,
                "is_impossible is true, but there are answers");
  }
  return true;
}

// Rejects a file that is not SQuAD, judged by its first object.
[[noreturn]] void refuse_rows(const std::string& path, const Json& row, const char* what) {
  fail(ErrorCode::kDataLoss, path, ": ", what, ", but SQuAD is one object with \"data\"; ",
       keys_of(row), other_reader(row, DataReader::kSquad));
}

// The object on the first line of a JSON lines file.
std::optional<Json> first_of_lines(const std::string& path) {
  const std::string text = start_of(path, size_t{1} << 20);
  const std::string_view line = std::string_view(text).substr(0, text.find('\n'));
  try {
    Json row = Json::parse(line, {}, path);
    if (row.is_object() && !row.contains("data")) return row;
  } catch (const Error&) {  // not JSON lines
  }
  return std::nullopt;
}

Json parse_squad(const std::string& path) {
  refuse_foreign_file(path);
  refuse_table_or_text(path, DataReader::kSquad);
  try {
    Json file = Json::parse_file(path, {.max_bytes = size_t{1} << 30});
    if (file.is_object() && file.contains("data")) return file;
    const bool list = file.is_array() && file.size() > 0;
    if (list || file.is_object()) {
      refuse_rows(path, list ? file.at(size_t{0}) : file, list ? "an array" : "an object");
    }
    return file;
  } catch (const Error&) {
    if (const auto row = first_of_lines(path)) refuse_rows(path, *row, "JSON lines");
    throw;
  }
}

}  // namespace

std::vector<SquadQuestion> read_squad(const std::string& path, RowIssues* issues) {
  const Json file = parse_squad(path);
  std::vector<SquadQuestion> questions;
  absl::flat_hash_set<std::string> ids;
  int64_t rows = 0;
  for (const Json& article : file.at("data").items()) {
    for (const Json& paragraph : article.at("paragraphs").items()) {
      const std::string context = paragraph.at("context").as_string();
      const std::vector<size_t> offsets = character_offsets(context);
      for (const Json& qa : paragraph.at("qas").items()) {
        ++rows;
        SquadQuestion question;
        question.id = qa.at("id").as_string();
        question.question = qa.at("question").as_string();
        question.context = context;
        question.where = concat(path, ": ", qa.path());
        if (!read_answers(qa, offsets, question, issues)) continue;
        if (ids.insert(question.id).second) {
          questions.push_back(std::move(question));
        } else if (stops_at_first(issues)) {
          qa.at("id").fail("this id appears twice");
        } else {
          issues->skip("id appears twice", question.where);
        }
      }
    }
  }
  check(rows > 0, ErrorCode::kDataLoss, path, ": no questions");
  if (issues) issues->add_rows(rows);
  return questions;
}

}  // namespace tessera
