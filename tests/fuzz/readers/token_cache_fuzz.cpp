// SPDX-License-Identifier: MIT
// File of a token cache. First byte 0: the bytes are used unchanged. Otherwise the next 32 bytes
// are the header's counts, and magic, key, task and hashes are valid.
#include <algorithm>
#include <cstring>

#include "lib/data/token_file.h"
#include "tests/fuzz/readers/reader_fuzz.h"

using namespace tessera;

namespace {

constexpr size_t kCounts = 32;  // words, rows, bytes of notes, classes

std::string with_hashes(std::string_view input, const TokenCacheEntry& entry) {
  const std::string_view payload = input.substr(kCounts);
  std::string header("tesstok\n");
  const auto add = [&](const auto& number) {
    header.append(reinterpret_cast<const char*>(&number), sizeof(number));
  };
  add(uint32_t{1});
  add(static_cast<uint32_t>(entry.task));
  add(entry.key.high);
  add(entry.key.low);
  header += input.substr(0, kCounts);
  add(xxh3_64(payload.data(), payload.size()));
  add(xxh3_64(header.data(), header.size()));
  return header + std::string(payload);
}

void read_rows(const TokenTable& rows) {
  int64_t sum = 0;
  for (int64_t i = 0; i < rows.size(); ++i) {
    const TokenRow row = rows.row(i);
    for (size_t t = 0; t < row.input_ids.size(); ++t) {
      sum += row.input_ids[t];
      if (rows.task() == Task::kCausal) sum += row.label_at(t);
    }
    for (const uint8_t flag : row.attention_mask) sum += flag;
  }
  fuzz::expect(rows.longest() >= 0 && sum != INT64_MAX, "rows");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text = fuzz::text_of(data, size);
  char kind = 0;
  if (!fuzz::take_kind(text, kind)) return 0;
  TokenCacheEntry entry;
  entry.key = {1, 2};
  entry.task = (kind & 1) != 0 ? Task::kCausal : Task::kClassification;
  const bool as_it_is = kind == 0 || text.size() < kCounts;
  const std::string path =
      fuzz::folder().write("rows.tokens", as_it_is ? std::string(text) : with_hashes(text, entry));
  fuzz::accepts({}, [&] {
    TokenisedRows rows;
    std::string problem;
    const bool opened = open_token_file(path, entry, rows, problem);
    fuzz::expect(opened == problem.empty(), "neither rows nor a problem");
    if (opened) read_rows(rows.rows);
  });
  return 0;
}
