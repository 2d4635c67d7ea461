// SPDX-License-Identifier: MIT
// Ranks with different models or different data report that and do not train.
#include <ATen/ATen.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>

#include "lib/testing/player.h"
#include "tessera/core/error.h"
#include "tessera/model/adapters.h"
#include "tessera/models/language_model.h"
#include "tessera/optim/adamw.h"
#include "tests/support/messages.hpp"
#include "tests/support/ranks.hpp"
#include "tests/support/sized.h"
#include "tests/support/test.hpp"
#include "tests/support/toy_models.h"

using namespace tessera;
using namespace tessera::testing;
using tessera::test::contains;

namespace {

struct Given {
  ModelSpec model = toy_language_model();
  uint64_t seed = 0;
  std::vector<MicroBatch> batches;
  bool evaluates = false;
};

// Error of a step in which every rank uses its own input.
std::string refusal(const ParallelConfig& config, const MeshExtents& extents,
                    const std::function<void(const DeviceMesh&, Given&)>& give) {
  return error_of(ErrorCode::kInvalidArgument, [&] {
    test::run_ranks(rank_count(extents), [&](Communicator& comm) {
      Player player(comm, extents,
                    [&](const DeviceMesh& mesh) { return make_strategy(config, mesh); });
      Given given;
      given.batches = {toy_micro_batch({}, 2, 4, 1), toy_micro_batch({}, 2, 4, 2)};
      give(player.mesh(), given);
      player.attach(given.model, given.seed, make_adamw({}));
      if (given.evaluates) {
        player.strategy().evaluate(given.batches);
      } else {
        player.strategy().forward_backward(given.batches);
      }
    });
  });
}

const char* const kStrategies[] = {"ddp", "zero1", "zero2", "zero3", "fsdp"};

bool is_second(const DeviceMesh& mesh) { return mesh.coordinate(Axis::kData) == 1; }

ModelSpec linear_model(double value, const std::vector<int64_t>& widths) {
  torch::nn::Sequential layers;
  for (size_t i = 0; i + 1 < widths.size(); ++i) {
    layers->push_back(torch::nn::Linear(widths[i], widths[i + 1]));
  }
  const at::NoGradGuard no_grad;
  for (auto& parameter : layers->parameters()) parameter.fill_(value);
  return from_sequential(layers, [](const at::Tensor& output, const MicroBatch& batch) {
    return (output - batch.labels).pow(2).sum();
  });
}

}  // namespace

TEST_CASE("different models on data ranks are refused, naming the first block and parameter") {
  for (const char* strategy : kStrategies) {
    INFO(strategy);
    const auto say = [&](const std::function<void(const DeviceMesh&, Given&)>& give) {
      return refusal({.strategy = strategy}, {.data = 2}, give);
    };
    CHECK_THAT(say([](const DeviceMesh& mesh, Given& given) {
                 if (is_second(mesh)) given.seed = 3;
               }),
               contains("block \"embedding\"") && contains("\"weight\"") &&
                   contains("values of rank 0") && contains("BuildContext::seed"));
    CHECK_THAT(say([](const DeviceMesh& mesh, Given& given) {
                 if (is_second(mesh)) given.model = toy_language_model({.layers = 5});
               }),
               contains("blocks on rank 0") && contains("7 on rank 1"));
    CHECK_THAT(say([](const DeviceMesh& mesh, Given& given) {
                 if (is_second(mesh)) given.model.blocks[2].name = "other";
               }),
               contains("block 2"));
    CHECK_THAT(say([](const DeviceMesh& mesh, Given& given) {
                 given.model = linear_model(1, is_second(mesh) ? std::vector<int64_t>{4, 5, 2}
                                                               : std::vector<int64_t>{4, 6, 2});
               }),
               contains("block \"0\"") && contains("\"weight\"") && contains("same model"));
  }
}

