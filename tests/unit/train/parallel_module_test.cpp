// SPDX-License-Identifier: MIT
// A single-process loop with ParallelModule in place of the module and its optimizer.
#include "tessera/train/parallel_module.h"

#include <torch/torch.h>

#include <cmath>

#include "tessera/optim/adamw.h"
#include "tests/support/messages.hpp"
#include "tests/support/ranks.hpp"
#include "tests/support/test.hpp"

using namespace tessera;
namespace nn = torch::nn;

namespace {

constexpr int kModuleSteps = 4;
constexpr double kModuleRate = 0.05, kMaxNorm = 0.5;

nn::Sequential net() {
  torch::manual_seed(7);
  return nn::Sequential(nn::Linear(5, 9), nn::Tanh(), nn::Linear(9, 3));
}

at::Tensor inputs(int64_t step) {
  return (torch::arange(14 * 5).to(torch::kFloat).view({14, 5}) * 0.37 + static_cast<double>(step))
      .sin();
}
at::Tensor classes() { return torch::arange(14) % 3; }
at::Tensor values(int64_t step) { return inputs(step).narrow(1, 0, 3) * 2; }

struct Trained {
  std::vector<double> losses;
  std::vector<at::Tensor> weights;
  at::Tensor scores;
};

void check_equal(const Trained& one, const Trained& other) {
  REQUIRE(one.losses.size() == other.losses.size());
  for (size_t i = 0; i < one.losses.size(); ++i) {
    CHECK(std::abs(one.losses[i] - other.losses[i]) <= 1e-5 * std::abs(other.losses[i]));
  }
  for (size_t i = 0; i < one.weights.size(); ++i) {
    CHECK(at::allclose(one.weights[i], other.weights[i], 1e-5, 1e-6));
  }
  CHECK(at::allclose(one.scores, other.scores, 1e-5, 1e-6));
}

template <typename Loss>
Trained plain(Loss loss_of, const std::function<at::Tensor(int64_t)>& labels) {
  nn::Sequential module = net();
  torch::optim::AdamW optimizer(module->parameters(),
                                torch::optim::AdamWOptions(kModuleRate).weight_decay(0));
  Trained trained;
  for (int step = 0; step < kModuleSteps; ++step) {
    optimizer.zero_grad();
    const at::Tensor loss = loss_of(module->forward(inputs(step)), labels(step));
    loss.backward();
    nn::utils::clip_grad_norm_(module->parameters(), kMaxNorm);
    optimizer.step();
    trained.losses.push_back(loss.template item<double>());
  }
  const at::NoGradGuard no_grad;
  for (const at::Tensor& p : module->parameters()) trained.weights.push_back(p.detach().clone());
  trained.scores = module->forward(inputs(9));
  return trained;
}

// Rows of a step are divided unevenly: 14 over 3 ranks are 5, 5 and 4.
template <typename Loss>
Trained parallel(Communicator& world, const ParallelConfig& config, nn::Sequential module,
                 Loss loss_of, const std::function<at::Tensor(int64_t)>& labels) {
  const auto mine = [&](const at::Tensor& rows) { return rows.chunk(world.size())[world.rank()]; };
  ParallelModule model(world, module, loss_of, make_adamw({}), config);
  Trained trained;
  for (int step = 0; step < kModuleSteps; ++step) {
    trained.losses.push_back(
        model
            .train_step(mine(inputs(step)), mine(labels(step)),
                        {.learning_rate = kModuleRate, .max_grad_norm = kMaxNorm})
            .template item<double>());
  }
  trained.scores = model.predict(inputs(9));
  nn::Sequential whole(std::dynamic_pointer_cast<nn::SequentialImpl>(module->clone()));
  nn::Sequential of_last(std::dynamic_pointer_cast<nn::SequentialImpl>(module->clone()));
  const int last = world.size() - 1;
  const bool told = model.copy_to(of_last, last);
  test::require(told == (world.rank() == last), "copy_to tells the rank that has the copy");
  model.copy_to(whole);
  const auto same = world.rank() == last ? whole->parameters() : module->parameters();
  for (size_t i = 0; i < same.size(); ++i) {
    test::require(of_last->parameters()[i].equal(same[i]), "copy_to writes on one rank alone");
  }
  for (const at::Tensor& p : whole->parameters()) trained.weights.push_back(p.detach().clone());
  return trained;
}

template <typename Loss>
void check_everywhere(Loss loss_of, const std::function<at::Tensor(int64_t)>& labels) {
  const Trained expected = plain(loss_of, labels);
  const nn::Sequential module = net();
  for (const std::string strategy : {"single", "ddp", "zero1", "zero2", "zero3", "fsdp"}) {
    for (const int ranks : {1, 2, 3}) {
      if (strategy == "single" && ranks > 1) continue;
      for (const Offload what : {Offload::kNone, Offload::kOptimizer}) {
        if (what != Offload::kNone && (strategy == "single" || strategy == "ddp")) continue;
        INFO(strategy << " on " << ranks << (what == Offload::kNone ? "" : ", offloaded"));
        const ParallelConfig config{.strategy = strategy,
                                    .offload = {.what = what, .pin_memory = false}};
        std::vector<Trained> trained(static_cast<size_t>(ranks));
        test::run_ranks(ranks, [&](Communicator& world) {
          trained[static_cast<size_t>(world.rank())] =
              parallel(world, config, module, loss_of, labels);
        });
        for (const Trained& each : trained) check_equal(each, expected);
      }
    }
  }
}

}  // namespace

