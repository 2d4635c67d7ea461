// SPDX-License-Identifier: MIT
#include <random>

#include "lib/core/file.h"
#include "tessera/data/tokenizer.h"
#include "tests/support/messages.hpp"
#include "tests/support/mutate.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/support/test.hpp"
#include "tests/unit/data/sample_paths.hpp"

using namespace tessera;

namespace {

std::string shipped() { return read_file(source_path("examples/data/tokenizer/tokenizer.json")); }

// Error of loading the shipped file with one part replaced.
std::string refusal(const std::string& part, const std::string& by) {
  const TempDir dir;
  std::string text = shipped();
  const size_t at = text.find(part);
  REQUIRE(at != std::string::npos);
  text.replace(at, part.size(), by);
  const std::string path = dir.write("tokenizer.json", text);
  const std::string message = error_of([&] { Tokenizer::load(path); });
  const size_t begin = message.rfind(path + ": ", 0) == 0 ? path.size() + 2 : 0;
  return message.substr(begin, message.find(" (line") - begin);
}

}  // namespace

TEST_CASE("a tokenizer.json that is not understood exactly is refused by name") {
  CHECK(refusal("\"type\": \"BPE\"", "\"type\": \"Unigram\"") ==
        "model.type: only BPE tokenizers are supported, found Unigram");
  CHECK(refusal("\"dropout\": null", "\"dropout\": 0.1") ==
        "model.dropout: is not supported; only BPE without it is");
  CHECK(refusal("\"byte_fallback\": false", "\"byte_fallback\": true") ==
        "model.byte_fallback: is not supported; only BPE without it is");
  CHECK(refusal("\"normalizer\": null", "\"normalizer\": {\"type\": \"NFKC\"}") ==
        "normalizer: expected NFC, Prepend, Replace, Strip or a Sequence of them, found NFKC");
  CHECK(refusal("\"normalizer\": null",
                "\"normalizer\": {\"type\": \"Replace\", \"pattern\": {\"Regex\": \"x\"}, "
                "\"content\": \"\"}") ==
        "normalizer.pattern: only Replace of a String is supported");
  CHECK(refusal("[^(\\\\s|", "[^(\\\\d|") ==
        "pre_tokenizer.pretokenizers[0].pattern.Regex: not one of the patterns of BLOOM, GPT-2, "
        "Llama 3, Qwen and Mistral; others are not run");
  CHECK(refusal("\"behavior\": \"Isolated\"", "\"behavior\": \"Removed\"") ==
        "pre_tokenizer.pretokenizers[0]: only Split with behavior Isolated, not inverted, is "
        "supported");
  CHECK(refusal("\"add_prefix_space\": false", "\"add_prefix_space\": true") ==
        "pre_tokenizer.pretokenizers[1].add_prefix_space: is not supported; only BPE "
        "without it is");
  CHECK(refusal("\"type\": \"Split\"", "\"type\": \"Digits\"") ==
        "pre_tokenizer.pretokenizers[0]: expected Split, found Digits");
}

TEST_CASE("a tokenizer with metaspaces that is not understood exactly is refused by name") {
  const TempDir dir;
  const std::string base = read_file(source_path("tests/unit/data/fixtures/metaspace.json"));
  const auto refused = [&](const std::string& part, const std::string& by) {
    std::string text = base;
    const size_t at = text.find(part);
    REQUIRE(at != std::string::npos);
    text.replace(at, part.size(), by);
    const std::string path = dir.write("t.json", text);
    const std::string message = error_of([&] { Tokenizer::load(path); });
    return message.substr(std::min(message.size(), path.size() + 2),
                          message.find(" (line") - path.size() - 2);
  };
  CHECK(refused("\"byte_fallback\": true", "\"byte_fallback\": false") ==
        "model: metaspaces need byte_fallback true");
  CHECK(refused("\"<0x41>\"", "\"<0x4G>\"") == "model.vocab: \"<0x41>\" is not in the vocabulary");
  CHECK(refused("\"type\": \"Prepend\"", "\"type\": \"NFKC\"") ==
        "normalizer.normalizers[0]: expected NFC, Prepend, Replace, Strip or a Sequence of them, "
        "found NFKC");
  CHECK(refused("\"pre_tokenizer\": null", "\"pre_tokenizer\": {\"type\": \"Digits\"}") ==
        "model.byte_fallback: is not supported; only BPE without it is");
  CHECK(refused("\"type\": \"ByteFallback\"", "\"type\": \"WordPiece\"") ==
        "decoder.decoders[1]: expected ByteFallback, found WordPiece");
  CHECK(refused("\"start\": 1", "\"start\": 2").find("decoder.decoders[3].start: expected") == 0);
}

