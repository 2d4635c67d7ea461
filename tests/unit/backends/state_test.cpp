// SPDX-License-Identifier: MIT
// State of every strategy and layout: complete, exact, and loadable in any other layout.
#include <ATen/ATen.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/rmsprop.h>

#include <set>

#include "lib/testing/fuzz_run.h"
#include "lib/testing/player.h"
#include "lib/testing/whole_state.h"
#include "tessera/backends/copy_weights.h"
#include "tessera/core/split_master.h"
#include "tessera/model/adapters.h"
#include "tessera/model/parameter_groups.h"
#include "tessera/models/language_model.h"
#include "tessera/optim/adagrad.h"
#include "tessera/optim/adamw.h"
#include "tessera/optim/from_torch.h"
#include "tessera/optim/lion.h"
#include "tessera/optim/sgd.h"
#include "tessera/train/weight_average.h"
#include "tests/support/ranks.hpp"
#include "tests/support/sized.h"
#include "tests/support/test.hpp"
#include "tests/support/torch_modules.hpp"
#include "tests/support/toy_models.h"

using namespace tessera;
using namespace tessera::testing;
namespace nn = torch::nn;

namespace {

constexpr int kStateSteps = 4, kStateStop = 2, kStateMicroBatches = 4;

struct Training {
  ModelSpec model;
  std::function<MicroBatch(uint64_t)> batch;  // by seed
  OptimizerFactory optimizer = make_adamw({.weight_decay = 0.1});
  std::set<std::string> moments = {"exp_avg", "exp_avg_sq"};
};

struct Run {
  WholeState stopped, last;    // after kStateStop steps, and at the end
  std::vector<double> losses;  // of its steps
  Named at_stop, parameters;
};

// All steps, or those after `from`. line: a layout in the fuzzer's format.
void train(const std::string& line, const Training& work, const WholeState* from, Run& run) {
  const FuzzCase layout = parse_case(line);
  play({.model = work.model,
        .mesh = layout.mesh,
        .parallel = layout.parallel,
        .optimizer = work.optimizer,
        .seed = 5},
       [&](Player& player) {
         Strategy& strategy = player.strategy();
         if (from != nullptr) {
           from->give(strategy.state());
           strategy.state_restored();
         }
         const Communicator& data = player.mesh().axis(Axis::kData);
         const int share = kStateMicroBatches / data.size();
         for (int step = from == nullptr ? 0 : kStateStop; step < kStateSteps; ++step) {
           if (step == kStateStop) {
             run.stopped.take(strategy.state());
             const auto values = parameters_of(strategy);
             if (player.rank() == 0) run.at_stop = values;
           }
           std::vector<MicroBatch> mine;
           for (int m = 0; m < share; ++m) {
             const int place = data.rank() * share + m;
             mine.push_back(work.batch(static_cast<uint64_t>(step * kStateMicroBatches + place)));
           }
           const double loss = strategy.forward_backward(mine).loss.item<double>();
           if (player.rank() == 0) run.losses.push_back(loss);
           strategy.optimizer_step(1e-2);
         }
         const auto values = parameters_of(strategy);
         if (player.rank() == 0) run.parameters = values;
         run.last.take(strategy.state());
       });
}

void check_equal(const Named& actual, const Named& expected, const std::string& what) {
  CHECK(actual.size() == expected.size());
  for (const auto& [name, value] : expected) {
    REQUIRE(actual.contains(name));
    CHECK_NOTHROW(test::require_bit_equal(actual.at(name), value, what + " " + name));
  }
}

// Checks the names: every parameter, and optimizer state for trained ones.
void check_names(const Training& work, const Run& run, size_t frozen) {
  std::map<std::string, std::set<std::string>> kinds;
  for (const auto& [key, value] : run.stopped.tensors()) {
    const size_t space = key.rfind(' ');
    kinds[key.substr(space + 1)].insert(key.substr(0, space));
  }
  std::set<std::string> parameters;
  for (const auto& [name, value] : run.parameters) parameters.insert(name);
  CHECK(kinds.at("parameter") == parameters);
  for (const std::string& moment : work.moments) {
    CHECK(kinds.at(moment) == kinds.at(*work.moments.begin()));
    CHECK(kinds.at(moment).size() + frozen == parameters.size());
  }
  CHECK(kinds.contains("exp_avg") == work.moments.contains("exp_avg"));
}

// Every layout resumes bit for bit from its own state, and from that of the previous layout in the
// list.
void check_layouts(const Training& work, const std::vector<std::string>& layouts, double tolerance,
                   size_t frozen = 0) {
  std::optional<std::string> other;
  const Run* before = nullptr;
  std::vector<std::unique_ptr<Run>> runs;
  for (const std::string& line : layouts) {
    INFO(line);
    Run& run = *runs.emplace_back(std::make_unique<Run>());
    train(line, work, nullptr, run);
    CHECK(run.stopped.problem() == "");
    check_names(work, run, frozen);
    Run resumed;
    train(line, work, &run.stopped, resumed);
    check_equal(resumed.stopped.tensors(), run.stopped.tensors(), "restored");
    check_equal(resumed.last.tensors(), run.last.tensors(), "resumed");
    check_equal(resumed.parameters, run.parameters, "resumed");
    CHECK(resumed.losses == std::vector(run.losses.begin() + kStateStop, run.losses.end()));
    if (before != nullptr) {
      INFO("from " << *other);
      Run moved;
      train(line, work, &before->stopped, moved);
      check_equal(moved.stopped.tensors(), before->stopped.tensors(), "moved");
      check_equal(moved.at_stop, before->at_stop, "moved");
      CHECK(std::abs(moved.losses[0] - before->losses[kStateStop]) <=
            tolerance * std::abs(before->losses[kStateStop]));
    }
    before = &run;
    other = line;
  }
}

Training toy(const std::string& model) {
  const FuzzModel made = fuzz_families().at("toy").build(parse_case(model));
  return {made.model, [made](uint64_t seed) {
            const MicroBatch drawn = made.batch(2, 5, seed);
            return make_micro_batch(drawn.input_ids, drawn.labels);
          }};
}

// Multiplies by a constant with non-contiguous rows.
struct FactorImpl : nn::Cloneable<FactorImpl> {
  FactorImpl() { reset(); }
  void reset() override { factor = register_buffer("factor", at::arange(10.0).view({2, 5}).t()); }
  at::Tensor forward(const at::Tensor& x) { return at::tanh(x * factor.select(1, 1)); }
  at::Tensor factor;
};
TORCH_MODULE(Factor);

const std::vector<std::string> kOnTheDataAxis{
    "strategy=single",
    "strategy=ddp data=2",
    "strategy=zero1 data=4",
    "strategy=zero2 data=2 reduce_at_boundary=1",
    "strategy=zero3 data=4 persistence_threshold=20",
    "strategy=zero1 data=2 offload=optimizer offload_step=host offload_threads=2",
    "strategy=fsdp data=4 fsdp_unit_numel=300",
    "strategy=zero3 data=4 persistence_threshold=20 coalesce_bytes=1000",
    "strategy=fsdp data=2 coalesce_bytes=100000",
    "strategy=zero2 data=2 coalesce_bytes=1000 offload=optimizer offload_step=host",
    "strategy=zero3 data=2 persistence_threshold=20 offload=optimizer+params offload_step=host",
    "strategy=fsdp data=4 shard_ranks=2",
    "strategy=zero2 data=2 offload=optimizer offload_step=device chunk_numel=100",
    "strategy=zero1 data=2 offload=optimizer offload_step=both chunk_numel=100",
    "strategy=fsdp data=2 offload=optimizer offload_step=both offload_device_bytes=1500",
    "strategy=fsdp data=4 shard_ranks=1",
    "strategy=zero3 data=4 persistence_threshold=20 offload=optimizer+params offload_step=device "
    "chunk_numel=64",
    "strategy=fsdp data=2 reshard_after_forward=0 overlap=0",
    "strategy=fsdp data=4 shard_ranks=2 offload=optimizer offload_step=host",
    "strategy=zero1 data=2 offload=optimizer offload_step=host offload_device_bytes=1500",
    "strategy=single offload=optimizer offload_step=device offload_device_bytes=1500 "
    "chunk_numel=64",
    "strategy=zero3 data=2 offload=optimizer offload_device_bytes=100000",
};

std::vector<std::string> in(const std::string& precision, std::vector<std::string> layouts) {
  for (std::string& line : layouts) line += " dtype=" + precision;
  return layouts;
}

}  // namespace

