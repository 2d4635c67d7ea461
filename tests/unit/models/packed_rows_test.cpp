// SPDX-License-Identifier: MIT
// Packed rows and head positions change no number of any model.
#include <ATen/ATen.h>

#include "tessera/core/error.h"
#include "tessera/model/whole_model.h"
#include "tessera/models/language_model.h"
#include "tests/support/messages.hpp"
#include "tests/support/sized.h"
#include "tests/support/test.hpp"

using namespace tessera;
using namespace tessera::testing;

namespace {

const std::vector<std::string> kPresets{"bloom-tiny", "gpt2-tiny", "llama-tiny"};
const std::vector<int64_t> kLengths{3, 1, 5, 4, 2, 3};  // in sequences of 9
constexpr int64_t kVocabulary = 50;

LanguageModel tiny(const std::string& preset) {
  LanguageModel model = LanguageModel::preset(preset);
  model.config().vocabulary = kVocabulary;
  model.config().pad_token = 0;
  return model;
}

struct Sums {
  at::Tensor output, gradient;  // concatenated gradients of all parameters
};

// Output and gradients, summed over several micro-batches.
Sums run(const ModelSpec& spec, const std::vector<MicroBatch>& batches) {
  WholeModel model(spec, {.seed = 3});
  Sums sums;
  for (const MicroBatch& batch : batches) {
    const at::Tensor output = model.forward(batch);
    output[0].backward();
    sums.output = sums.output.defined() ? sums.output + output.detach() : output.detach();
  }
  std::vector<at::Tensor> gradients;
  for (const auto& p : model.parameters()) gradients.push_back(p.tensor.grad().flatten());
  sums.gradient = at::cat(gradients);
  return sums;
}

void compare(const Sums& actual, const Sums& expected) {
  CHECK(at::allclose(actual.output, expected.output, 1e-6));
  const double error = (actual.gradient - expected.gradient).norm().item<double>();
  CHECK(error <= 2e-6 * expected.gradient.norm().item<double>());
}

MicroBatch packed_batch() {
  at::manual_seed(4);
  MicroBatch batch;
  batch.input_ids = at::randint(1, kVocabulary, {2, 9}, at::kLong);
  batch.labels = at::randint(kVocabulary, {2, 9}, at::kLong);
  batch.labels.masked_fill_(at::rand({2, 9}).lt(0.5), kIgnoredLabel);
  batch.packed = make_packed_rows(kLengths, 9);
  return batch;
}

std::vector<MicroBatch> rows_alone(const MicroBatch& packed, bool classes) {
  std::vector<MicroBatch> rows;
  const auto ids = packed.input_ids.flatten().split_with_sizes(kLengths);
  for (size_t i = 0; i < ids.size(); ++i) {
    MicroBatch row;
    row.input_ids = ids[i].unsqueeze(0);
    row.labels = classes ? packed.labels.narrow(0, static_cast<int64_t>(i), 1)
                         : packed.labels.flatten().split_with_sizes(kLengths)[i].unsqueeze(0);
    rows.push_back(row);
  }
  return rows;
}

}  // namespace

TEST_CASE("packed causal rows have the loss and the gradients that each has alone") {
  for (const std::string& preset : kPresets) {
    INFO(preset);
    const ModelSpec spec = tiny(preset).make_causal();
    MicroBatch batch = packed_batch();
    const Sums alone = run(spec, rows_alone(batch, false));
    compare(run(spec, {batch}), alone);
    choose_head_positions(batch, 1);
    REQUIRE(batch.head_positions.defined());
    compare(run(spec, {batch}), alone);
  }
}

TEST_CASE("packed rows are classified where each would be alone") {
  for (const std::string& preset : kPresets) {
    INFO(preset);
    const ModelSpec spec = tiny(preset).make_classifier(3);
    MicroBatch batch = packed_batch();
    batch.labels = at::tensor({0, 1, 2, -100, 2, 0}, at::kLong);
    batch.head_positions = batch.packed.offsets.narrow(0, 1, 6).to(at::kLong) - 1;
    compare(run(spec, {batch}), run(spec, rows_alone(batch, true)));
  }
}

TEST_CASE("sequences may be longer than the model's positions, packed rows not") {
  DecoderConfig config = LanguageModel::preset("gpt2-tiny").config();
  config.vocabulary = kVocabulary;
  config.max_positions = 5;
  CHECK_NOTHROW(run(causal(config), {packed_batch()}));
  config.max_positions = 4;
  CHECK_THAT(error_of([&] { run(causal(config), {packed_batch()}); }),
             test::contains("a sequence of 5 tokens, but the model has 4 positions"));
}
