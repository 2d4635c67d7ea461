// SPDX-License-Identifier: MIT
#include "tessera/core/micro_batch.h"

#include <ATen/ATen.h>

#include "lib/core/rounding.h"
#include "tests/support/messages.hpp"
#include "tests/support/test.hpp"

using namespace tessera;
using tessera::test::contains;

TEST_CASE("a made micro-batch counts its rows, tokens and targets") {
  const at::Tensor ids = at::arange(12).view({3, 4});
  at::Tensor labels = ids + 1;
  labels[1].fill_(kIgnoredLabel);
  labels[2][3] = kIgnoredLabel;
  const MicroBatch tokens = make_micro_batch(ids, labels);
  CHECK(tokens.input_ids.is_same(ids));
  CHECK(tokens.labels.is_same(labels));
  CHECK(tokens.sample_count == 3);
  CHECK(tokens.token_count == 12);
  CHECK(tokens.target_count == 7);

  const MicroBatch classes = make_micro_batch(at::rand({5, 2}), at::arange(5));
  CHECK(classes.sample_count == 5);
  CHECK(classes.token_count == 5);
  CHECK(classes.target_count == 5);
  CHECK(make_micro_batch(at::rand({5, 2}), at::ones({5, 3}, at::kBool)).target_count == 15);
  CHECK(make_micro_batch(at::rand({5, 2}), at::rand({5, 3})).target_count == 5);
  CHECK(make_micro_batch(at::rand({5, 2}), {}).target_count == 5);
  CHECK(make_micro_batch(at::rand({0, 2}), at::rand({0, 3})).target_count == 0);
}

TEST_CASE("a micro-batch carries tensors of the user's own by name") {
  const at::Tensor image = at::rand({3, 2}), weight = at::rand({});
  const MicroBatch batch =
      make_micro_batch(at::rand({3, 4}), at::arange(3), {{"image", image}, {"weight", weight}});
  CHECK(batch.get("image").is_same(image));
  CHECK(batch.sample_count == 3);
  CHECK(batch.target_count == 3);
  const MicroBatch moved = batch.to(at::kMeta);
  CHECK(moved.get("image").is_meta());
  CHECK(moved.get("weight").is_meta());
  CHECK(batch.get("image").is_same(image));
  CHECK_THAT(error_of(ErrorCode::kInvalidArgument, [&] { batch.get("mask"); }),
             contains("no tensor \"mask\" (there is \"image\", \"weight\")"));
}

TEST_CASE("a micro-batch needs as many rows of labels as of inputs") {
  const auto refusal = [](const at::Tensor& inputs, const at::Tensor& labels) {
    return error_of(ErrorCode::kInvalidArgument, [&] { make_micro_batch(inputs, labels); });
  };
  CHECK_THAT(refusal({}, at::rand({2})), contains("undefined"));
  CHECK_THAT(refusal(at::ones({}), at::rand({2})), contains("scalar"));
  CHECK_THAT(refusal(at::rand({4, 2}), at::rand({3, 1})), contains("[4, 2]") && contains("[3, 1]"));
  CHECK_THAT(refusal(at::rand({4, 2}), at::ones({})), contains("[4, 2]"));
}

TEST_CASE("targets without a count are refused, ignored labels are not") {
  MicroBatch batch = make_micro_batch(at::arange(4).view({2, 2}), at::arange(4).view({2, 2}));
  const auto refusal = [&] {
    return error_of(ErrorCode::kInvalidArgument, [&] { check_counts(batch); });
  };
  CHECK(refusal() == "no error");
  batch.target_count = 0;
  CHECK_THAT(refusal(), contains("4 targets") && contains("make_micro_batch"));
  batch.labels = at::rand({2, 3});
  CHECK_THAT(refusal(), contains("2 targets"));
  batch.labels = at::full({2, 2}, kIgnoredLabel);
  CHECK(refusal() == "no error");
  batch.labels = at::Tensor();
  CHECK(refusal() == "no error");
  batch.labels = at::empty({0, 2});
  CHECK(refusal() == "no error");
  batch.target_count = -1;
  CHECK_THAT(refusal(), contains("-1"));
}

