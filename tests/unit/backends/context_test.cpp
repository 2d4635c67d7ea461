// SPDX-License-Identifier: MIT
// Cutting of rows over a context axis, and what strategies refuse on one.
#include <ATen/ATen.h>

#include "backends/common/cut_rows.h"
#include "lib/testing/player.h"
#include "tessera/core/error.h"
#include "tessera/model/target_weights.h"
#include "tests/support/messages.hpp"
#include "tests/support/ranks.hpp"
#include "tests/support/sized.h"
#include "tests/support/test.hpp"
#include "tests/support/toy_models.h"

using namespace tessera;
using namespace tessera::testing;
using tessera::test::contains;

namespace {

constexpr int64_t kVocabulary = 31;

ModelSpec small(const std::string& family, const Sizes& more = {}) {
  return causal(sized(
      more,
      sized(family,
            {.vocabulary = kVocabulary, .hidden = 16, .heads = 4, .layers = 1, .dropout = 0})));
}

MicroBatch tokens(int64_t sequence = 6) {
  return toy_micro_batch({.vocabulary = kVocabulary}, 2, sequence, 5);
}

std::string refusal(
    const MeshExtents& mesh, const ParallelConfig& config, const ModelSpec& model,
    const PlayerScript& script = [](Player&) {}) {
  return error_of(ErrorCode::kInvalidArgument, [&] { play({model, mesh, config}, script); });
}

void step(Player& player) { player.forward_backward({tokens()}); }

at::Tensor numbers(const std::vector<int64_t>& values) { return at::tensor(values, at::kLong); }

// Every rank's part.
std::vector<CutMicroBatch> parts_of(const MicroBatch& whole, int ranks) {
  std::vector<CutMicroBatch> parts(static_cast<size_t>(ranks));
  test::run_ranks(ranks, [&](Communicator& axis) {
    parts[static_cast<size_t>(axis.rank())] = cut_rows(whole, axis, ContextAttention::kAuto);
  });
  return parts;
}

}  // namespace

TEST_CASE("ranks of a context axis get pieces from both ends of a padded row") {
  const at::Tensor ids = at::arange(1, 14).view({1, 13});
  MicroBatch whole = make_micro_batch(ids, ids + 100, {{kTargetWeights, at::ones({1, 13})}});
  whole.attention_mask = at::ones({1, 13}, at::kBool);
  const auto parts = parts_of(whole, 2);
  const MicroBatch &first = parts[0].micro_batch, &second = parts[1].micro_batch;
  CHECK(first.input_ids.equal(numbers({1, 2, 3, 4, 13, 0, 0, 0}).view({1, 8})));
  CHECK(second.input_ids.equal(numbers({5, 6, 7, 8, 9, 10, 11, 12}).view({1, 8})));
  CHECK(first.labels.equal(
      numbers({101, 102, 103, 104, 113, kIgnoredLabel, kIgnoredLabel, kIgnoredLabel})
          .view({1, 8})));
  CHECK(first.get(kTargetWeights).sum().item<double>() == 5);
  CHECK(!first.head_positions.defined());
  CHECK(!first.attention_mask.defined());
  CHECK(first.target_count == 13);  // of the whole rows
  const CutRows& rows = *parts[0].rows;
  CHECK(rows.sequence == 16);
  CHECK(rows.columns.equal(numbers({0, 1, 2, 3, 12, 13, 14, 15})));
  // No position that a model of 13 positions lacks.
  CHECK(rows.positions.equal(numbers({0, 1, 2, 3, 12, 12, 12, 12}).view({1, 8})));
  CHECK(rows.position_count == 13);
  CHECK(rows.attention_mask.sum().item<int64_t>() == 13);
  CHECK(cut_token_count(whole, nullptr) == 13);
  test::run_ranks(2, [&](Communicator& axis) {
    test::require(cut_token_count(whole, &axis) == 8, cut_token_count(whole, &axis));
  });
}

TEST_CASE("packed rows keep their ends where they are cut, and padding is rows of its own") {
  // Two sequences of 6 tokens, of which the second has 3.
  MicroBatch whole = make_micro_batch(at::arange(9).view({1, 9}), at::arange(9).view({1, 9}));
  whole.packed = make_packed_rows({4, 2, 3}, 6);
  const auto parts = parts_of(whole, 2);
  const PackedRows& packed = parts[0].rows->packed;
  CHECK(packed.lengths == std::vector<int64_t>{4, 2, 2, 3, 4, 1});
  CHECK(packed.sequence == 8);
  CHECK(parts[0].rows->position_count == 4);
  CHECK(parts[0].micro_batch.input_ids.equal(numbers({0, 1, 0, 0, 6, 7, 0, 0}).view({2, 4})));
  CHECK(parts[1].micro_batch.input_ids.equal(numbers({2, 3, 4, 5, 8, 0, 0, 0}).view({2, 4})));
  CHECK(parts[1].rows->positions.equal(numbers({2, 3, 0, 1, 2, 0, 1, 2}).view({2, 4})));
  CHECK(!parts[0].micro_batch.packed.defined());
}