TEST_CASE("a plain loop's module, loss and optimizer train the same on ranks with unequal rows") {
  check_everywhere(nn::CrossEntropyLoss(), [](int64_t) { return classes(); });
}

TEST_CASE("a loss given as a function is the mean over the rows of all ranks") {
  check_everywhere([](const at::Tensor& scores,
                      const at::Tensor& labels) { return torch::mse_loss(scores, labels); },
                   values);
}

TEST_CASE("what ParallelModule cannot train is refused on every rank") {
  const nn::Sequential module = net();
  nn::CrossEntropyLoss weighted(
      nn::CrossEntropyLossOptions().weight(torch::tensor({1.0, 2.0, 3.0})));
  struct Plain : nn::Module {  // without clone()
    at::Tensor forward(const at::Tensor& x) { return x; }
  };
  nn::CrossEntropyLoss summed(nn::CrossEntropyLossOptions().reduction(torch::kSum));
  std::vector<std::vector<std::string>> said(2);
  test::run_ranks(2, [&](Communicator& world) {
    const auto first_step = [&](const nn::CrossEntropyLoss& loss) {
      return error_of(ErrorCode::kInvalidArgument, [&] {
        ParallelModule model(world, module, loss, make_adamw({}));
        model.train_step(inputs(0), classes(), {.learning_rate = kModuleRate});
      });
    };
    ParallelModule model(world, module, nn::CrossEntropyLoss(), make_adamw({}));
    said[static_cast<size_t>(world.rank())] = {
        first_step(weighted),
        first_step(summed),
        error_of([&] {
          model.train_step(inputs(0), classes(),
                           {.learning_rate = kModuleRate, .max_grad_norm = -1});
        }),
        error_of([&] { model.copy_to(module, 2); }),
        error_of([&] {
          ParallelModule(world, std::make_shared<Plain>(), nn::CrossEntropyLoss(), make_adamw({}));
        }),
        error_of([&] {
          ParallelModule(world, module, nn::CrossEntropyLoss(), make_adamw({}),
                         {.strategy = "single"});
        }),
        error_of([&] { model.train_step(inputs(0), classes(), {}); })};
  });
  const std::vector<std::string> parts{"class weights",
                                       "declares a mean",
                                       "max_grad_norm is -1",
                                       "no rank 2 among 2 ranks",
                                       "Or give with_values(make, module)",
                                       "single",
                                       "there is no learning_rate"};
  for (const auto& of_rank : said) {
    for (size_t i = 0; i < parts.size(); ++i) CHECK_THAT(of_rank[i], test::contains(parts[i]));
  }
}