TEST_CASE("counts that are set are believed without reading the labels") {
  MicroBatch batch;
  batch.labels = at::empty({2, 2}, at::TensorOptions(at::kLong).device(at::kMeta));
  batch.target_count = 4;
  check_counts(batch);
  batch.target_count = 0;
  CHECK_THROWS(check_counts(batch));
}

TEST_CASE("the head's positions are the supervised ones, filled up with others") {
  MicroBatch batch;
  batch.labels = at::full({2, 50}, kIgnoredLabel);
  batch.labels[0][7] = batch.labels[1][3] = 5;
  const auto chosen = [&](int64_t multiple) {
    batch.head_positions = at::Tensor();
    choose_head_positions(batch, multiple);
    return batch.head_positions;
  };
  CHECK(chosen(1).equal(at::tensor({7, 53}, at::kLong)));
  CHECK(chosen(4).equal(at::tensor({7, 53, 0, 1}, at::kLong)));
  CHECK(chosen(64).size(0) == 64);
  CHECK_FALSE(chosen(100).defined());  // all positions would be chosen
  batch.labels.fill_(kIgnoredLabel);
  CHECK(chosen(1).equal(at::zeros({1}, at::kLong)));  // kernels never get empty inputs
  batch.labels = at::ones({2, 150}, at::kLong);
  CHECK_FALSE(chosen(1).defined());
  batch.labels[0].narrow(0, 0, 2).fill_(kIgnoredLabel);
  CHECK_FALSE(chosen(1).defined());  // too few to be worth it
  batch.labels[0][2] = kIgnoredLabel;
  CHECK(chosen(1).equal(at::arange(3, 300)));
}

TEST_CASE("packed rows know where each begins, in the flattened tokens and in its sequence") {
  const PackedRows rows = make_packed_rows({2, 3, 4, 1}, 5);
  CHECK(rows.longest() == 4);
  CHECK(rows.offsets.equal(at::tensor({0, 2, 5, 9, 10}, at::kInt)));
  CHECK(rows.positions.equal(at::tensor({0, 1, 0, 1, 2, 0, 1, 2, 3, 0}, at::kLong).view({2, 5})));
  CHECK(rows.first_keys.equal(at::tensor({0, 0, 2, 2, 2, 0, 0, 0, 0, 4}, at::kInt).view({2, 5})));
  const auto refusal = [](std::vector<int64_t> lengths) {
    return error_of(ErrorCode::kInvalidArgument, [&] { make_packed_rows(lengths, 5); });
  };
  CHECK_THAT(refusal({4, 2, 4}), contains("a row of 2 tokens at place 4"));
  CHECK_THAT(refusal({5, 0}), contains("a row of 0 tokens"));
  CHECK_THAT(refusal({}), contains("there are none"));
  const PackedRows shorter = make_packed_rows({5, 1, 2}, 5);
  CHECK(shorter.sequence == 5);
  CHECK(shorter.positions.equal(at::tensor({0, 1, 2, 3, 4, 0, 0, 1}, at::kLong).view({1, 8})));
  CHECK(
      shorter.first_keys.equal(at::tensor({0, 0, 0, 0, 0, 0, 1, 1, 3, 4}, at::kInt).view({2, 5})));
  MicroBatch batch;
  batch.packed = rows;
  CHECK(batch.to(at::kMeta).packed.first_keys.is_meta());
}

TEST_CASE("sizes are rounded up by at most an eighth, to few others") {
  for (const auto& [size, rounded] :
       {std::pair(1, 64), {64, 64}, {65, 128}, {1000, 1024}, {2049, 2304}, {4096, 4096}}) {
    CHECK(rounded_size(size) == rounded);
  }
  for (int64_t tokens = 512; tokens < 20'000; tokens += 37) {
    const int64_t rounded = rounded_size(tokens);
    CHECK(rounded >= tokens);
    CHECK(8 * (rounded - tokens) <= tokens);
    CHECK(rounded_size(rounded) == rounded);
    CHECK(rounded_size(rounded + 1) == rounded + rounding_unit(rounded));
  }
}
