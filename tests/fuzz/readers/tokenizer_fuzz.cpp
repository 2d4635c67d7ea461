// SPDX-License-Identifier: MIT
// tokenizer.json, tokenizer_config.json and a text, separated by NUL: an accepted tokenizer encodes
// any text and decodes its ids.
#include <filesystem>

#include "lib/core/file.h"
#include "tessera/data/tokenizer.h"
#include "tests/fuzz/readers/reader_fuzz.h"
#include "tests/fuzz/readers/small_tokenizer.h"

using namespace tessera;

namespace {

void use(const Tokenizer& tokenizer, const std::string& text) {
  fuzz::expect(tokenizer.size() >= 256, "fewer tokens than bytes");
  for (const auto id : {tokenizer.bos_id(), tokenizer.eos_id(), tokenizer.pad_id()}) {
    fuzz::expect(!id || (*id >= 0 && *id < tokenizer.size()), "a special id out of range");
  }
  if (utf8_valid_prefix(text) != text.size()) {
    fuzz::expect(!fuzz::accepts({ErrorCode::kDataLoss}, [&] { tokenizer.encode(text); }),
                 "a text that is not UTF-8 was taken");
    return;
  }
  const auto tokens = tokenizer.encode_with_offsets(text);
  std::vector<int32_t> ids;
  for (const Token& token : tokens) {
    fuzz::expect(token.begin <= token.end && token.end <= text.size(), "a token out of the text");
    ids.push_back(token.id);
  }
  fuzz::expect(ids == tokenizer.encode(text), "other ids with offsets than without");
  tokenizer.decode(ids);
  tokenizer.decode(ids, true);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto parts = fuzz::parts_of(fuzz::text_of(data, size), 3);
  const std::string path = fuzz::folder().write("tokenizer.json", fuzz::with_bytes(parts[0]));
  const std::string beside = fuzz::folder().path("tokenizer_config.json");
  std::filesystem::remove(beside);
  if (!parts[1].empty()) fuzz::folder().write("tokenizer_config.json", parts[1]);
  fuzz::accepts({ErrorCode::kDataLoss}, [&] {
    const Tokenizer tokenizer = Tokenizer::load(path);
    fuzz::accepts({}, [&] { use(tokenizer, parts[2]); });
  });
  return 0;
}
