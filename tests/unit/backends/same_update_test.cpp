// SPDX-License-Identifier: MIT
// Ranks with different optimizers or different updates report that.
#include <ATen/ATen.h>

#include "lib/testing/player.h"
#include "tessera/core/error.h"
#include "tessera/model/parameter_groups.h"
#include "tessera/models/language_model.h"
#include "tessera/optim/adamw.h"
#include "tessera/optim/elementwise.h"
#include "tessera/optim/lion.h"
#include "tessera/optim/muon.h"
#include "tessera/optim/sgd.h"
#include "tests/support/messages.hpp"
#include "tests/support/ranks.hpp"
#include "tests/support/sized.h"
#include "tests/support/test.hpp"
#include "tests/support/toy_models.h"

using namespace tessera;
using namespace tessera::testing;
using tessera::test::contains;

namespace {

struct Layout {
  const char* strategy;
  MeshExtents mesh;
};
const Layout kLayouts[] = {{"ddp", {.data = 2}},   {"zero1", {.data = 2}},
                           {"zero2", {.data = 2}}, {"zero3", {.data = 2}},
                           {"fsdp", {.data = 2}},  {"zero2", {.pipeline = 2}}};

std::vector<MicroBatch> batches() { return {toy_micro_batch({}, 2, 4, 1)}; }

// Error of a run in which the last rank deviates.
std::string refusal(const Layout& layout,
                    const std::function<void(Player& player, bool last)>& script) {
  return error_of(ErrorCode::kInvalidArgument, [&] {
    test::run_ranks(rank_count(layout.mesh), [&](Communicator& world) {
      Player player(world, layout.mesh, [&](const DeviceMesh& mesh) {
        return make_strategy({.strategy = layout.strategy}, mesh);
      });
      script(player, world.rank() + 1 == world.size());
    });
  });
}

std::string refused_optimizers(const Layout& layout, const OptimizerFactory& first,
                               const OptimizerFactory& last) {
  return refusal(layout, [&](Player& player, bool is_last) {
    player.attach(toy_language_model(), 0, is_last ? last : first);
  });
}

OptimizerFactory sign_sgd(double factor) {
  const auto update = [factor](const ElementwiseStep& step, std::vector<at::Tensor>&) {
    return step.parameter - step.learning_rate * step.gradient.sign() * factor;
  };
  return make_elementwise("SignSgd", {}, update);
}

// Error after the last of two ranks made another update, and then another call.
std::string refused_update(const Layout& layout, bool evaluates,
                           const std::function<void(Strategy& strategy, bool last)>& update) {
  return refusal(layout, [&](Player& player, bool last) {
    player.attach(toy_language_model(), 0, make_adamw({}));
    Strategy& strategy = player.strategy();
    strategy.forward_backward(batches());
    update(strategy, last);
    if (evaluates) {
      strategy.evaluate(batches());
    } else {
      strategy.forward_backward(batches());
    }
  });
}

}  // namespace

TEST_CASE("different optimizers on ranks are refused, with the numbers of both") {
  for (const Layout& layout : kLayouts) {
    INFO(layout.strategy);
    CHECK_THAT(refused_optimizers(layout, make_adamw({}), make_adamw({.weight_decay = 0.1})),
               contains("different optimizers") && contains("rank 0: AdamW(") &&
                   contains("weight_decay=0,") && contains("rank 1: AdamW(") &&
                   contains("weight_decay=0.1,"));
    CHECK_THAT(refused_optimizers(layout, make_adamw({}), make_lion({})),
               contains("rank 0: AdamW(") && contains("rank 1: Lion("));
  }
  const Layout& ddp = kLayouts[0];
  CHECK_THAT(refused_optimizers(ddp, make_sgd({}), make_sgd({.momentum = 0.5})),
             contains("momentum=0.5"));
  CHECK_THAT(refused_optimizers(ddp, make_muon({}, make_adamw({})),
                                make_muon({.ns_steps = 4}, make_adamw({}))),
             contains("ns_steps=4") && contains("AdamW("));
  CHECK_THAT(refused_optimizers(ddp, sign_sgd(1), sign_sgd(2)), contains("SignSgd("));
  CHECK(refused_optimizers(ddp, sign_sgd(2), sign_sgd(2)) == "no error");
}