TEST_CASE("a state is whole, resumes bit for bit and fits other layouts: data axis") {
  check_layouts(toy("blocks=L6.D.Q3.B.L10.T.U1 tie=first hidden=12"), kOnTheDataAxis, 1e-5);
}

TEST_CASE("in bf16 masters are the state, and frozen parameters what forward reads") {
  const Training work = toy("blocks=L6.L6f.D.Q3g.L10 tie=last frozen=last hidden=12");
  check_layouts(work, in("bf16", kOnTheDataAxis), 2e-2, /*frozen=*/8);
}

// Midway between two bf16 values, which a split master cannot always hold.
TEST_CASE("initial and copied weights are the same masters in one tensor and in two") {
  torch::manual_seed(3);
  const auto module = [](bool negative) {
    nn::Sequential made(nn::Linear(16, 16), nn::Linear(16, 2));
    for (const at::Tensor& weight : made->parameters()) {
      const at::NoGradGuard no_grad;
      weight.view(at::kInt).bitwise_and_(0x7FFF0000).bitwise_or_(0x8000);
      if (negative) weight.neg_();
    }
    return made;
  };
  const nn::Sequential initial = module(false), later = module(true);
  const auto settled = [](const nn::Sequential& weights) {
    std::vector<at::Tensor> all;
    for (const at::Tensor& weight : weights->parameters()) {
      all.push_back(weight.detach().clone());
      settle(all.back());
    }
    return all;
  };
  for (const std::string line :
       {"strategy=single", "strategy=zero3 data=2", "strategy=single offload=optimizer",
        "strategy=zero1 data=2 offload=optimizer offload_step=device"}) {
    INFO(line);
    const FuzzCase layout = parse_case(line + " dtype=bf16");
    play({.model = from_sequential(initial, squared_error),
          .mesh = layout.mesh,
          .parallel = layout.parallel,
          .optimizer = make_adamw({}),
          .seed = 5},
         [&](Player& player) {
           Strategy& strategy = player.strategy();
           const auto require_masters = [&](const std::vector<at::Tensor>& expected) {
             size_t i = 0;
             strategy.visit_parameters([&](const VisitedParameter& p) {
               test::require_bit_equal(p.value, expected[i++], p.block + "." + p.name);
             });
           };
           require_masters(settled(initial));
           copy_from(strategy, player.rank() == 0 ? later.get() : nullptr, player.world());
           require_masters(settled(later));
           WeightAverage average(strategy, 0.5);
           copy_from(strategy, player.rank() == 0 ? initial.get() : nullptr, player.world());
           {
             const WeightAverage::Swapped swapped(average);
             require_masters(settled(later));
           }
           require_masters(settled(initial));
         });
  }
}

