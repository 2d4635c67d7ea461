// SPDX-License-Identifier: MIT
#include "lib/data/token_cache.h"

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "lib/core/hash.h"
#include "tessera/core/error.h"
#include "tests/support/messages.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/support/test.hpp"

using namespace tessera;

namespace {

// Every form of a row in memory.
const std::vector<Example> kCachedRows = {{{5, 6, 7}, {-100, 6, 7}, {}},
                                          {{8}, {8}, {}},
                                          {{1, 2, 3, 4, 5}, {-100, 2, -100, 4, 5}, {1, 1, 1, 0, 1}},
                                          {{9, 9}, {-100, -100}, {}},
                                          {{3, 2}, {3, 2}, {0, 1}},
                                          {{}, {}, {}}};

bool same(const TokenTable& table, const std::vector<Example>& rows) {
  if (table.size() != static_cast<int64_t>(rows.size())) return false;
  for (size_t i = 0; i < rows.size(); ++i) {
    const TokenRow row = table.row(static_cast<int64_t>(i));
    Example read{{row.input_ids.begin(), row.input_ids.end()},
                 {},
                 {row.attention_mask.begin(), row.attention_mask.end()}};
    for (size_t t = 0; t < row.input_ids.size(); ++t) read.labels.push_back(row.label_at(t));
    if (read.input_ids != rows[i].input_ids || read.labels != rows[i].labels ||
        read.attention_mask != rows[i].attention_mask) {
      return false;
    }
  }
  return true;
}

struct Cache {
  TempDir folder;
  int made = 0;
  std::vector<std::string> said;
  TokenCacheEntry entry{.directory = folder.path("cache"), .name = "rows", .key = {1, 2}};

