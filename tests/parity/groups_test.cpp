// SPDX-License-Identifier: MIT
// Parameter groups and decay rules in every layout, compared with one rank.
#include <cmath>
#include <map>
#include <mutex>

#include "tessera/model/parameter_groups.h"
#include "tessera/models/language_model.h"
#include "tessera/optim/adamw.h"
#include "tests/parity/rows.h"
#include "tests/support/plain_models.h"
#include "tests/support/sized.h"
#include "tests/support/toy_models.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

ParameterGroup group(const std::string& part, double lr_factor) {
  return {.name = part, .matches = named(part), .lr_factor = lr_factor};
}

// Blocks of the toy: embedding, layer.0 .. layer.3, head (tied to the embedding).
ModelSpec grouped_toy() {
  ParameterGroup decaying = group("layer.1", 1);
  decaying.weight_decay = 0.5;
  ParameterGroup slow = group("up.bias", 0.25);
  slow.matches = [](const std::string& block, const std::string& parameter, at::IntArrayRef) {
    return parameter == "up.bias" && block != "layer.1";
  };
  slow.betas = std::pair(0.5, 0.9);
  ParameterGroup still = group("layer.2.down.weight", 1);
  still.frozen = true;
  return with_groups(with_decay(toy_language_model({.layers = 4}), DecayRule::kAll),
                     {decaying, slow, group("embedding", 4), still});
}

std::vector<ParityRow> layouts() {
  std::vector<ParityRow> rows =
      rows_of_strategies(/*persistence_threshold=*/20, /*checkpointing_in_stages=*/false);
  for (OffloadStep step : {OffloadStep::kHost, OffloadStep::kDevice, OffloadStep::kBoth}) {
    for (Offload what : {Offload::kOptimizer, Offload::kOptimizerAndParameters}) {
      ParityRow row{.ranks = 2, .accumulation = 2};
      row.parallel.strategy = "zero3";
      row.parallel.offload = {.what = what, .step = step, .chunk_numel = 100};
      rows.push_back(row);
    }
  }
  return rows;
}

// A parameter as optimizers saw it: whole shape, and values piece by piece.
struct Told {
  std::vector<int64_t> shape;
  at::Tensor values;  // flat; NaN where nothing was seen
};

class ToldByName {
 public:
  void add(const OptimizerRange& range) {
    const std::lock_guard lock(mutex_);
    for (const RangePiece& piece : pieces_of(range)) {
      Told& told = told_[piece.parameter.name];
      told.shape = piece.parameter.shape;
      if (!told.values.defined()) {
        told.values = at::full({piece.parameter.numel}, std::nan(""), at::kFloat);
      }
      told.values.narrow(0, piece.offset, piece.numel)
          .copy_(range.parameter.narrow(0, piece.begin, piece.numel));
    }
  }
  const std::map<std::string, Told>& all() const { return told_; }

 private:
  std::mutex mutex_;
  std::map<std::string, Told> told_;
};

// Records its ranges before updating them.
class Noting : public Optimizer {
 public:
  Noting(const std::vector<OptimizerRange>& ranges, ToldByName& told)
      : ranges_(ranges), told_(told), optimizer_(make_adamw({})(ranges)) {}
  size_t range_count() const override { return ranges_.size(); }
  void begin_step(const StepScalars& scalars) override { optimizer_->begin_step(scalars); }
  void update(size_t first, size_t count) override {
    for (size_t i = first; i < first + count; ++i) told_.add(ranges_[i]);
    optimizer_->update(first, count);
  }
  void update(std::span<const ExternalRange> ranges) const override {
    for (const ExternalRange& range : ranges) told_.add(range.range);
    std::as_const(*optimizer_).update(ranges);
  }
  std::vector<std::string> state_names() const override { return optimizer_->state_names(); }
  NamedTensors state(size_t range) const override { return optimizer_->state(range); }
  at::Tensor step_count() const override { return optimizer_->step_count(); }
  int64_t state_bytes() const override { return optimizer_->state_bytes(); }

 private:
  const std::vector<OptimizerRange> ranges_;
  ToldByName& told_;
  const std::unique_ptr<Optimizer> optimizer_;
};

}  // namespace

TEST_CASE("optimizers are told which pieces of which parameters they update") {
  ParityWork work = token_work(grouped_toy(), {.rows = 24, .steps = 1});
  for (const ParityRow& row : layouts()) {
    INFO(row.name());
    ToldByName told;
    work.optimizer = [&](const std::vector<OptimizerRange>& ranges) {
      return std::make_unique<Noting>(ranges, told);
    };
    const Named initial = run_on_threads(row, work, /*visits=*/true).front().initial;
    CHECK(told.all().size() + 1 == initial.size());  // one parameter is frozen
    for (const auto& [name, parameter] : told.all()) {
      INFO(name);
      const at::Tensor& expected = initial.at(name);
      CHECK(parameter.shape == expected.sizes().vec());
      CHECK(parameter.values.equal(expected.flatten()));
    }
  }
}

TEST_CASE("groups with rates, decays and betas of their own train as on one rank") {
  ParityWork work = token_work(grouped_toy(), {.rows = 24, .steps = 4});
  work.trainer.max_grad_norm = 0.01;
  const RankRecord expected = reference(work);
  check_row({}, work, expected, 1e-5);
  for (const ParityRow& row : layouts()) check_row(row, work, expected, 1e-5);
  in_16_bit(work, 2, [](at::ScalarType dtype, const ParityWork& sixteen) {
    for (ParityRow row : layouts()) {
      row.parallel.precision = {.parameter = dtype};
      check_16_bit_row(row, sixteen);
    }
  });
}

TEST_CASE("groups count on a tensor axis, of whole shapes, and with shared ends") {
  const auto bloom = sized("bloom", {.vocabulary = 67, .hidden = 48, .heads = 6, .layers = 3});
  ParameterGroup wide{.name = "wide", .lr_factor = 0.5};
  wide.matches = [](const std::string&, const std::string&, at::IntArrayRef shape) {
    return shape.size() == 2 && shape[0] == 4 * 48;
  };
  wide.weight_decay = 0.3;
  ParityWork work = token_work(with_groups(causal(bloom), {wide, group("word_embeddings", 2)}),
                               {.vocabulary = 67, .steps = 3}, plain_bloom(bloom));
  work.trainer.max_grad_norm = 0.01;
  const RankRecord expected = reference(work);
  for (const auto& [pipeline, data, tensor] :
       {std::tuple(1, 2, 1), std::tuple(1, 1, 2), std::tuple(1, 2, 3), std::tuple(2, 2, 1)}) {
    ParityRow row{.ranks = pipeline * data * tensor,
                  .accumulation = 2,
                  .pipeline = pipeline,
                  .tensor = tensor};
    row.parallel.strategy = "zero2";
    row.parallel.sequence_parallel = tensor > 1;
    row.parallel.pipeline.shared_vocabulary = pipeline > 1;
    check_row(row, work, expected, 1e-5);
  }
}