TEST_CASE("different values of what a tensor group holds in full are refused by name") {
  const auto config = sized("bloom", {.vocabulary = 32, .hidden = 8, .heads = 2, .layers = 2});
  for (const auto& [extents, shared] : {std::pair(MeshExtents{.tensor = 2}, false),
                                        {MeshExtents{.data = 2, .tensor = 2}, false},
                                        {MeshExtents{.pipeline = 2, .tensor = 2}, false},
                                        {MeshExtents{.pipeline = 2}, true}}) {
    ParallelConfig parallel{.strategy = extents.data > 1 ? "zero3" : "single"};
    parallel.pipeline.shared_vocabulary = shared;
    const std::string changed = shared ? "head" : "h.1";
    const std::string said = refusal(parallel, extents, [&](const DeviceMesh& mesh, Given& given) {
      given.model = causal(config);
      const int rank = mesh.coordinate(shared ? Axis::kPipeline : Axis::kTensor);
      for (BlockBuilder& block : given.model.blocks) {
        if (block.name != changed || rank == 0) continue;
        block.build = [build = block.build](const BuildContext& context) {
          auto built = build(context);
          const at::NoGradGuard no_grad;
          const auto parameters = built->parameters();
          const auto whole = std::ranges::find_if(
              parameters, [](const Parameter& p) { return p.placement.shard.replicated(); });
          at::Tensor(whole->tensor).view({-1})[0] += 1e-3;
          return built;
        };
      }
    });
    INFO(said);
    CHECK_THAT(said, contains("parameter " + changed + ".") && contains("rank 1 of the group"));
  }
}

TEST_CASE("a module's weights are those of the first data rank") {
  for (const char* strategy : kStrategies) {
    INFO(strategy);
    test::run_ranks(3, [&](Communicator& comm) {
      const Player player(
          comm, {linear_model(comm.rank() + 1, {4, 6, 2}), {.data = 3}, {.strategy = strategy}});
      for (const auto& [name, value] : parameters_of(player.strategy())) {
        test::require(value.eq(1).all().item<bool>(), name, " on rank ", comm.rank());
      }
    });
  }
}

TEST_CASE("different numbers of micro-batches, or kinds of step, are refused") {
  for (const char* strategy : kStrategies) {
    INFO(strategy);
    CHECK_THAT(refusal({.strategy = strategy}, {.data = 2},
                       [](const DeviceMesh& mesh, Given& given) {
                         if (is_second(mesh)) given.batches.pop_back();
                       }),
               contains("how many micro-batches"));
    CHECK_THAT(
        refusal({.strategy = strategy}, {.data = 2},
                [](const DeviceMesh& mesh, Given& given) { given.evaluates = is_second(mesh); }),
        contains("another evaluates"));
  }
}

TEST_CASE("different data on the stages of one pipeline is refused") {
  for (const char* strategy : kStrategies) {
    for (int what = 0; what < 4; ++what) {
      INFO(strategy << " " << what);
      CHECK_THAT(refusal({.strategy = strategy}, {.pipeline = 2, .data = 2},
                         [&](const DeviceMesh& mesh, Given& given) {
                           if (mesh.world().rank() != 3) return;
                           MicroBatch& batch = given.batches[1];
                           if (what == 0) batch = toy_micro_batch({}, 2, 4, 9);
                           if (what == 1) {  // two ids swapped
                             batch.input_ids = batch.input_ids.clone();
                             batch.input_ids[0][0] = (batch.input_ids[0][0] + 1) % 31;
                           }
                           if (what == 2) ++batch.sample_count;
                           if (what == 3) batch.extra["image"] = at::ones({2});
                         }),
                 contains("different micro-batches"));
    }
  }
}

TEST_CASE("targets that were not counted are refused") {
  CHECK_THAT(refusal({.strategy = "ddp"}, {.data = 2},
                     [](const DeviceMesh&, Given& given) { given.batches[0].target_count = 0; }),
             contains("target_count is 0") && contains("make_micro_batch"));
}

TEST_CASE("a step's counts are those of all ranks, whoever shares them") {
  play({toy_language_model(), {.pipeline = 2, .data = 2}, {.strategy = "zero2"}},
       [](Player& player) {
         Strategy& strategy = player.strategy();
         const int place = player.data_rank();
         const MicroBatch batch = toy_micro_batch({}, 2 + place, 4, static_cast<uint64_t>(place));
         const StepResult result = strategy.forward_backward(std::vector{batch});
         test::require(result.sample_count.item<int64_t>() == 5, "rows");
         test::require(result.token_count.item<int64_t>() == 20, "positions");
       });
}
