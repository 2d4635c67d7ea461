// SPDX-License-Identifier: MIT
// Gradients by name before the step equal the plain gradient in every layout.
#include "tessera/backends/gradients.h"

#include <ATen/ATen.h>

#include <cmath>
#include <set>

#include "lib/testing/fuzz.h"
#include "lib/testing/player.h"
#include "tessera/models/language_model.h"
#include "tessera/optim/sgd.h"
#include "tests/support/ranks.hpp"
#include "tests/support/sized.h"
#include "tests/support/test.hpp"
#include "tests/support/toy_models.h"
#include "tests/support/watchdog.hpp"

using namespace tessera;
using namespace tessera::testing;

namespace {

const std::vector<std::string> kLayouts{
    "strategy=single",
    "strategy=ddp data=2",
    "strategy=zero1 data=3",
    "strategy=zero2 data=2",
    "strategy=zero3 data=2 persistence_threshold=20",
    "strategy=fsdp data=3",
    "strategy=fsdp data=4 shard_ranks=2",
    "strategy=zero1 data=2 offload=optimizer offload_step=host",
    "strategy=zero1 data=2 offload=optimizer offload_step=both",
    "strategy=zero3 data=2 offload=optimizer+params offload_step=device",
    "strategy=ddp pipeline=2",
    "strategy=zero2 pipeline=2 data=2",
    "strategy=ddp pipeline=3 pipeline_schedule=1f1b",
};

// Twelve rows divided among the data ranks.
std::vector<MicroBatch> own_rows(const Player& player) {
  const int64_t count = 12 / player.data_ranks();
  return {rows_of(toy_micro_batch({}, 12, 5, 9), player.data_rank() * count, count)};
}

void on_all(const PlayerScript& script) {
  for (const std::string& line : kLayouts) {
    INFO(line);
    const test::Watchdog watchdog(line, std::chrono::seconds(30));
    const FuzzCase layout = parse_case(line);
    CHECK_NOTHROW(play({.model = toy_language_model(),
                        .mesh = layout.mesh,
                        .parallel = layout.parallel,
                        .optimizer = make_sgd({})},
                       script));
  }
}

// Gradients of a run on one rank.
Named alone(const PlayerScript& change) {
  Named seen;
  play({.model = toy_language_model(),
        .parallel = {.strategy = "single"},
        .optimizer = make_sgd({})},
       [&](Player& player) {
         player.strategy().forward_backward(own_rows(player));
         change(player);
         seen = gradients_of(player.strategy());
       });
  return seen;
}

void require_equal(const Named& actual, const Named& expected) {
  const std::string differs = difference(actual, expected, 1e-5, 1e-4);
  test::require(differs == "", differs);
}

}  // namespace

TEST_CASE("norms by name are those of whole gradients, and pieces count every element once") {
  on_all([](Player& player) {
    Strategy& s = player.strategy();
    s.forward_backward(own_rows(player));
    s.scale_gradients(at::full({}, 0.5F));
    const double squared = s.grad_norm_squared().item<double>();
    const NamedTensors norms = s.gradient_norms();
    const Named whole = gradients_of(s);
    double sum = 0;
    std::set<std::string> names;
    for (const auto& [name, norm] : norms) {
      test::require(names.insert(name).second, name, " twice");
      const double expected = whole.at(name).norm().item<double>();
      test::require(std::abs(norm.item<double>() - expected) <= 1e-5 * expected + 1e-9, name,
                    " has norm ", norm.item<double>(), ", expected ", expected);
      sum += norm.square().item<double>();
    }
    test::require(names.size() == whole.size(), "all names");
    test::require(std::abs(sum - squared) <= 1e-5 * squared, "together ", sum, ", not ", squared);
    double counted = 0;
    at::Tensor numel = at::zeros({}, at::kLong);
    s.for_each_gradient([&](const GradientPiece& piece) {
      test::require(piece.value.numel() == piece.slice.numel(), "the piece's size");
      if (!piece.counted) return;
      counted += piece.value.square().sum().item<double>();
      numel += piece.value.numel();
    });
    at::Tensor all = at::full({}, counted, at::kDouble);
    player.world().all_reduce(all).wait();
    player.world().all_reduce(numel).wait();
    test::require(std::abs(all.item<double>() - squared) <= 1e-5 * squared, "counted pieces give ",
                  all.item<double>(), ", not ", squared);
    test::require(numel.item<int64_t>() == s.parameter_count(),
                  "elements counted: ", numel.item<int64_t>());
  });
}

