// SPDX-License-Identifier: MIT
#include "tessera/data/tokenizer.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <map>

#include "lib/core/file.h"
#include "lib/data/lines.h"
#include "tessera/core/json.h"
#include "tests/support/messages.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/support/test.hpp"
#include "tests/unit/data/sample_paths.hpp"

using namespace tessera;

namespace {

// The shipped tokenizer.json with some members replaced, as by scripts/make_tokenizer_fixture.py.
std::string variant_of(const Json& base, const Json& members) {
  JsonWriter out;
  out.begin_object();
  for (const auto& [key, value] : base.members()) {
    if (key != "model") {
      out.field(key, members.contains(key) ? members.at(key) : value);
      continue;
    }
    out.key(key).begin_object();
    for (const auto& [name, part] : value.members()) {
      if (name != "ignore_merges") out.field(name, part);
    }
    out.field("ignore_merges", members.get("ignore_merges", false)).end_object();
  }
  return out.end_object().text();
}

std::vector<int32_t> ids_of(const Json& list) {
  std::vector<int32_t> ids;
  for (const Json& id : list.items()) ids.push_back(static_cast<int32_t>(id.as_int64()));
  return ids;
}

// Tokenizers by variant name, for a base and its variants file.
std::map<std::string, Tokenizer> load_variants(const std::string& base_path,
                                               const std::string& variants_path) {
  const TempDir dir;
  const Json base = Json::parse_file(source_path(base_path));
  std::map<std::string, Tokenizer> tokenizers;
  for (const auto& [name, members] : Json::parse_file(source_path(variants_path)).members()) {
    tokenizers.emplace(name, Tokenizer::load(dir.write(name + ".json", variant_of(base, members))));
  }
  return tokenizers;
}

// leaves_out: text removed by a normalizer has no token.
void check_offsets(const Tokenizer& tokenizer, const std::string& text, bool leaves_out) {
  size_t at = 0;
  for (const Token& token : tokenizer.encode_with_offsets(text, false)) {
    REQUIRE((leaves_out ? token.begin >= at : token.begin == at));
    REQUIRE(token.end >= token.begin);
    at = token.end;
  }
  REQUIRE((leaves_out ? at <= text.size() : at == text.size()));
}

}  // namespace

TEST_CASE("ids and texts equal those of Hugging Face tokenizers on thousands of strings") {
  const auto tokenizers = load_variants("examples/data/tokenizer/tokenizer.json",
                                        "tests/unit/data/fixtures/tokenizer_variants.json");
  std::map<std::string, size_t> compared;
  size_t decoded = 0;
  for_each_json_line(
      source_path("tests/unit/data/fixtures/tokenizer_ids.jsonl"),
      [&](const Json& row, int64_t line) {
        CAPTURE(line);
        const Tokenizer& tokenizer = tokenizers.at(row.at("variant").as_string());
        const std::vector<int32_t> ids = ids_of(row.at("ids"));
        if (row.contains("text")) {
          const std::string text = row.at("text").as_string();
          REQUIRE(tokenizer.encode(text) == ids);
          check_offsets(tokenizer, text, row.at("variant").as_string() == "steps");
          ++compared[row.at("variant").as_string()];
        } else {
          REQUIRE(tokenizer.decode(ids, row.at("skip").as_bool()) == row.at("decoded").as_string());
          ++decoded;
        }
      });
  CHECK(compared["bloom"] >= 2000);
  CHECK(compared["gpt2"] >= 1000);
  CHECK(compared["llama3"] >= 1000);
  CHECK(compared["qwen"] >= 1000);
  CHECK(compared["tekken"] >= 1000);
  CHECK(compared["steps"] >= 1000);
  CHECK(decoded == 600);
}

