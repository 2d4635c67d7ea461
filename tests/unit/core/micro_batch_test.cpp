#include "tessera/core/micro_batch.h"

#include <ATen/ATen.h>

#include "tests/support/messages.hpp"
#include "tests/support/test.hpp"

using namespace tessera;
using Catch::Matchers::Contains;

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

TEST_CASE("a micro-batch needs as many rows of labels as of inputs") {
  const auto refusal = [](const at::Tensor& inputs, const at::Tensor& labels) {
    return error_of(ErrorCode::kInvalidArgument, [&] { make_micro_batch(inputs, labels); });
  };
  CHECK_THAT(refusal({}, at::rand({2})), Contains("undefined"));
  CHECK_THAT(refusal(at::ones({}), at::rand({2})), Contains("scalar"));
  CHECK_THAT(refusal(at::rand({4, 2}), at::rand({3, 1})), Contains("[4, 2]") && Contains("[3, 1]"));
  CHECK_THAT(refusal(at::rand({4, 2}), at::ones({})), Contains("[4, 2]"));
}

TEST_CASE("targets without a count are refused, ignored labels are not") {
  MicroBatch batch = make_micro_batch(at::arange(4).view({2, 2}), at::arange(4).view({2, 2}));
  const auto refusal = [&] {
    return error_of(ErrorCode::kInvalidArgument, [&] { check_counts(batch); });
  };
  CHECK(refusal() == "no error");
  batch.target_count = 0;
  CHECK_THAT(refusal(), Contains("4 targets") && Contains("make_micro_batch"));
  batch.labels = at::rand({2, 3});
  CHECK_THAT(refusal(), Contains("2 targets"));
  batch.labels = at::full({2, 2}, kIgnoredLabel);
  CHECK(refusal() == "no error");
  batch.labels = at::Tensor();
  CHECK(refusal() == "no error");
  batch.labels = at::empty({0, 2});
  CHECK(refusal() == "no error");
  batch.target_count = -1;
  CHECK_THAT(refusal(), Contains("-1"));
}

TEST_CASE("counts that are set are believed without reading the labels") {
  MicroBatch batch;
  batch.labels = at::empty({2, 2}, at::TensorOptions(at::kLong).device(at::kMeta));
  batch.target_count = 4;
  check_counts(batch);
  batch.target_count = 0;
  CHECK_THROWS(check_counts(batch));
}