TEST_CASE("different parameter groups on ranks are refused") {
  const auto model = [](double lr_factor) {
    return with_groups(toy_language_model(),
                       {{.name = "fast",
                         .matches = [](const std::string& block, const std::string&,
                                       at::IntArrayRef) { return block == "layer.1"; },
                         .lr_factor = lr_factor}});
  };
  const auto say = [&](const Layout& layout) {
    return refusal(layout, [&](Player& player, bool last) {
      player.attach(model(last ? 2 : 3), 0, make_adamw({}));
    });
  };
  for (const Layout& layout : kLayouts) {
    if (layout.mesh.data == 1) continue;
    INFO(layout.strategy);
    CHECK_THAT(say(layout), contains("layer.1") && contains("group \"fast\""));
  }
}

TEST_CASE("different parameter groups on the ranks of a tensor axis are refused") {
  const auto config = sized("bloom", {.vocabulary = 32, .hidden = 8, .heads = 2, .layers = 2});
  CHECK_THAT(
      refusal({"single", {.tensor = 2}},
              [&](Player& player, bool last) {
                const ModelSpec model = with_groups(
                    causal(config),
                    {{.name = "fast", .matches = named("h.1"), .lr_factor = last ? 2.0 : 3.0}});
                player.attach(model, 0, make_adamw({}));
              }),
      contains("parameter h.1.") && contains("rank 1 of the tensor axis"));
}

TEST_CASE("different updates of ranks are refused at the next step or evaluation") {
  for (const Layout& layout : kLayouts) {
    for (const bool evaluates : {false, true}) {
      INFO(layout.strategy << (layout.mesh.pipeline > 1 ? " of stages" : "") << evaluates);
      const auto say = [&](const std::function<void(Strategy&, bool)>& update) {
        return refused_update(layout, evaluates, update);
      };
      CHECK_THAT(
          say([](Strategy& s, bool last) { s.optimizer_step(last ? 2e-3 : 1e-3); }),
          contains("learning rate 0.001 on rank 0, 0.002 on rank 1") && contains("same update"));
      CHECK_THAT(say([](Strategy& s, bool last) {
                   s.optimizer_step(1e-3, at::full({}, last ? 1.0F : 0.0F));
                 }),
                 contains("skip 0 on rank 0, 1 on rank 1"));
      CHECK_THAT(say([](Strategy& s, bool last) {
                   s.scale_gradients(at::full({}, last ? 0.5F : 0.25F));
                   s.optimizer_step(1e-3);
                 }),
                 contains("scale of the gradients 0.25 on rank 0, 0.5 on rank 1"));
      CHECK_THAT(say([](Strategy& s, bool last) {
                   s.set_loss_scale(at::full({}, last ? 2.0F : 4.0F));
                   s.optimizer_step(1e-3);
                 }),
                 contains("loss scale 4 on rank 0, 2 on rank 1"));
      CHECK(say([](Strategy& s, bool) {
              s.scale_gradients(at::full({}, std::numeric_limits<float>::quiet_NaN()));
              s.optimizer_step(0, at::ones({}));
            }) == "no error");
    }
  }
}

TEST_CASE("an update that one rank did not make is refused") {  // with zero, ranks would wait
  CHECK_THAT(refused_update(kLayouts[0], /*evaluates=*/true,
                            [](Strategy& s, bool last) {
                              if (!last) s.optimizer_step(1e-3);
                            }),
             contains("learning rate 0.001 on rank 0, no update on rank 1"));
}

TEST_CASE("a strategy whose ranks made different updates does not go on") {
  test::run_ranks(2, [](Communicator& world) {
    Player player(world, {toy_language_model(), {.data = 2}, {.strategy = "ddp"}});
    Strategy& strategy = player.strategy();
    strategy.forward_backward(batches());
    strategy.optimizer_step(world.rank() == 0 ? 1e-3 : 2e-3);
    test::require_error(
        ErrorCode::kInvalidArgument, [&] { strategy.evaluate(batches()); }, "first");
    const std::string said = test::require_error(
        ErrorCode::kUnavailable, [&] { strategy.evaluate(batches()); }, "second");
    test::require(said.find("optimizer_step()") != std::string::npos, said);
  });
}
