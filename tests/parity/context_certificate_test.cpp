// SPDX-License-Identifier: MIT
// The certificate of the context axis: every pair of values of its properties, or with
// TESSERA_WHOLE_MATRIX set every combination, against one rank in fp32. TESSERA_MATRIX_PART=3/16
// takes the third of 16 parts of them.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "tessera/core/error.h"
#include "tests/parity/context_work.h"
#include "tests/parity/ragged_work.h"
#include "tests/support/plain_models.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

const std::vector<std::string> kFamilies{"bloom",   "gpt2",  "llama", "llama of long context",
                                         "mistral", "qwen2", "qwen3"};
// Tokens that fill all pieces, or do not; targets in the first piece only; packed; padded.
const std::vector<std::string> kRows{"whole", "ragged", "few targets", "packed", "padded left"};
const std::vector<std::string> kBeside{"nothing", "data", "stages", "tensor"};
const std::vector<std::string> kBy{"heads", "keys"};

// One index a property.
enum Property { kFamily, kAttention, kRanks, kRow, kWindow, kKeyHeads, kStrategy, kOther, kRepeat };
constexpr std::array<int, 9> kValues{7, 2, 2, 5, 2, 2, 5, 4, 2};
using Combination = std::array<int, kValues.size()>;

struct Certified {
  Combination of;

  const std::string& family() const { return kFamilies[size_t(of[kFamily])]; }
  const std::string& rows() const { return kRows[size_t(of[kRow])]; }
  const std::string& beside() const { return kBeside[size_t(of[kOther])]; }
  bool by_heads() const { return of[kAttention] == 0; }
  int ranks() const { return of[kRanks] == 0 ? 2 : 4; }
  bool rotary() const { return of[kFamily] >= 2; }
  int tensor() const { return beside() == "tensor" ? 2 : 1; }
  // Fewer than the context ranks on each tensor rank, or as many as query heads.
  int64_t key_heads() const { return of[kKeyHeads] == 1 ? tensor() * ranks() / 2 : kHeads; }
  // Whether the properties go together.
  bool meaningful() const {
    if (!rotary() && (of[kWindow] == 1 || of[kKeyHeads] == 1)) return false;
    // Learned positions count columns, which other micro-batches pad on the left otherwise.
    const bool other_batches = beside() == "data" || beside() == "stages";
    if (family() == "gpt2" && rows() == "padded left" && other_batches) return false;
    return !by_heads() || (key_heads() / tensor()) % ranks() == 0;
  }
  std::string name() const {
    return concat(family(), ", ", rows(), ", window ", of[kWindow], ", ", key_heads(),
                  " key heads");
  }

  static constexpr int64_t kHeads = 8;

  DecoderConfig config() const {
    const bool long_context = family() == "llama of long context";
    DecoderConfig config = small(long_context ? "llama" : family(), {.hidden = 32,
                                                                     .heads = kHeads,
                                                                     .inner = 40,
                                                                     .key_heads = key_heads(),
                                                                     .max_positions = 16});
    // Angles that differ within a row: positions matter, and gradients of key biases do.
    config.rotary.theta = 10;
    if (long_context) {
      config.rotary.kind = ops::RotaryOptions::Kind::kLlama3;
      config.rotary.factor = 8;
      config.rotary.original_positions = 8;
    }
    if (of[kWindow] == 1) config.windows = {4, 0};
    return config;
  }

  // The plain version has no scaled frequencies.
  PlainForward plain_of(const DecoderConfig& model) const {
    if (family() == "bloom") return plain_bloom(model);
    if (family() == "gpt2") return plain_gpt2(model);
    return family() == "llama of long context" ? PlainForward{} : plain_llama(model);
  }

  ParityWork work() const {
    const DecoderConfig model = config();
    const PlainForward plain = plain_of(model);
    if (rows() == "packed") {
      return ragged_work(causal(model), plain, kVocabulary, RowsAre::kPacked);
    }
    if (rows() == "padded left") {
      return ragged_work(causal(model), {}, kVocabulary, RowsAre::kPaddedLeft);
    }
    ParityWork work = token_work(
        causal(model),
        {.vocabulary = kVocabulary, .rows = 8, .sequence = rows() == "whole" ? 16 : 13, .steps = 2},
        plain);
    if (rows() == "few targets") {
      for (MicroBatch& batch : work.global_batches) {
        batch.labels.narrow(1, 2, batch.labels.size(1) - 2).fill_(kIgnoredLabel);
        batch = rows_of(batch, 0, batch.input_ids.size(0));
      }
    }
    return work;
  }