TEST_CASE("pipelines say a tied parameter once under its owner's name") {
  check_layouts(
      toy("blocks=L6.D.C4f.B.L10.T.P.Q3 tie=first hidden=8"),
      {"strategy=ddp data=2", "strategy=ddp pipeline=2 data=2",
       "strategy=zero3 pipeline=3 data=2 pipeline_schedule=1f1b persistence_threshold=20",
       "strategy=fsdp data=4 shard_ranks=2",
       "strategy=zero2 pipeline=2 data=2 pipeline_schedule=interleaved pipeline_chunks=3",
       "strategy=zero1 pipeline=4 pipeline_schedule=1f1b offload=optimizer offload_step=host",
       "strategy=zero1 pipeline=2 data=2 offload=optimizer offload_step=device",
       "strategy=zero2 pipeline=2 data=2 offload=optimizer offload_step=host "
       "offload_device_bytes=1000",
       "strategy=single"},
      1e-5, /*frozen=*/4);
}

TEST_CASE("stages without anything to update count the steps of the others") {
  check_layouts(
      toy("blocks=P.L6f tie=none frozen=last"),
      {"strategy=zero1 pipeline=4 block_costs=1,1,1,1 offload=optimizer offload_step=host",
       "strategy=zero1 pipeline=4 block_costs=1,1,1,1 offload=optimizer "
       "offload_step=device",
       "strategy=zero3 pipeline=4 block_costs=1,1,1,1"},
      1e-5, /*frozen=*/7);
}

TEST_CASE("masters and moments move between precisions") {
  const Training work = toy("blocks=L6.D.Q3.L10.T tie=first");
  const std::vector<std::string> layouts{
      "strategy=zero3 data=2", "strategy=fsdp data=2 fsdp_unit_numel=200 dtype=bf16",
      "strategy=zero1 data=4 dtype=fp16 offload=optimizer", "strategy=ddp data=2"};
  Run before;
  train(layouts.back(), work, nullptr, before);
  for (const std::string& line : layouts) {
    INFO(line);
    Run moved;
    train(line, work, &before.stopped, moved);
    check_equal(moved.stopped.tensors(), before.stopped.tensors(), "moved");
    check_equal(moved.at_stop, before.at_stop, "moved");
    CHECK(std::abs(moved.losses[0] - before.losses[kStateStop]) <=
          3e-2 * before.losses[kStateStop]);
  }
}