  TokenisedRows rows() {
    return tokenised_rows(
        entry,
        [&](const RowTaker& take) {
          ++made;
          for (const Example& row : kCachedRows) take(row);
          return RowFacts{.num_labels = 7, .notes = "three rows skipped"};
        },
        [&](const std::string& text) { said.push_back(text); });
  }
  std::string file() const { return entry.directory + "/rows-" + entry.key.hex() + ".tokens"; }
};

std::string bytes_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void write(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

}  // namespace

TEST_CASE("rows come back from memory and from the cache as they were") {
  Cache cache;
  const TokenisedRows fresh = cache.rows(), found = cache.rows();
  cache.entry.directory.clear();
  const TokenisedRows memory = cache.rows();
  CHECK(cache.made == 2);
  CHECK(fresh.made);
  CHECK_FALSE(found.made);
  CHECK(memory.made);
  for (const TokenisedRows* rows : {&fresh, &found, &memory}) {
    CHECK(same(rows->rows, kCachedRows));
    CHECK(rows->rows.longest() == 5);
    CHECK(rows->rows.num_labels() == 7);
    CHECK(rows->facts.notes == "three rows skipped");
    CHECK(same(rows->rows.slice(1, 3), {kCachedRows[1], kCachedRows[2]}));
  }
  CHECK(cache.said.empty());
}

TEST_CASE("classes come back, whatever their number") {
  Dataset dataset{Task::kClassification, {{{5, 6}, {3}, {}}, {{7}, {-100}, {1}}}, 4};
  const TokenTable table(dataset);
  CHECK(table.row(0).label == 3);
  CHECK(table.row(1).label == -100);
  CHECK(table.row(1).attention_mask.size() == 1);
  CHECK(table.num_labels() == 4);
  dataset.examples[0].labels = {1, 2};
  CHECK_THROWS_AS(TokenTable(dataset), Error);
}

TEST_CASE("a rows' file that is cut, changed or of another key is said and made again") {
  Cache cache;
  cache.rows();
  const std::string whole = bytes_of(cache.file());
  std::vector<std::string> broken;
  for (const size_t length : {size_t{0}, size_t{7}, size_t{79}, size_t{80}, whole.size() - 1}) {
    broken.push_back(whole.substr(0, length));
  }
  broken.push_back(whole + "x");
  for (size_t at = 0; at < whole.size(); at += 3) {
    broken.push_back(whole);
    broken.back()[at] = static_cast<char>(broken.back()[at] ^ 0x10);
  }
  Cache other;
  other.entry.key = {3, 4};
  other.rows();
  broken.push_back(bytes_of(other.file()));
  for (const std::string& bytes : broken) {
    write(cache.file(), bytes);
    cache.said.clear();
    const int before = cache.made;
    const TokenisedRows rows = cache.rows();
    CHECK(same(rows.rows, kCachedRows));
    CHECK(cache.made == before + 1);
    REQUIRE(cache.said.size() == 1);
    CHECK(cache.said[0].find(cache.file() + ": ") == 0);
    CHECK(bytes_of(cache.file()) == whole);
  }
}

// Offsets in the header, from lib/data/token_file.cpp.
constexpr size_t kWordsAt = 32, kRowsAt = 40, kNotesAt = 48, kPayloadHashAt = 64,
                 kHeaderHashAt = 72, kHeaderBytes = 80, kEntryBytes = 16;

template <typename T>
T value_at(const std::string& bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

template <typename T>
void put(std::string& bytes, size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof(T));
}

// Recomputes the checksums after a modification.
std::string sealed(std::string bytes) {
  put(bytes, kPayloadHashAt, xxh3_64(bytes.data() + kHeaderBytes, bytes.size() - kHeaderBytes));
  put(bytes, kHeaderHashAt, xxh3_64(bytes.data(), kHeaderHashAt));
  return bytes;
}

TEST_CASE("rows of a crafted file that lie outside its tokens are refused and made again") {
  Cache cache;
  cache.rows();
  const std::string whole = bytes_of(cache.file());
  REQUIRE(sealed(whole) == whole);
  const auto rows = value_at<uint64_t>(whole, kRowsAt), words = value_at<uint64_t>(whole, kWordsAt);
  const auto notes = value_at<uint64_t>(whole, kNotesAt);
  REQUIRE(rows == kCachedRows.size());
  const size_t entries = whole.size() - notes - rows * kEntryBytes;
  const auto changed = [&](const std::function<void(std::string&)>& change) {
    std::string bytes = whole;
    change(bytes);
    return sealed(bytes);
  };
  std::vector<std::string> crafted;
  for (const uint64_t begin : {words, words + 1, uint64_t{1} << 40, ~uint64_t{0}, uint64_t{2}}) {
    crafted.push_back(changed([&](std::string& b) { put(b, entries + kEntryBytes, begin); }));
  }
  for (const uint32_t tokens : {uint32_t{4}, uint32_t{1} << 30, 0x7FFFFFFFu, 0xFFFFFFFFu}) {
    crafted.push_back(changed([&](std::string& b) { put(b, entries + 8, tokens); }));
  }
  crafted.push_back(changed([&](std::string& b) { put(b, entries + 12, int32_t{-1}); }));
  // Sizes whose sum equals the file's modulo 2^64.
  crafted.push_back(
      changed([&](std::string& b) { put(b, kWordsAt, words + (uint64_t{1} << 62)); }));
  crafted.push_back(changed([&](std::string& b) { put(b, kRowsAt, rows + (uint64_t{1} << 60)); }));
  crafted.push_back(changed([&](std::string& b) {
    put(b, kWordsAt, words + 4);
    put(b, kNotesAt, notes - kEntryBytes);
  }));
  for (size_t i = 0; i < crafted.size(); ++i) {
    INFO("crafted file " << i);
    write(cache.file(), crafted[i]);
    cache.said.clear();
    const int before = cache.made;
    CHECK(same(cache.rows().rows, kCachedRows));
    CHECK(cache.made == before + 1);
    CHECK(cache.said.size() == 1);
  }
}

TEST_CASE("nothing stays of rows that could not be made, and what a dead process left is no harm") {
  Cache cache;
  const auto fails = [&] {
    tokenised_rows(cache.entry, [&](const RowTaker& take) -> RowFacts {
      take(kCachedRows[0]);
      fail(ErrorCode::kDataLoss, "row 2 is bad");
    });
  };
  CHECK(error_of(ErrorCode::kDataLoss, fails) == "row 2 is bad");
  for (const auto& file : std::filesystem::directory_iterator(cache.entry.directory)) {
    CHECK(file.path().extension() == ".lock");
  }
  write(cache.file() + ".tmp", std::string(10'000, 'x'));
  write(cache.file() + ".rows.tmp", std::string(10'000, 'x'));
  CHECK(same(cache.rows().rows, kCachedRows));
  CHECK_FALSE(std::filesystem::exists(cache.file() + ".tmp"));
}

TEST_CASE("rows larger than a buffer, and of callers that ask at once, are made once") {
  const TempDir folder;
  const TokenCacheEntry entry{.directory = folder.path("a/b"), .name = "n", .key = {5, 6}};
  std::atomic<int> made = 0, right = 0;
  const auto make = [&](const RowTaker& take) {
    ++made;
    for (int32_t i = 0; i < 40'000; ++i) take({{i, i, i, i, i, i, i}, {0, 1, 2, 3, 4, 5, i}, {}});
    return RowFacts{};
  };
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i) {
    callers.emplace_back([&] {
      const TokenTable rows = tokenised_rows(entry, make).rows;
      right += rows.size() == 40'000 && rows.row(39'999).label_at(6) == 39'999 &&
               rows.row(39'999).label_at(5) == 5 && rows.row(20'000).input_ids[3] == 20'000;
    });
  }
  for (std::thread& caller : callers) caller.join();
  CHECK(made == 1);
  CHECK(right == 4);
}

TEST_CASE("a cache that cannot be written is one line with place and remedy") {
  Cache cache;
  cache.entry.directory = cache.folder.write("file", "x") + "/cache";
  const std::string message = error_of(ErrorCode::kDataLoss, [&] { cache.rows(); });
  CHECK(message.find(cache.entry.directory) == 0);
  CHECK(message.find("--cache_dir none") != message.npos);
  CHECK(cache.made == 0);
}