TEST_CASE("the head of cut rows runs for as many tokens as that of whole rows, targets first") {
  at::Tensor labels = at::full({2, 8}, kIgnoredLabel, at::kLong);
  labels[0][1] = 5, labels[1][7] = 6;
  MicroBatch whole = make_micro_batch(at::arange(16).view({2, 8}), labels);
  whole.head_positions = numbers({1, 2, 15});
  const auto parts = parts_of(whole, 2);
  // Columns 0, 1, 6, 7 of each row, then 2 to 5, which have no target.
  CHECK(parts[0].micro_batch.head_positions.equal(numbers({1, 7, 0})));
  CHECK(parts[1].micro_batch.head_positions.equal(numbers({0, 1, 2})));
}

TEST_CASE("a packed row's label goes with its pooled token") {
  MicroBatch whole = make_micro_batch(at::arange(16).view({2, 8}), at::arange(16).view({2, 8}));
  whole.packed = make_packed_rows({3, 5, 8}, 8);
  whole.head_positions = numbers({2, 7, 15});
  whole.labels = numbers({7, 8, 9});
  const auto parts = parts_of(whole, 2);
  CHECK(parts[0].micro_batch.labels.equal(numbers({kIgnoredLabel, 8, 9})));
  CHECK(parts[0].micro_batch.head_positions.narrow(0, 1, 2).equal(numbers({3, 7})));
  CHECK(parts[1].micro_batch.labels.equal(numbers({7, kIgnoredLabel, kIgnoredLabel})));
  CHECK(parts[1].micro_batch.head_positions[0].item<int64_t>() == 0);
}

TEST_CASE("inputs that are no rows of tokens are refused on a context axis") {
  const MicroBatch images = make_micro_batch(at::ones({2, 3, 4}), numbers({0, 1}));
  test::run_ranks(2, [&](Communicator& axis) {
    test::require_error(
        ErrorCode::kInvalidArgument, [&] { cut_rows(images, axis, ContextAttention::kAuto); },
        "--context_parallel 1");
  });
}

TEST_CASE("what a context axis does not take yet is refused by name") {
  const MeshExtents two{.context = 2};
  const ParallelConfig ddp{.strategy = "ddp"};
  CHECK_THAT(refusal(two, ddp, toy_language_model()),
             contains("Block::takes_cut_rows") && contains("--context_parallel 1"));
  CHECK_THAT(refusal(two, {.strategy = "single"}, small("llama")),
             contains("data x context axes of 2 ranks"));
  CHECK_THAT(refusal({.data = 2}, {.strategy = "ddp", .context_attention = ContextAttention::kKeys},
                     small("llama")),
             contains("context_attention has no effect") && contains("context axis"));
  CHECK_THAT(
      refusal({.context = 3}, {.strategy = "ddp", .context_attention = ContextAttention::kHeads},
              small("llama"), step),
      contains("4 query heads") && contains("3 ranks") && contains("keys"));
  CHECK_THAT(refusal(two, {.strategy = "ddp", .context_attention = ContextAttention::kKeys},
                     small("gpt2", {.dropout = 0.1}), step),
             contains("keys") && contains("dropout of attention probabilities, here 0.1"));
  CHECK_THAT(refusal(two, ddp, small("llama"),
                     [](Player& player) { player.strategy().predict(std::vector{tokens()}); }),
             contains("predict()") && contains("--context_parallel 1"));
  CHECK_THAT(refusal(two, ddp, small("llama"),
                     [](Player& player) { player.strategy().forward(tokens()); }),
             contains("forward()") && contains("--context_parallel 1"));
}

TEST_CASE("ranks of one context group must be given the same rows") {
  CHECK_THAT(refusal({.context = 2}, {.strategy = "ddp"}, small("llama"),
                     [](Player& player) {
                       MicroBatch batch = tokens();
                       if (player.rank() == 1) batch.labels = batch.labels.flip(0).contiguous();
                       player.forward_backward({batch});
                     }),
             contains("given different micro-batches"));
}
