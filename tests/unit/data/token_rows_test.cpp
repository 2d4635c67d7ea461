// SPDX-License-Identifier: MIT
#include "tessera/data/token_rows.h"

#include "tests/support/messages.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/support/test.hpp"

using namespace tessera;

namespace {

const TokenRowOptions kCausal{.task = Task::kCausal, .vocab_size = 100, .max_seq_length = 4};
const TokenRowOptions kClasses{.task = Task::kClassification, .vocab_size = 100, .num_labels = 3};

std::string refusal(const std::string& line, const TokenRowOptions& options = kCausal) {
  const TempDir dir;
  const std::string path = dir.write("r.jsonl", "{\"input_ids\":[1],\"labels\":[1]}\n" + line);
  const std::string only = dir.write("o.jsonl", "\n" + line);
  const std::string used = options.task == Task::kCausal ? path : only;
  const std::string message = error_of([&] { read_token_rows(used, options); });
  return message.rfind(used, 0) == 0 ? message.substr(used.size(), message.find(" (") - used.size())
                                     : message;
}

}  // namespace

TEST_CASE("rows tokenised elsewhere are taken as they are") {
  const TempDir dir;
  const Dataset causal =
      read_token_rows(
          dir.write(
              "r.jsonl",
              "{\"input_ids\": [1, 2, 3], \"labels\": [-100, 2, 3], \"attention_mask\": [1, 1, "
              "1]}\r\n"
              "\n{\"input_ids\": [4, 5], \"attention_mask\": [0, 1], \"labels\": [-100, 99]}"),
          kCausal)
          .dataset;
  REQUIRE(causal.size() == 2);
  CHECK(causal.examples[0].labels == std::vector<int32_t>{-100, 2, 3});
  CHECK(causal.examples[0].attention_mask.empty());
  CHECK(causal.examples[1].attention_mask == std::vector<uint8_t>{0, 1});
  const Dataset classes =
      read_token_rows(dir.write("c.jsonl", "{\"input_ids\": [7], \"labels\": 2}"), kClasses)
          .dataset;
  CHECK(classes.task == Task::kClassification);
  CHECK(classes.num_labels == 3);
  CHECK(classes.examples[0].labels == std::vector<int32_t>{2});
}

TEST_CASE(
    "without labels a causal row's are its ids; long rows are cut; other keys are named once") {
  const TempDir dir;
  const TokenRows rows = read_token_rows(
      dir.write("r.jsonl",
                "{\"input_ids\": [1, 2, 3], \"attention_mask\": [0, 1, 1], \"token_type_ids\": [0, "
                "0, 0]}\n"
                "{\"input_ids\": [1, 2, 3, 4, 5], \"length\": 5, \"token_type_ids\": []}\n"
                "{\"input_ids\": [1, 2, 3, 4, 5], \"labels\": [-100, -100, 3, 4, 5], "
                "\"attention_mask\": [0, 1, 1, 1, 1]}"),
      kCausal);
  const auto& examples = rows.dataset.examples;
  CHECK(examples[0].labels == std::vector<int32_t>{-100, 2, 3});
  CHECK(examples[1].input_ids == std::vector<int32_t>{1, 2, 3, 4});
  CHECK(examples[1].labels == examples[1].input_ids);
  CHECK(examples[2].labels == std::vector<int32_t>{-100, -100, 3, 4});
  CHECK(examples[2].attention_mask == std::vector<uint8_t>{0, 1, 1, 1});
  CHECK(rows.cut == 2);
  CHECK(rows.ignored_keys == std::vector<std::string>{"length", "token_type_ids"});
}

TEST_CASE("rows without tokens or label are skipped with reason and place") {
  const TempDir dir;
  std::string bytes =
      "{\"input_ids\":[],\"labels\":1}\n{\"input_ids\":[1]}\n{\"input_ids\":[1],\"labels\":null}\n";
  for (int i = 0; i < 57; ++i) bytes += "{\"input_ids\":[1],\"labels\":1}\n";
  const std::string path = dir.write("r.jsonl", bytes);
  RowIssues issues;
  CHECK(read_token_rows(path, kClasses, &issues).dataset.size() == 57);
  CHECK(issues.text() == "3 of 60 rows skipped: no tokens (1): " + path +
                             ":1; no label (2): " + path + ":2, " + path + ":3");
  const std::string worse = dir.write("w.jsonl", "{\"input_ids\":[]}\n" + bytes);
  RowIssues more;
  CHECK(error_of([&] { read_token_rows(worse, kClasses, &more); }).find("more than 5 %") !=
        std::string::npos);
}

TEST_CASE("rows that do not fit are refused with file, line and place") {
  CHECK(refusal("{\"input_ids\":[100],\"labels\":[1]}") ==
        ":2: input_ids[0]: expected an integer from 0 to 99, found 100");
  CHECK(refusal("{\"input_ids\":[1],\"labels\":[-1]}") ==
        ":2: labels[0]: expected an integer from 0 to 99, found -1");
  CHECK(refusal("{\"input_ids\":[1.0],\"labels\":[1]}") ==
        ":2: input_ids[0]: expected an integer, found number 1.0");
  CHECK(refusal("{\"input_ids\":[1,2],\"labels\":[1]}") ==
        ":2: labels: 1 elements, but input_ids has 2");
  CHECK(refusal("{\"input_ids\":[1],\"labels\":[1],\"attention_mask\":[2]}") ==
        ":2: attention_mask[0]: expected an integer from 0 to 1, found 2");
  CHECK(refusal("{\"input_ids\":[],\"labels\":[]}") ==
        ":2: input_ids: a row needs at least one token");
  CHECK(refusal("{\"input_ids\":[1]}", kClasses) == ":2: has no \"labels\"");
  CHECK(refusal("{\"input_ids\":[1],\"labels\":3}", kClasses) ==
        ":2: labels: expected an integer from 0 to 2, found 3");
  CHECK(refusal("{\"input_ids\":[1],\"labels\":[1]}", kClasses) ==
        ":2: labels: expected an integer, found array");
  CHECK(refusal("{\"input_ids\":[1]").find(":2: line 1, byte ") == 0);
  const TempDir dir;
  const std::string empty = dir.write("e.jsonl", "\n\n");
  CHECK(error_of([&] { read_token_rows(empty, kCausal); }) == empty + ": no rows");
}

TEST_CASE("lines of a file of several pieces are whole and counted") {
  const TempDir dir;
  std::string text;
  constexpr int64_t kRows = 150'000;
  for (int64_t i = 0; i < kRows; ++i) text += "{\"input_ids\":[1,7],\"labels\":[1,7]}\n";
  REQUIRE(text.size() > size_t{4} << 20);
  const std::string path = dir.write("long.jsonl", text);
  std::vector<double> shares;
  TokenRowOptions options = kCausal;
  options.progress = [&](double share) { shares.push_back(share); };
  CHECK(read_token_rows(path, options).dataset.size() == kRows);
  CHECK(shares.size() == 2);
  CHECK(shares.back() == 1.0);
  dir.write("long.jsonl", text + "{\"input_ids\":[1]");
  CHECK(error_of([&] { read_token_rows(path, kCausal); }).find(path + ":150001") == 0);
}
