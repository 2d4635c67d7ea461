// SPDX-License-Identifier: MIT
#include <filesystem>
#include <sstream>

#include "lib/core/file.h"
#include "lib/tools/tokenize/tokenize.h"
#include "tessera/data/token_rows.h"
#include "tests/support/temp_dir.hpp"
#include "tests/support/test.hpp"

using namespace tessera;

namespace {

struct Result {
  int code;
  std::string out, err;
};

const std::string kData = std::string(TESSERA_SOURCE_DIR) + "/examples/data";

Result tokenize(std::vector<std::string> arguments, const std::string& input = "") {
  std::istringstream in(input);
  std::ostringstream out, err;
  arguments.insert(arguments.begin(), {"--tokenizer", kData + "/tokenizer"});
  const int code = programs::run_tokenize(arguments, in, out, err);
  return {code, out.str(), err.str()};
}

}  // namespace

TEST_CASE("one JSON string a line gives one line of ids, and --decode gives the strings back") {
  const std::string texts = "\"Question: Where?\\nनदी\"\n\"\"\n\"a</s>\"\n";
  const Result ids = tokenize({}, texts);
  CHECK(ids.code == 0);
  CHECK(ids.out.find("{\"input_ids\":[]}\n{\"input_ids\":[68,2]}\n") != std::string::npos);
  const Result back = tokenize({"--decode"}, ids.out);
  CHECK(back.code == 0);
  CHECK(back.out == texts);
  CHECK(tokenize({"--decode", "--skip_special_tokens"}, "[68, 2]\n").out == "\"a\"\n");
}

TEST_CASE("standard input is JSON strings where its first line is one, else text") {
  const std::string a = "{\"input_ids\":[68]}\n", none = "{\"input_ids\":[]}\n";
  CHECK(tokenize({}, "a\n\na\n").out == a + none + a);
  CHECK(tokenize({}, "\n\"a\"\n").out == a);
  CHECK(tokenize({}, "\na\n").out == none + a);
  CHECK(tokenize({}, "\"b\" and more\n").code == 0);
  CHECK(tokenize({}, "5\n").code == 0);
  CHECK(tokenize({}, "").code == 0);
  CHECK(tokenize({"--format", "strings"}, "a\n").code == 4);
  CHECK(tokenize({"--format", "text"}, "\"a\"\n").out != tokenize({}, "\"a\"\n").out);
}

TEST_CASE("SQuAD and classification files become rows that --train_ids reads") {
  const TempDir dir;
  const std::string rows = dir.path("rows.jsonl");
  dir.write("rows.jsonl.tmp", "another program's");
  const Result squad = tokenize(
      {"--input", kData + "/squad_sample.json", "--max_seq_length", "128", "--output", rows});
  CHECK(squad.code == 0);
  CHECK(squad.err.find("204 rows, 18 of them windows of 11 contexts too long for one") !=
        std::string::npos);
  CHECK(read_token_rows(rows, {.vocab_size = 2000, .max_seq_length = 128}).dataset.size() == 204);
  CHECK(tokenize({"--input", kData + "/classification_heldout.csv", "--output", rows}).code == 0);
  const Dataset classes =
      read_token_rows(rows, {.task = Task::kClassification, .vocab_size = 2000, .num_labels = 4})
          .dataset;
  CHECK(classes.size() == 100);
  CHECK_FALSE(std::filesystem::exists(rows + ".tessera.tmp"));
  CHECK(read_file(rows + ".tmp") == "another program's");
  const std::string text = dir.write("t.txt", "a\n\n\"b\"\n");
  CHECK(tokenize({"--input", text}).out ==
        "{\"input_ids\":[68]}\n{\"input_ids\":[]}\n{\"input_ids\":[5,69,5]}\n");
}

TEST_CASE(
    "bad usage exits 2 with the nearest name, bad data 4 with its place, and nothing is written") {
  const TempDir dir;
  const Result flag = tokenize({"--decod"});
  CHECK(flag.code == 2);
  CHECK(flag.err.find("--decode") != std::string::npos);
  CHECK(tokenize({"--format", "sqad"}).code == 2);
  CHECK(tokenize({"--format", "squad"}).code == 2);
  CHECK(tokenize({"--input", "x.parquet"}).code == 2);
  CHECK(tokenize({"--max_seq_length", "1"}).code == 2);
  const Result line = tokenize({}, "\"a\"\nb\n");
  CHECK(line.code == 4);
  CHECK(line.err.find("standard input:2: line 1, byte 0: not accepted as JSON") !=
        std::string::npos);
  const Result id = tokenize({"--decode"}, "[1]\n[3, 2000]");
  CHECK(id.code == 4);
  CHECK(id.err.find("standard input:2: [1]: expected an integer from 0 to 1999, found 2000") !=
        std::string::npos);
  CHECK(tokenize({"--input", dir.write("t.txt", "a\xff\n")})
            .err.find("t.txt:1: byte 1: not valid UTF-8") != std::string::npos);
  const std::string bad = dir.write("bad.csv", "text,label\n\"a,b\n");
  const Result table = tokenize({"--input", bad, "--output", dir.path("out.jsonl")});
  CHECK(table.code == 4);
  CHECK(table.err.find("bad.csv:2: a quoted field that starts here never ends") !=
        std::string::npos);
  CHECK_FALSE(std::filesystem::exists(dir.path("out.jsonl")));
  CHECK_FALSE(std::filesystem::exists(dir.path("out.jsonl.tessera.tmp")));
  std::istringstream in;
  std::ostringstream out, err;
  CHECK(programs::run_tokenize({"--tokenizer", dir.path("none")}, in, out, err) == 4);
  CHECK(programs::run_tokenize({}, in, out, err) == 2);
  CHECK(err.str().find("--tokenizer is required") != std::string::npos);
}