  ParityRow row() const {
    ParityRow row = context_row(kShardingStrategies[size_t(of[kStrategy])], 1, ranks(),
                                by_heads() ? ContextAttention::kHeads : ContextAttention::kKeys);
    row.parallel.gradient_checkpointing = of[kRepeat] == 1;
    row.tensor = tensor();
    row.pipeline = beside() == "stages" ? 2 : 1;
    row.accumulation = row.pipeline;
    row.ranks *= beside() == "nothing" ? 1 : 2;
    return row;
  }
};

std::vector<Certified> all_combinations() {
  std::vector<Certified> all;
  Certified next{};
  while (true) {
    if (next.meaningful()) all.push_back(next);
    size_t i = 0;
    while (i < kValues.size() && ++next.of[i] == kValues[i]) next.of[i++] = 0;
    if (i == kValues.size()) return all;
  }
}

using Pair = std::array<int, 4>;  // two properties, their values

std::vector<Pair> pairs_of(const Certified& one) {
  std::vector<Pair> pairs;
  for (int i = 0; i < int(kValues.size()); ++i) {
    for (int j = 0; j < i; ++j) pairs.push_back({i, j, one.of[size_t(i)], one.of[size_t(j)]});
  }
  return pairs;
}

// Few combinations that have every pair of values: each time the one with most new pairs.
std::vector<Certified> all_pairs(const std::vector<Certified>& all) {
  std::set<Pair> missing;
  for (const Certified& one : all) {
    for (const Pair& pair : pairs_of(one)) missing.insert(pair);
  }
  std::vector<Certified> chosen;
  while (!missing.empty()) {
    const auto gain = [&](const Certified& one) {
      return std::ranges::count_if(pairs_of(one),
                                   [&](const Pair& p) { return missing.contains(p); });
    };
    const Certified best = *std::ranges::max_element(all, {}, gain);
    for (const Pair& pair : pairs_of(best)) missing.erase(pair);
    chosen.push_back(best);
  }
  return chosen;
}

// Of one rank; made once for each work.
class References {
 public:
  const RankRecord& of(const Certified& one, const ParityWork& work) {
    const auto [found, is_new] = made_.try_emplace(one.name());
    if (is_new) found->second = work.forward ? reference(work) : single_run(work);
    return found->second;
  }

 private:
  std::map<std::string, RankRecord> made_;
};

// Those of a part, which have few references in common with other parts. said: "I/N".
std::vector<Certified> part_of(const std::vector<Certified>& chosen, const char* said) {
  if (said == nullptr) return chosen;
  int part = 0, parts = 0;
  const bool read = std::sscanf(said, "%d/%d", &part, &parts) == 2;
  check(read && part >= 1 && part <= parts, ErrorCode::kInvalidArgument,
        "TESSERA_MATRIX_PART=", said, ": expected I/N with 1 <= I <= N, as in 3/16");
  std::map<std::string, size_t> works;
  for (const Certified& one : chosen) works.try_emplace(one.name(), works.size());
  std::vector<Certified> own;
  std::ranges::copy_if(chosen, std::back_inserter(own), [&](const Certified& one) {
    return works.at(one.name()) % size_t(parts) == size_t(part - 1);
  });
  return own;
}

// Empty where all ranks' numbers are those of one rank; else what differs, or the error.
std::string failure_of(const Certified& one, References& references) {
  try {
    const ParityWork work = one.work();
    const RankRecord& expected = references.of(one, work);
    // Without a plain version the reference has roundings of its own.
    const double tolerance = work.forward ? 1e-5 : 2e-5;
    const auto results = run_row(one.row(), work);
    for (const RankRecord& result : results) {
      if (std::string found = difference(result, expected, tolerance); !found.empty()) return found;
      if (!same_numbers(result, results.front())) return "ranks report different numbers";
    }
    return {};
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace

TEST_CASE("certificate of the context axis: every pair of its properties") {
  const std::vector<Certified> all = all_combinations();
  const bool whole = std::getenv("TESSERA_WHOLE_MATRIX") != nullptr;
  const std::vector<Certified> chosen =
      part_of(whole ? all : all_pairs(all), std::getenv("TESSERA_MATRIX_PART"));
  References references;
  size_t held = 0;
  for (const Certified& one : chosen) {
    INFO(one.name() << ", beside " << one.beside() << ": " << one.row().name());
    const std::string failure = failure_of(one, references);
    CHECK(failure == "");
    held += failure.empty() ? 1 : 0;
  }
  std::cout << held << " of " << chosen.size() << " chosen combinations of the context axis, of "
            << all.size() << ", equal one rank\n";
}

TEST_CASE("certificate of the context axis: its parts make up the whole") {
  const std::vector<Certified> all = all_pairs(all_combinations());
  size_t count = 0;
  for (const char* part : {"1/3", "2/3", "3/3"}) {
    const size_t own = part_of(all, part).size();
    CHECK(own > 0);
    count += own;
  }
  CHECK(count == all.size());
  CHECK_THROWS(part_of(all, "4/3"));
}
