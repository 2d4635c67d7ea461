// SPDX-License-Identifier: MIT
// A SQuAD file, read strictly and with bad rows skipped.
#include "tessera/data/squad.h"
#include "tests/fuzz/readers/reader_fuzz.h"

using namespace tessera;

namespace {

void check_questions(const std::vector<SquadQuestion>& questions) {
  for (const SquadQuestion& question : questions) {
    if (question.answers.empty()) continue;
    const std::string& answer = question.answers.front();
    fuzz::expect(!answer.empty() &&
                     question.context.compare(question.answer_begin, answer.size(), answer) == 0,
                 "an answer that does not stand where it should");
    fuzz::expect(squad_prompt(question).size() > question.question.size(), "no prompt");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string path = fuzz::folder().write("squad.json", fuzz::text_of(data, size));
  const bool strict = fuzz::accepts({ErrorCode::kDataLoss, ErrorCode::kInvalidArgument},
                                    [&] { check_questions(read_squad(path)); });
  const bool lenient = fuzz::accepts({ErrorCode::kDataLoss, ErrorCode::kInvalidArgument}, [&] {
    RowIssues issues;
    check_questions(read_squad(path, &issues));
    issues.text();
  });
  fuzz::expect(lenient || !strict, "skipping bad rows refuses what reading strictly accepts");
  return 0;
}
