// SPDX-License-Identifier: MIT
// Scores for batches of the user's own, and generation with models of the user's own.
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include "lib/testing/player.h"
#include "tessera/core/key_value_cache.h"
#include "tessera/generation/generate.h"
#include "tessera/model/adapters.h"
#include "tessera/optim/sgd.h"
#include "tests/support/ranks.hpp"
#include "tests/support/test.hpp"

using namespace tessera;
using namespace tessera::test;
using tessera::testing::play;
using tessera::testing::Player;

namespace {

constexpr int64_t kVocabulary = 17;

torch::nn::Sequential language_model() {
  torch::manual_seed(5);
  return torch::nn::Sequential(torch::nn::Embedding(kVocabulary, 8), torch::nn::Linear(8, 12),
                               torch::nn::Tanh(), torch::nn::Linear(12, kVocabulary));
}

at::Tensor no_loss(const at::Tensor&, const MicroBatch&) {
  fail(ErrorCode::kInternal, "a prediction has no loss");
}

struct Layout {
  std::string strategy;
  int pipeline, data;
};
const Layout kLayouts[] = {
    {"single", 1, 1}, {"ddp", 1, 2}, {"zero3", 1, 2}, {"fsdp", 2, 2}, {"single", 2, 1}};

void on_ranks(const Layout& layout, const ModelSpec& model,
              const std::function<void(Strategy&, const DeviceMesh&)>& fn) {
  play({model,
        {.pipeline = layout.pipeline, .data = layout.data},
        {.strategy = layout.strategy},
        make_sgd({})},
       [&](Player& player) { fn(player.strategy(), player.mesh()); });
}

}  // namespace

TEST_CASE("predict gives every rank the scores of its own micro-batches") {
  auto module = language_model();
  const ModelSpec model = from_sequential(module, no_loss);
  for (const Layout& layout : kLayouts) {
    CAPTURE(layout.strategy, layout.pipeline, layout.data);
    on_ranks(layout, model, [&](Strategy& strategy, const DeviceMesh& mesh) {
      const int64_t first = 3 * mesh.coordinate(Axis::kData);
      std::vector<MicroBatch> batches;
      for (const int64_t rows : {2, 3}) {
        const at::Tensor ids = at::arange(first, first + rows * 4).remainder(kVocabulary);
        batches.push_back(make_micro_batch(ids.view({rows, 4}), {}));
      }
      batches[1].head_positions = at::tensor({1, 6}, at::kLong);
      const at::NoGradGuard no_grad;
      for (int time = 0; time < 2; ++time) {
        const auto scores = strategy.predict(batches);
        require(scores.size() == 2, "one result a micro-batch");
        require_bit_equal(scores[0], module->forward(batches[0].input_ids), "scores");
        const at::Tensor all = module->forward(batches[1].input_ids).flatten(0, 1);
        require(at::allclose(scores[1], all.index_select(0, batches[1].head_positions)),
                "scores at positions");
        const auto best = strategy.predict(batches, [](const at::Tensor& all, size_t index) {
          return all.argmax(-1) + static_cast<int64_t>(100 * index);
        });
        require_bit_equal(best[1], scores[1].argmax(-1) + 100, "what is selected");
      }
    });
  }
}

TEST_CASE("a model whose blocks keep nothing generates by running whole rows") {
  auto module = language_model();
  const std::vector<std::vector<int64_t>> prompts{{3, 4}, {9}, {1, 2, 3}, {16}, {5, 5}};
  std::vector<std::vector<int64_t>> expected = prompts;
  for (auto& row : expected) {
    const at::NoGradGuard no_grad;
    for (int token = 0; token < 6; ++token) {
      row.push_back(module->forward(at::tensor(row))[-1].argmax().item<int64_t>());
    }
  }
  for (const Layout& layout : kLayouts) {
    CAPTURE(layout.strategy, layout.pipeline, layout.data);
    on_ranks(layout, from_sequential(module, no_loss),
             [&](Strategy& strategy, const DeviceMesh& mesh) {
               require(!strategy.continues_rows(), "modules keep nothing");
               const auto rows =
                   generate(strategy, mesh, prompts,
                            {.max_new_tokens = 6, .without_end_token = true, .batch_size = 2});
               for (size_t i = 0; i < rows.size(); ++i) {
                 std::vector<int64_t> all = prompts[i];
                 all.insert(all.end(), rows[i].ids.begin(), rows[i].ids.end());
                 require(all == expected[i], "row ", i, ": ", at::IntArrayRef(all));
               }
             });
  }
}

TEST_CASE("a training step after a prediction is the one without it") {
  const auto loss = [](const at::Tensor& output, const MicroBatch& batch) {
    return at::cross_entropy_loss(output.flatten(0, 1), batch.labels.flatten(), {},
                                  at::Reduction::Sum);
  };
  const ModelSpec model = from_sequential(language_model(), loss);
  const at::Tensor ids = at::arange(8).view({2, 4});
  const std::vector<MicroBatch> batch{make_micro_batch(ids, ids + 1)};
  for (const Layout& layout : kLayouts) {
    CAPTURE(layout.strategy, layout.pipeline, layout.data);
    const auto losses = [&](bool predicts) {
      std::vector<double> values;
      on_ranks(layout, model, [&](Strategy& strategy, const DeviceMesh& mesh) {
        for (int step = 0; step < 3; ++step) {
          if (predicts) strategy.predict(batch);
          const double value = strategy.forward_backward(batch).loss.item<double>();
          strategy.optimizer_step(0.1);
          if (mesh.world().rank() == 0) values.push_back(value);
        }
      });
      return values;
    };
    CHECK(losses(true) == losses(false));
  }
}

TEST_CASE("ranks that predict different numbers of micro-batches are told so") {
  on_ranks(
      {"ddp", 1, 2}, from_sequential(language_model(), no_loss),
      [&](Strategy& strategy, const DeviceMesh& mesh) {
        const std::vector<MicroBatch> batches(static_cast<size_t>(1 + mesh.world().rank()),
                                              make_micro_batch(at::ones({1, 2}, at::kLong), {}));
        require_error(
            ErrorCode::kInvalidArgument, [&] { strategy.predict(batches); }, "different numbers");
        require_error(
            ErrorCode::kInvalidArgument, [&] { strategy.predict({}); }, "none");
      });
}

TEST_CASE("rows that the blocks would not keep apart or go on with are refused") {
  on_ranks({"ddp", 1, 2}, from_sequential(language_model(), no_loss),
           [](Strategy& strategy, const DeviceMesh&) {
             MicroBatch batch = make_micro_batch(at::ones({1, 4}, at::kLong), {});
             const auto refused = [&](const std::string& what) {
               const std::string said = require_error(
                   ErrorCode::kInvalidArgument,
                   [&] {
                     strategy.predict({&batch, 1});
                   },
                   what);
               require(said.find(what) != said.npos, said);
             };
             batch.packed = make_packed_rows({1, 3}, 4);
             refused("packed rows");
             batch.packed = {};
             batch.so_far.cache = std::make_shared<KeyValueCache>(1, 8);
             refused("piece by piece");
           });
}
