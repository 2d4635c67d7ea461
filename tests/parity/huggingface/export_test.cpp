// SPDX-License-Identifier: MIT
// The model that rank 0 writes block by block equals the trained one.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "lib/testing/player.h"
#include "tessera/checkpoint/huggingface.h"
#include "tessera/model/whole_model.h"
#include "tessera/optim/adamw.h"
#include "tests/parity/huggingface/fixtures.h"
#include "tests/support/ranks.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/support/test.hpp"
#include "tests/support/toy_models.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

// Two updates on 3 ranks, then rank 0 exports. Returns the loss of one more evaluation.
double train_and_export(const std::string& strategy_name, const Fixture& fixture,
                        const std::string& directory) {
  const HuggingFaceDirectory source(fixture.directory);
  const auto batches = fixture_batches(fixture);
  double loss = 0;
  play({.model = fixture.model,
        .mesh = {.data = 3},
        .parallel = {.strategy = strategy_name},
        .source = &source},
       [&](Player& player) {
         Strategy& strategy = player.strategy();
         const auto mine = [&](size_t i) { return rows_of(batches[i], player.rank() * 4, 4); };
         for (size_t step = 0; step < 2; ++step) {
           const std::vector<MicroBatch> micro_batches{mine(step)};
           strategy.forward_backward(micro_batches);
           strategy.optimizer_step(1e-2);
         }
         const std::vector<MicroBatch> held_back{mine(2)};
         const StepResult result = strategy.evaluate(held_back);
         std::unique_ptr<HuggingFaceWriter> writer;
         if (player.rank() == 0) writer = std::make_unique<HuggingFaceWriter>(directory);
         strategy.visit_parameters([&](const VisitedParameter& p) {
           if (writer) writer->add(fixture.model.checkpoint_name(p.block, p.name), p.value);
         });
         if (!writer) return;
         writer->add_text("config.json", fixture.language_model.to_json(fixture.head));
         writer->commit();
         loss = result.loss.item<double>();
       });
  return loss;
}

}  // namespace

TEST_CASE("a model exported by any strategy evaluates as it did in training") {
  for (const std::string name :
       {"causal", "classification", "gpt2", "gpt2_classification", "llama", "llama_tied"}) {
    const Fixture fixture = load_fixture(name);
    const MicroBatch held_back = fixture_batches(fixture)[2];
    for (const std::string strategy : {"ddp", "zero3", "fsdp"}) {
      INFO(name << " " << strategy);
      const TempDir folder;
      const std::string directory = folder.path("final");
      const double trained = train_and_export(strategy, fixture, directory);
      const Fixture again = load_fixture_at(directory);
      const HuggingFaceDirectory source(directory);
      CHECK(source.names() == HuggingFaceDirectory(fixture.directory).names());
      const at::NoGradGuard no_grad;
      WholeModel model(again.model, {.source = &source});
      const double loss = model.forward(held_back)[0].item<double>();
      CHECK(loss / static_cast<double>(held_back.target_count) == Approx(trained).epsilon(1e-6));
    }
  }
}
