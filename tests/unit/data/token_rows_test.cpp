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
  const Dataset causal = read_token_rows(
      dir.write(
          "r.jsonl",
          "{\"input_ids\": [1, 2, 3], \"labels\": [-100, 2, 3], \"attention_mask\": [1, 1, 1]}\r\n"
          "\n{\"input_ids\": [4, 5], \"attention_mask\": [0, 1], \"labels\": [-100, 99]}"),
      kCausal);
  REQUIRE(causal.size() == 2);
  CHECK(causal.examples[0].labels == std::vector<int32_t>{-100, 2, 3});
  CHECK(causal.examples[0].attention_mask.empty());
  CHECK(causal.examples[1].attention_mask == std::vector<uint8_t>{0, 1});
  const Dataset classes =
      read_token_rows(dir.write("c.jsonl", "{\"input_ids\": [7], \"labels\": 2}"), kClasses);
  CHECK(classes.task == Task::kClassification);
  CHECK(classes.num_labels == 3);
  CHECK(classes.examples[0].labels == std::vector<int32_t>{2});
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
  CHECK(refusal("{\"input_ids\":[1,2,3,4,5],\"labels\":[1,2,3,4,5]}") ==
        ":2: input_ids: 5 tokens, more than max_seq_length 4");
  CHECK(refusal("{\"input_ids\":[1],\"label\":[1]}") ==
        ":2: label: unknown key; known are input_ids, attention_mask and labels");
  CHECK(refusal("{\"input_ids\":[1]}") == ":2: has no \"labels\"");
  CHECK(refusal("{\"input_ids\":[1],\"labels\":3}", kClasses) ==
        ":2: labels: expected an integer from 0 to 2, found 3");
  CHECK(refusal("{\"input_ids\":[1],\"labels\":[1]}", kClasses) ==
        ":2: labels: expected an integer, found array");
  CHECK(refusal("{\"input_ids\":[1]").find(":2: line 1, byte ") == 0);
  const TempDir dir;
  const std::string empty = dir.write("e.jsonl", "\n\n");
  CHECK(error_of([&] { read_token_rows(empty, kCausal); }) == empty + ": no rows");
}
