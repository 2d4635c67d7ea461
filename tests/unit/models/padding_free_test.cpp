// SPDX-License-Identifier: MIT
// Micro-batches without padding have the loss and gradients of padded ones.
#include <ATen/ATen.h>

#include "tessera/data/data_loader.h"
#include "tessera/model/whole_model.h"
#include "tessera/models/language_model.h"
#include "tests/support/test.hpp"

using namespace tessera;

namespace {

constexpr int64_t kTokens = 50;

// The first token of a row has no label.
Dataset rows_of(Task task) {
  Dataset dataset;
  dataset.task = task;
  dataset.num_labels = 3;
  at::manual_seed(5);
  for (const int64_t length : {3, 7, 1, 5, 4}) {
    const at::Tensor ids = at::randint(1, kTokens, {length}, at::kInt);
    std::vector<int32_t> list(ids.const_data_ptr<int32_t>(),
                              ids.const_data_ptr<int32_t>() + length);
    std::vector<int32_t> labels = list;
    labels[0] = kIgnoredLabel;
    if (task == Task::kClassification) labels = {static_cast<int32_t>(length % 3)};
    dataset.examples.push_back({list, labels, {}});
  }
  return dataset;
}

struct Result {
  at::Tensor output, gradient, scores;
};

Result run(const ModelSpec& spec, const MicroBatch& batch, bool classes) {
  WholeModel model(spec, {.seed = 3});
  Result result;
  const at::Tensor output = model.forward(batch);
  output[0].backward();
  result.output = output.detach();
  std::vector<at::Tensor> gradients;
  for (const auto& p : model.parameters()) gradients.push_back(p.tensor.grad().flatten());
  result.gradient = at::cat(gradients);
  if (classes) result.scores = model.logits(batch).detach();
  return result;
}

}  // namespace

TEST_CASE("micro-batches without padding have the numbers of padded ones") {
  for (const std::string preset : {"bloom-tiny", "gpt2-tiny", "llama-tiny"}) {
    LanguageModel model = LanguageModel::preset(preset);
    model.config().vocabulary = kTokens;
    model.config().pad_token = 0;
    for (const bool classes : {false, true}) {
      const ModelSpec spec = classes ? model.make_classifier(3) : model.make_causal();
      const Dataset rows = rows_of(classes ? Task::kClassification : Task::kCausal);
      for (const PaddingSide side : {PaddingSide::kRight, PaddingSide::kLeft}) {
        INFO(preset << (classes ? " classifier" : "")
                    << (side == PaddingSide::kLeft ? " left" : " right"));
        DataLoaderOptions options{
            .micro_batch_size = 6, .shuffle = false, .padding_side = side, .pad_token = 0};
        const MicroBatch padded = DataLoader(rows, options).next()[0];
        options.padding_free = true;
        const MicroBatch free = DataLoader(rows, options).next()[0];
        REQUIRE(free.packed.defined());
        const Result expected = run(spec, padded, classes), given = run(spec, free, classes);
        CHECK(at::allclose(given.output, expected.output, 1e-6));
        const double error = (given.gradient - expected.gradient).norm().item<double>();
        CHECK(error <= 2e-6 * expected.gradient.norm().item<double>());
        if (!classes) continue;  // scores in row order
        CHECK(at::allclose(given.scores.narrow(0, 0, 5), expected.scores.narrow(0, 0, 5), 1e-4,
                           1e-6));
      }
    }
  }
}