TEST_CASE("ids and texts of Llama 2, Mistral and CodeLlama tokenizers equal Hugging Face's") {
  const auto tokenizers = load_variants("tests/unit/data/fixtures/metaspace.json",
                                        "tests/unit/data/fixtures/metaspace_variants.json");
  size_t compared = 0, decoded = 0;
  for_each_json_line(
      source_path("tests/unit/data/fixtures/metaspace_ids.jsonl"),
      [&](const Json& row, int64_t line) {
        CAPTURE(line);
        if (!row.contains("text")) {
          const Tokenizer& tokenizer = tokenizers.at(row.at("variant").as_string());
          REQUIRE(tokenizer.decode(ids_of(row.at("ids")), row.at("skip").as_bool()) ==
                  row.at("decoded").as_string());
          ++decoded;
          return;
        }
        const std::string text = row.at("text").as_string();
        for (const auto& [name, ids] : row.at("ids").members()) {
          CAPTURE(name, text);
          REQUIRE(tokenizers.at(name).encode(text) == ids_of(ids));
          check_offsets(tokenizers.at(name), text, name == "composed");
          ++compared;
        }
      });
  CHECK(compared >= 4000);
  CHECK(decoded == 480);
}

TEST_CASE("the shipped tokenizer has BLOOM's special tokens and round-trips text") {
  const Tokenizer tokenizer = Tokenizer::load(sample_tokenizer());
  CHECK(tokenizer.size() == 2000);
  CHECK(tokenizer.unk_id() == 0);
  CHECK(tokenizer.bos_id() == 1);
  CHECK(tokenizer.eos_id() == 2);
  CHECK(tokenizer.pad_id() == 3);
  const std::string text = "Где? नदी 😀\n\ttail  ";
  CHECK(tokenizer.decode(tokenizer.encode(text)) == text);
  CHECK(tokenizer.decode(std::vector<int32_t>{2, 3}, true).empty());
  CHECK(tokenizer.encode("a</s>b") ==
        std::vector<int32_t>{tokenizer.encode("a").at(0), 2, tokenizer.encode("b").at(0)});
  CHECK(error_of([&] { tokenizer.encode("ab\xff"); }).find("byte 2: not valid UTF-8") !=
        std::string::npos);
  CHECK(error_of([&] {
          tokenizer.decode(std::vector<int32_t>{5, 2000});
        }).find("token 1: id 2000 is outside the vocabulary 0..1999") == 0);
}

TEST_CASE("long pieces take O(n log n)") {
  // Every "a" merges with its neighbour, level by level: the worst case for a quadratic merge loop.
  std::string text = read_file(source_path("examples/data/tokenizer/tokenizer.json"));
  const auto insert = [&](const std::string& after, const std::string& what) {
    const size_t at = text.find(after);
    REQUIRE(at != std::string::npos);
    text.insert(at + after.size(), what);
  };
  std::string merges, vocabulary;
  int32_t id = 2000;
  for (size_t length = 1; length <= 64; length *= 2) {
    const std::string half(length, 'a');
    merges += "\"" + half + " " + half + "\",";
    vocabulary += "\"" + half + half + "\":" + std::to_string(id++) + ",";
  }
  text.replace(text.find("\"merges\": ["), 11, "\"merges\": [" + merges);
  insert("\"vocab\": {", vocabulary);
  const TempDir dir;
  const std::string path = dir.write("a.json", text);
  const Tokenizer tokenizer = Tokenizer::load(path);
  const std::string many(100000, 'a');
  const auto ids = tokenizer.encode(many);
  CHECK(ids.size() < 100000 / 128 + 8);
  CHECK(tokenizer.decode(ids) == many);
  // CPU time of this thread, least of three runs: cores may be busy.
  const auto seconds = [] {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
  };
  const auto seconds_for = [&](size_t length) {
    double least = INFINITY;
    for (int i = 0; i < 3; ++i) {
      const double start = seconds();
      tokenizer.encode(std::string_view(many).substr(0, length));
      least = std::min(least, seconds() - start);
    }
    return least;
  };
  CHECK(seconds_for(80000) < 24 * seconds_for(10000));  // 8 when linear, 64 when quadratic
}
