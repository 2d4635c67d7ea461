// SPDX-License-Identifier: MIT
#include "tessera/data/text_blocks.h"

#include <algorithm>

#include "tests/support/messages.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/support/test.hpp"
#include "tests/unit/data/sample_paths.hpp"

using namespace tessera;

namespace {

struct TextBlocks : TextCounts {
  std::vector<Example> all;
};

TextBlocks read_text_blocks(const std::string& path, const Tokenizer& tokenizer,
                            const TextBlockOptions& options, RowIssues* issues = nullptr) {
  TextBlocks blocks;
  static_cast<TextCounts&>(blocks) = for_each_text_block(
      path, tokenizer, options, issues, [&](const Example& block) { blocks.all.push_back(block); });
  CHECK(blocks.blocks == static_cast<int64_t>(blocks.all.size()));
  return blocks;
}

std::vector<int32_t> joined(const TextBlocks& blocks) {
  std::vector<int32_t> ids;
  for (const Example& block : blocks.all) {
    ids.insert(ids.end(), block.input_ids.begin(), block.input_ids.end());
  }
  return ids;
}

}  // namespace

TEST_CASE("documents follow one another with end tokens and are cut into equal blocks") {
  const TempDir dir;
  const Tokenizer tokenizer = Tokenizer::load(sample_tokenizer());
  const std::string first = "The Danube rises\nin the Black Forest.", second = "Où? नदी.";
  std::vector<int32_t> expected;
  for (const std::string& text : {first, second, first}) {
    const auto ids = tokenizer.encode(text);
    expected.insert(expected.end(), ids.begin(), ids.end());
    expected.push_back(*tokenizer.eos_id());
  }
  const std::string lines =
      dir.write("d.jsonl",
                "{\"text\": \"The Danube rises\\nin the Black Forest.\", \"id\": 1}\n\n"
                "{\"text\": \"Où? नदी.\"}\n{\"text\": \"The Danube rises\\nin the Black "
                "Forest.\"}\n");
  const size_t size = 5;
  const TextBlocks blocks = read_text_blocks(lines, tokenizer, {.block_size = size});
  CHECK(blocks.documents == 3);
  REQUIRE(blocks.all.size() == expected.size() / size);
  CHECK(blocks.dropped_tokens == static_cast<int64_t>(expected.size() % size));
  for (const Example& block : blocks.all) {
    REQUIRE(block.input_ids.size() == size);
    REQUIRE(block.labels == block.input_ids);
  }
  expected.resize(expected.size() / size * size);
  CHECK(joined(blocks) == expected);

  const auto text =
      read_text_blocks(dir.write("d.txt", "\xEF\xBB\xBF" + second), tokenizer, {.block_size = 1});
  std::vector<int32_t> whole = tokenizer.encode(second);
  whole.push_back(*tokenizer.eos_id());
  CHECK(joined(text) == whole);
  CHECK(text.documents == 1);
}

TEST_CASE("text that cannot be used is refused with its place, empty documents are skipped") {
  const TempDir dir;
  const Tokenizer tokenizer = Tokenizer::load(sample_tokenizer());
  const auto refusal = [&](const std::string& name, const std::string& bytes,
                           const TextBlockOptions& options = {.block_size = 4}) {
    const std::string path = dir.write(name, bytes);
    const std::string message = error_of([&] { read_text_blocks(path, tokenizer, options); });
    return message.rfind(path, 0) == 0 ? message.substr(path.size()) : message;
  };
  CHECK(refusal("a.txt", "caf\xE9 noir") == ": byte 3: not valid UTF-8; convert the file to UTF-8");
  CHECK(refusal("a.txt", " \n") == ": the text is empty");
  CHECK(refusal("a.txt", "a") == ": 2 tokens, less than one block of --max_seq_length 4");
  CHECK(refusal("a.md", "text") == ": expected a file named .txt or .jsonl");
  CHECK(refusal("a.jsonl", "{\"body\": \"x\"}\n") ==
        ":1: no text; the row's keys are body; use --text_column NAME");
  CHECK(refusal("a.jsonl", "{\"text\": \"\"}\n").find(":1: the text is empty") == 0);
  CHECK(refusal("a.jsonl", "{\"text\": 3}\n").find(":1: text: expected a string") == 0);
  CHECK(refusal("a.jsonl", "{\"text\": \"caf\xE9\"}\n").find(":1: ") == 0);

  std::string lines = "{\"text\": \"\"}\n{\"text\": null}\n";
  for (int i = 0; i < 60; ++i) lines += "{\"text\": \"a b c d\"}\n";
  const std::string path = dir.write("e.jsonl", lines);
  RowIssues issues;
  CHECK(read_text_blocks(path, tokenizer, {.block_size = 4}, &issues).documents == 60);
  CHECK(issues.text() == "2 of 62 rows skipped: empty text (2): " + path + ":1, " + path + ":2");
  RowIssues other;
  CHECK(error_of([&] {
          read_text_blocks(path, tokenizer, {.block_size = 4, .text_column = "body"}, &other);
        }).find("no row has body; of the first, the row's keys are text; use --text_column NAME") !=
        std::string::npos);
}

TEST_CASE("a text of several pieces has the blocks of the whole text") {
  const TempDir dir;
  const Tokenizer tokenizer = Tokenizer::load(sample_tokenizer());
  const std::string lines =
      "The Danube rises\nin the Black Forest.\n\nOù? नदी.\n(A) line\n \n 12 ends,\n\tso it is. "
      "\nAnd";
  std::string text;
  while (text.size() < (size_t{9} << 20)) text += lines + std::to_string(text.size()) + "\n";
  std::vector<double> shares;
  const TextBlocks blocks = read_text_blocks(
      dir.write("d.txt", text), tokenizer,
      {.block_size = 1000, .progress = [&](double share) { shares.push_back(share); }});
  CHECK(shares.size() == 3);  // pieces of 4 MiB
  CHECK(std::is_sorted(shares.begin(), shares.end()));
  CHECK(shares.back() == 1.0);
  std::vector<int32_t> whole = tokenizer.encode(text);
  whole.push_back(*tokenizer.eos_id());
  CHECK(blocks.dropped_tokens == static_cast<int64_t>(whole.size() % 1000));
  whole.resize(whole.size() / 1000 * 1000);
  CHECK((joined(blocks) == whole));
  CHECK(blocks.documents == 1);
  text[text.size() - 20] = '\xFF';
  CHECK(error_of([&] {
          read_text_blocks(dir.write("d.txt", text), tokenizer, {});
        }).find(concat("d.txt: byte ", text.size() - 20, ": not valid UTF-8")) !=
        std::string::npos);
}