TEST_CASE("vocabularies and merges that contradict themselves are refused") {
  CHECK(refusal("\"!\": 4", "\"!\": 5").find("the id 5 belongs to another token already") !=
        std::string::npos);
  CHECK(refusal("\"!\": 4", "\"!\": 2000") ==
        "model.vocab: no token has the id 4 although ids reach 2000");
  CHECK(refusal("\"!\": 4", "\"!!!!\": 4") == "model.vocab: \"!\" is not in the vocabulary");
  CHECK(refusal("\"!\": 4", "\"!\": -4") ==
        "model.vocab.!: expected an integer from 0 to 999999, found -4");
  CHECK(refusal("\"!\": 4", "\"!\": 4.0") ==
        "model.vocab.!: expected an integer, found number 4.0");
  CHECK(refusal("\"!\": 4", "\"!\": 4, \"!\": 4").find("appears twice") != std::string::npos);
  CHECK(refusal("\"merges\": [", "\"merges\": [\"a b c\",") ==
        "model.merges[0]: expected two tokens with one space between them");
  CHECK(refusal("\"merges\": [", "\"merges\": [[\"a\"],") ==
        "model.merges[0]: expected two tokens, found 1");
  CHECK(refusal("\"merges\": [", "\"merges\": [\"zq zq\",") ==
        "model.merges[0]: \"zq\" is not in the vocabulary");
  CHECK(refusal("\"content\": \"<s>\"", "\"content\": \"<pad>\"") ==
        "added_tokens[1]: the id 1 differs from the vocabulary's 3");
}

TEST_CASE("missing files and special tokens that do not exist are refused") {
  const TempDir dir;
  CHECK(error_of([&] { Tokenizer::load(dir.path("")); }).find("tokenizer.json: not found") !=
        std::string::npos);
  dir.write("tokenizer.json", shipped());
  CHECK_FALSE(Tokenizer::load(dir.path("")).eos_id());
  // The model's ids are used when the tokenizer's own files have none.
  dir.write("config.json", "{\"eos_token_id\": [2, 3], \"pad_token_id\": 3}");
  dir.write("special_tokens_map.json", "{\"pad_token\": {\"content\": \"<unk>\"}}");
  CHECK(Tokenizer::load(dir.path("")).eos_id() == 2);
  CHECK(Tokenizer::load(dir.path("")).pad_id() == 0);
  dir.write("config.json", "{\"eos_token_id\": 2000}");
  CHECK(error_of([&] {
          Tokenizer::load(dir.path(""));
        }).find("eos_token_id: expected an integer from 0 to 1999, found 2000") !=
        std::string::npos);
  dir.write("tokenizer_config.json", "{\"eos_token\": \"<end>\"}");
  CHECK(error_of([&] { Tokenizer::load(dir.path("")); }).find("eos_token: this token is not in") !=
        std::string::npos);
}

TEST_CASE("mutated tokenizer files load or end in a tessera::Error") {
  const TempDir dir;
  // A small file keeps a round short: the bytes, a few merges.
  std::string seed = shipped();
  const size_t merges = seed.find("\"merges\": [");
  const size_t tenth = [&] {
    size_t at = merges;
    for (int i = 0; i < 40; ++i) at = seed.find(']', at + 1);
    return at;
  }();
  seed = seed.substr(0, tenth + 1) + seed.substr(seed.rfind(']'));
  REQUIRE_NOTHROW(Tokenizer::load(dir.write("seed.json", seed)));
  const std::string alphabet("{}[]\",:\\0129-.tfn \x80\xff");
  std::mt19937_64 random(11);
  size_t loaded = 0;
  for (int round = 0; round < 300; ++round) {
    // Half of the rounds damage the small part before the vocabulary.
    const size_t head = random() % 2 ? seed.find("\"vocab\"") : seed.size();
    const std::string text = mutated(seed.substr(0, head), alphabet, random) + seed.substr(head);
    try {
      const Tokenizer tokenizer = Tokenizer::load(dir.write("t.json", text));
      tokenizer.decode(tokenizer.encode("The river, (नदी)</s> <pad>!"));
      ++loaded;
    } catch (const Error& error) {
      REQUIRE(error.code() == ErrorCode::kDataLoss);
    }
  }
  CHECK(loaded < 300);
}