TEST_CASE("what is written to pieces is what the step uses") {
  const auto clip = [](Player& player) { clip_gradient_values(player.strategy(), 0.01); };
  const Named clipped = alone(clip);
  on_all([&](Player& player) {
    Strategy& s = player.strategy();
    s.forward_backward(own_rows(player));
    clip(player);
    require_equal(gradients_of(s), clipped);
    const Named before = parameters_of(s);
    s.optimizer_step(1.0);
    Named moved = parameters_of(s);
    for (auto& [name, value] : moved) value = before.at(name) - value;
    require_equal(moved, clipped);
  });
}

TEST_CASE("noise is the same under every layout, and normal") {
  const auto add = [](Player& player) {
    player.strategy().for_each_gradient(
        [](const GradientPiece& piece) { at::Tensor(piece.value).copy_(normal_noise(piece, 5)); });
  };
  const Named expected = alone(add);
  on_all([&](Player& player) {
    player.strategy().forward_backward(own_rows(player));
    add(player);
    require_equal(gradients_of(player.strategy()), expected);
  });
  std::vector<at::Tensor> all;
  for (const auto& [name, value] : expected) all.push_back(value.flatten());
  const at::Tensor noise = at::cat(all);
  const auto count = static_cast<double>(noise.numel());
  CHECK(std::abs(noise.mean().item<double>()) < 4 / std::sqrt(count));
  CHECK(std::abs(noise.std().item<double>() - 1) < 4 / std::sqrt(2 * count));
  CHECK(std::abs(noise.pow(3).mean().item<double>()) < 4 * std::sqrt(15 / count));
  CHECK(std::abs(noise.pow(4).mean().item<double>() - 3) < 4 * std::sqrt(96 / count));
}

TEST_CASE("noise leaves padding zero, so that norms are those of one rank") {
  const ModelSpec model =
      causal(sized("bloom", {.vocabulary = 29, .hidden = 8, .heads = 4, .layers = 1}));
  const auto norm_of = [&](const MeshExtents& mesh) {
    double norm = 0;
    play({.model = model, .mesh = mesh, .optimizer = make_sgd({})}, [&](Player& player) {
      Strategy& s = player.strategy();
      s.forward_backward(std::vector{toy_micro_batch({.vocabulary = 29}, 2, 5, 9)});
      s.for_each_gradient(
          [](const GradientPiece& piece) { at::Tensor(piece.value).add_(normal_noise(piece, 7)); });
      const double own = s.grad_norm_squared().sqrt().item<double>();
      if (player.rank() == 0) norm = own;
    });
    return norm;
  };
  const double expected = norm_of({});
  for (const int tensor : {2, 4})
    CHECK(norm_of({.tensor = tensor}) == Approx(expected).epsilon(1e-5));
}

TEST_CASE("one gradient is read and set by its name") {
  on_all([](Player& player) {
    Strategy& s = player.strategy();
    s.forward_backward(own_rows(player));
    const Named whole = gradients_of(s);
    for (const std::string name : {"embedding.weight", "layer.1.up.weight"}) {
      require_equal({{name, gradient(s, name)}}, {{name, whole.at(name)}});
      const at::Tensor other =
          at::arange(whole.at(name).numel(), at::kFloat).view_as(whole.at(name));
      set_gradient(s, name, other);
      test::require(gradient(s, name).equal(other), name, " is as it was set");
    }
    const auto refused = [](const std::string& says, const std::function<void()>& call) {
      const std::string said = test::require_error(ErrorCode::kInvalidArgument, call, says);
      test::require(said.find(says) != std::string::npos, "it says: ", said);
    };
    refused("no trained parameter \"up.weight\"", [&] { gradient(s, "up.weight"); });
    refused("no trained parameter \"up.weight\"",
            [&] { set_gradient(s, "up.weight", at::zeros({1})); });
    refused("it must be positive", [&] { clip_gradient_values(s, 0); });
    s.state_restored();
    refused("for_each_gradient() needs a gradient",
            [&] { s.for_each_gradient([](const GradientPiece&) {}); });
    refused("gradient_norms() needs a gradient", [&] { s.gradient_norms(); });
  });
}
