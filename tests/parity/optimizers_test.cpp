// SPDX-License-Identifier: MIT
// Optimizers other than AdamW in every layout, compared with one rank. Unit tests compare them with
// LibTorch's numbers (tests/unit/optim/torch_optim_test.cpp).
#include <torch/optim/rmsprop.h>

#include "tessera/models/language_model.h"
#include "tessera/optim/adagrad.h"
#include "tessera/optim/from_torch.h"
#include "tessera/optim/lion.h"
#include "tessera/optim/sgd.h"
#include "tests/parity/rows.h"
#include "tests/support/sized.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

constexpr double kDecay = 0.1;

const std::pair<const char*, OptimizerFactory> kOptimizers[] = {
    {"Adam with L2", make_adamw({.weight_decay = kDecay, .adam_w_mode = false})},
    {"SGD", make_sgd({.momentum = 0.9, .weight_decay = kDecay, .nesterov = true})},
    {"Lion", make_lion({.weight_decay = kDecay})},
    {"Adagrad", make_adagrad({.lr_decay = 0.1, .weight_decay = kDecay})},
    {"RMSprop of torch", make_from_torch<torch::optim::RMSprop>(
                             torch::optim::RMSpropOptions().weight_decay(kDecay).centered(true))},
};

ParityRow row_of(const char* strategy, int pipeline, int data, int tensor) {
  ParityRow row{
      .ranks = pipeline * data * tensor, .accumulation = 2, .pipeline = pipeline, .tensor = tensor};
  row.parallel.strategy = strategy;
  return row;
}

std::vector<ParityRow> optimizer_layouts() {
  std::vector<ParityRow> rows = {row_of("zero1", 1, 2, 1), row_of("zero2", 1, 2, 1),
                                 row_of("zero3", 1, 2, 1), row_of("fsdp", 1, 2, 1),
                                 row_of("zero1", 2, 2, 1), row_of("zero2", 1, 1, 2)};
  for (OffloadStep step : {OffloadStep::kHost, OffloadStep::kDevice, OffloadStep::kBoth}) {
    ParityRow row = row_of("zero3", 1, 2, 1);
    row.parallel.offload = {
        .what = Offload::kOptimizerAndParameters, .step = step, .chunk_numel = 1000};
    rows.push_back(row);
  }
  return rows;
}

}  // namespace

TEST_CASE("every optimizer trains under every layout as on one rank") {
  const auto bloom = sized("bloom", {.vocabulary = 67, .hidden = 48, .heads = 6, .layers = 2});
  ParityWork work = token_work(causal(bloom), {.vocabulary = 67, .steps = 4});
  work.trainer.max_grad_norm = 0.01;
  for (const auto& [name, factory] : kOptimizers) {
    INFO(name);
    work.optimizer = factory;
    const RankRecord expected = single_run(work);
    for (const ParityRow& row : optimizer_layouts()) check_row(row, work, expected, 1e-5);
  }
}
