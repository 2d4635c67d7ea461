// SPDX-License-Identifier: MIT
// Scores for users' own batches, and generation with users' own models.
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include "backends/common/device_graph_runner.h"
#include "lib/generation/row_batch.h"
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
               require(!strategy.supports_kv_cache(), "modules keep nothing");
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
             batch.decode_state.cache = std::make_shared<KeyValueCache>(1, 8);
             refused("piece by piece");
           });
}

TEST_CASE("rows go on in the same memory, also for later prompts") {
  const GenerationOptions options{.max_new_tokens = 4,
                                  .end_tokens = {16},
                                  .sampling = SamplingOptions{.seed = 2},
                                  .max_positions = 7,
                                  .fill_token = 9};
  RowBatch rows({.rows = 3, .capacity = 7, .tokens = 4}, options,
                std::make_shared<KeyValueCache>(3, 7));
  const std::vector<std::vector<int64_t>> prompts{{3, 4}, {5, 6, 7, 8, 1}, {2}};
  std::vector<const void*> memory;
  for (const std::vector<size_t>& places : {std::vector<size_t>{1, 0}, {2, 1, 0}}) {
    rows.begin(prompts, places, 5);
    CHECK(!rows.next().decode_state.begun());
    const auto length = [&](size_t row) {
      return row < places.size() ? static_cast<int64_t>(prompts[places[row]].size()) : 1;
    };
    // Row 1 ends after its second token; the row of five tokens has space for two more.
    std::vector<std::vector<int64_t>> tokens{{10, 11, 12, 13}, {10, 16, 12, 13}, {10, 11, 12, 13}};
    for (int64_t step = 0; step < 3; ++step) {
      const auto taken = static_cast<size_t>(step);
      rows.take(at::tensor({tokens[0][taken], tokens[1][taken], tokens[2][taken]}));
      const MicroBatch next = rows.next();
      const std::vector<const void*> here{next.input_ids.const_data_ptr(),
                                          next.decode_state.lengths.const_data_ptr()};
      if (memory.empty()) memory = here;
      CHECK(here == memory);
      for (int64_t row = 0; row < 3; ++row) {
        CAPTURE(step, row, places.size());
        const auto place = static_cast<size_t>(row);
        const bool empty = place >= places.size();
        int64_t most = empty ? 0 : std::min<int64_t>(4, 7 - length(place));
        if (row == 1) most = std::min<int64_t>(most, 2);
        CHECK(next.input_ids[row][0].item<int64_t>() ==
              (step < most ? tokens[place][taken] : options.fill_token));
        CHECK(next.decode_state.lengths[row].item<int64_t>() ==
              length(place) - 1 + std::min(step + 1, most));
      }
    }
  }
}

TEST_CASE("on a CPU work that repeats runs every time") {
  DeviceGraphRunner work(at::kCPU, 100);
  const at::Tensor input = at::zeros({1}, at::kLong);
  for (int64_t i = 0; i < 5; ++i) {
    input.fill_(i);
    CHECK(work.run({input}, [&] { return input * 2; }).item<int64_t>() == 2 * i);
    CHECK(!work.is_recorded());
  }
}