TEST_CASE("another optimizer has another state: momentum, or nothing") {
  const std::vector<std::string> layouts{
      "strategy=zero3 data=2 persistence_threshold=20",
      "strategy=zero1 data=2 offload=optimizer offload_step=host dtype=bf16",
      "strategy=zero1 pipeline=2 offload=optimizer offload_step=device chunk_numel=50 "
      "dtype=bf16"};
  Training work = toy("blocks=L6.D.L10f.Q3 tie=first");
  work.optimizer = make_sgd({.momentum = 0.9, .weight_decay = 0.1, .nesterov = true});
  work.moments = {"momentum"};
  check_layouts(work, {layouts.begin() + 1, layouts.end()}, 2e-2, /*frozen=*/5);
  const std::vector<std::string> in_fp32{
      "strategy=zero3 data=2 persistence_threshold=20",
      "strategy=zero1 data=2 offload=optimizer offload_step=host",
      "strategy=zero2 pipeline=2 data=2 offload=optimizer offload_step=device chunk_numel=50",
      "strategy=fsdp data=2"};
  const auto check_moments = [&](const OptimizerFactory& optimizer,
                                 const std::set<std::string>& moments) {
    work.optimizer = optimizer;
    work.moments = moments;
    check_layouts(work, in_fp32, 1e-5, /*frozen=*/5);
  };
  check_moments(make_adamw({.weight_decay = 0.1, .adam_w_mode = false}), {"exp_avg", "exp_avg_sq"});
  check_moments(make_lion({.weight_decay = 0.1}), {"exp_avg"});
  check_moments(make_adagrad({.lr_decay = 0.1}), {"sum"});
  check_moments(make_from_torch<torch::optim::RMSprop>(
                    torch::optim::RMSpropOptions().momentum(0.9).weight_decay(0.1)),
                {"square_avg", "momentum_buffer"});
  work.optimizer = make_sgd({.weight_decay = 0.1});
  work.moments = {};
  check_layouts(work, {layouts.front(), "strategy=ddp data=2"}, 1e-5, /*frozen=*/5);
}

TEST_CASE("a state does not know of groups: it resumes them under other layouts") {
  Training work = toy("blocks=L6.D.C4.L10.T.Q3 tie=first hidden=8");
  ParameterGroup fast{.name = "fast", .matches = named("weight"), .lr_factor = 3};
  fast.betas = std::pair(0.7, 0.95);
  ParameterGroup decaying{.name = "decaying", .matches = named("bias"), .lr_factor = 0.5};
  decaying.weight_decay = 0.3;
  work.model = with_groups(work.model, {fast, decaying});
  check_layouts(
      work,
      {"strategy=ddp data=2", "strategy=zero3 data=4 persistence_threshold=20",
       "strategy=zero1 pipeline=2 data=2 offload=optimizer offload_step=host",
       "strategy=fsdp data=2 tensor=2 offload=optimizer offload_step=device chunk_numel=64",
       "strategy=zero2 pipeline=3", "strategy=single"},
      1e-5);
}

TEST_CASE("running statistics are those of the named rank, constant buffers everybody's") {
  torch::manual_seed(3);
  nn::Sequential module(nn::Linear(6, 5), nn::BatchNorm1d(5), Factor(), nn::Linear(5, 2));
  const Training work{
      from_sequential(module, squared_error, {.running_statistics_of_rank = 1}), [](uint64_t seed) {
        const auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
        return make_micro_batch(at::randn({8, 6}, generator) * 3 + 1, at::randn({8, 2}, generator));
      }};
  check_layouts(work,
                {"strategy=ddp data=2", "strategy=zero3 data=2 persistence_threshold=8",
                 "strategy=fsdp pipeline=2 data=2"},
                1e-5);
}

TEST_CASE("pieces of a tensor axis are slices: fused queries, keys and values, padded tables") {
  const auto config =
      sized({.vocabulary = 31, .hidden = 24, .heads = 4, .layers = 3, .inner = 48, .dropout = 0.1},
            LanguageModel::preset("gpt2-tiny").config());
  const Training work{causal(config), [](uint64_t seed) {
                        return toy_micro_batch({.vocabulary = 31}, 2, 5, seed);
                      }};
  const std::vector<std::string> layouts{
      "strategy=ddp data=2",
      "strategy=ddp tensor=2",
      "strategy=zero3 data=2 tensor=2 sequence_parallel=1 persistence_threshold=20",
      "strategy=zero1 pipeline=2 data=2 tensor=2 pipeline_schedule=1f1b",
      "strategy=single tensor=4 offload=optimizer offload_step=host",
      "strategy=zero2 pipeline=2 data=2 pipeline_vocabulary=shared",
      "strategy=fsdp data=2 tensor=2 shard_ranks=1 sequence_parallel=1",
      "strategy=single pipeline=3 pipeline_schedule=1f1b pipeline_vocabulary=shared",
      "strategy=single"};
  check_layouts(work, layouts, 1e-5);
  check_layouts(work, in("bf16", {layouts.begin(), layouts.begin() + 3}), 2e-2);
}
