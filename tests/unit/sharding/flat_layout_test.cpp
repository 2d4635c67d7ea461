// SPDX-License-Identifier: MIT
#include "tessera/sharding/flat_layout.h"

#include <ATen/ATen.h>

#include "tests/support/test.hpp"

using namespace tessera;

namespace {

std::vector<Parameter> parameters() {
  return {{"bias", at::zeros({5}), false},
          {"weight", at::zeros({7, 13}), true},
          {"norm", at::zeros({3}), false},
          {"big", at::zeros({40, 30}), true}};
}

}  // namespace

TEST_CASE("a flat layout covers every parameter once, aligned, decaying ones first") {
  for (int shards : {1, 2, 3, 4, 8}) {
    for (auto granularity : {ShardGranularity::kFlat, ShardGranularity::kParameter}) {
      const FlatLayout layout(parameters(), shards, granularity, /*persistence_threshold=*/10);
      CHECK(layout.counted_numel() == 5 + 91 + 3 + 1200);
      int64_t end = 0;
      bool seen_without_decay = false;
      for (const auto& entry : layout.entries()) {
        CHECK(entry.range.offset % FlatLayout::kAlignment == 0);
        CHECK(entry.range.offset >= end);
        end = entry.range.offset + entry.range.numel;
        seen_without_decay |= !entry.weight_decay;
        CHECK(entry.weight_decay == !seen_without_decay);
      }
      CHECK(end <= layout.numel());
      // Segments tile the buffer; shards tile each segment; compact shards tile the rank's own
      // buffer.
      int64_t position = 0, compact = 0;
      for (size_t s = 0; s < layout.segments().size(); ++s) {
        CHECK(layout.segments()[s].offset == position);
        for (int rank = 0; rank < shards; ++rank) {
          CHECK(layout.owned(s, rank).offset == position);
          position += layout.owned(s, rank).numel;
        }
        CHECK(layout.compact(s).offset == compact);
        compact += layout.compact(s).numel;
      }
      CHECK(position == layout.numel());
      CHECK(compact == layout.shard_numel());
      CHECK(layout.shard_numel() % FlatLayout::kAlignment == 0);
    }
  }
}

TEST_CASE("owned runs split exactly where weight decay changes") {
  const FlatLayout layout(parameters(), 3, ShardGranularity::kFlat);
  int64_t with_decay = 0, total = 0;
  for (int rank = 0; rank < 3; ++rank) {
    int64_t position = layout.owned(0, rank).offset;
    bool previous = true;
    const auto runs = layout.owned_runs(0, rank);
    CHECK(runs.size() <= 2);
    for (const auto& [run, decay, copies, rule, small] : runs) {
      CHECK(run.offset == position);
      position += run.numel;
      total += run.numel;
      if (decay) with_decay += run.numel;
      CHECK((previous || !decay));
      previous = decay;
    }
  }
  CHECK(total == layout.numel());
  CHECK(with_decay == 128 + 1216);  // 91 and 1200 elements, each rounded up to the alignment
}

TEST_CASE("parameters of a group lie together, and owned runs split where groups do") {
  std::vector<Parameter> grouped;
  for (int i = 0; i < 6; ++i) {
    grouped.push_back({"p" + std::to_string(i), at::zeros({64})});
    if (i % 2 == 1) grouped.back().rule = {.group = "odd", .lr_factor = 2};
  }
  const FlatLayout layout(grouped, 2, ShardGranularity::kFlat);
  std::string order, runs;
  for (const FlatEntry& entry : layout.entries()) order += entry.name;
  CHECK(order == "p0p2p4p1p3p5");
  for (int rank = 0; rank < 2; ++rank) {
    for (const OwnedRun& run : layout.owned_runs(0, rank)) {
      runs += run.rule.group + ":" + std::to_string(run.range.numel) + " ";
    }
  }
  CHECK(runs == ":192 odd:192 ");
}

TEST_CASE("an optimizer's blocks begin with parameters, and shards are whole blocks") {
  const StateRules rules{.block = 256, .small_numel = 50};
  for (const auto granularity : {ShardGranularity::kFlat, ShardGranularity::kParameter}) {
    for (const int shards : {1, 2, 3, 4}) {
      const FlatLayout layout(parameters(), shards, granularity, 20, rules);
      CHECK(layout.alignment() == 256);
      bool resident = false, small = false;
      for (const FlatEntry& entry : layout.entries()) {
        CHECK(entry.range.offset % 256 == 0);
        CHECK(entry.small == (entry.range.numel < 50));
        const bool here = entry.range.offset >= layout.resident_begin();
        if (here == resident) CHECK((entry.small || !small));  // the last ones
        resident = here;
        small = entry.small;
      }
      for (size_t segment = 0; segment < layout.segments().size(); ++segment) {
        for (int rank = 0; rank < shards; ++rank) {
          const FlatRange owned = layout.owned(segment, rank);
          CHECK(owned.offset % 256 == 0);
          CHECK(owned.numel % 256 == 0);
          for (const OwnedRun& run : layout.owned_runs(segment, rank)) {
            for (const FlatEntry& entry : layout.entries()) {
              const bool in_run = entry.range.offset >= run.range.offset &&
                                  entry.range.offset < run.range.offset + run.range.numel;
              if (in_run) CHECK(entry.small == run.small);
            }
          }
        }
      }
    }
  }
  // Without fixed units nothing moves.
  const FlatLayout plain(parameters(), 2, ShardGranularity::kFlat);
  CHECK(plain.alignment() == 64);
}

TEST_CASE("per-parameter segments keep small parameters resident at the end") {
  const FlatLayout layout(parameters(), 4, ShardGranularity::kParameter, 10);
  REQUIRE(layout.segments().size() == 3);  // weight, big, {bias, norm}
  CHECK(layout.resident_begin() == layout.segments()[2].offset);
  for (const auto& entry : layout.entries()) {
    CHECK((entry.range.offset >= layout.resident_begin()) == (entry.range.numel < 10));
  }
  CHECK(FlatLayout(parameters(), 4, ShardGranularity::kParameter, 0).resident_begin() ==
        FlatLayout(parameters(), 4, ShardGranularity::kParameter, 0).numel());
}
