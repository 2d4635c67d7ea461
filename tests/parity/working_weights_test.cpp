// SPDX-License-Identifier: MIT
// 16-bit training computes with the rounded master weights: forward's reads are compared with them
// bit for bit, on every rank.
#include <ATen/ATen.h>

#include <map>

#include "tessera/comm/device_mesh.h"
#include "tessera/models/language_model.h"
#include "tessera/optim/adamw.h"
#include "tests/parity/parity.h"
#include "tests/support/ranks.hpp"
#include "tests/support/sized.h"
#include "tests/support/test.hpp"
#include "tests/support/toy_models.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

// "block.parameter" -> copies of the tensors that forward read on one rank.
using Reads = std::map<std::string, std::vector<Parameter>>;

class Watched final : public Block {
 public:
  Watched(std::unique_ptr<Block> inner, std::string name, std::shared_ptr<Reads> reads)
      : inner_(std::move(inner)), name_(std::move(name)), reads_(std::move(reads)) {}
  at::Tensor forward(const at::Tensor& hidden, const MicroBatch& batch,
                     const BlockContext& context) override {
    for (Parameter parameter : inner_->parameters()) {
      parameter.tensor = parameter.tensor.detach().clone();
      (*reads_)[name_ + "." + parameter.name].push_back(parameter);
    }
    return inner_->forward(hidden, batch, context);
  }
  std::vector<Parameter> parameters() override { return inner_->parameters(); }

 private:
  std::unique_ptr<Block> inner_;
  std::string name_;
  std::shared_ptr<Reads> reads_;
};

ModelSpec watched(ModelSpec model, const std::shared_ptr<Reads>& reads) {
  for (BlockBuilder& block : model.blocks) {
    block.build = [build = block.build, name = block.name, reads](const BuildContext& context) {
      return std::make_unique<Watched>(build(context), name, reads);
    };
  }
  return model;
}

Named masters_of(Strategy& strategy, const ModelSpec& model) {
  Named masters = parameters_of(strategy);
  for (const TiedParameter& tied : model.tied) {
    masters[tied.alias_block + "." + tied.alias_parameter] =
        masters.at(tied.owner_block + "." + tied.owner_parameter);
  }
  return masters;
}

// A tensor rank's shard of the whole parameter, without padding.
at::Tensor own_slice(const at::Tensor& whole, const TensorShard& shard, const Communicator& axis) {
  if (shard.replicated()) return whole;
  const at::Tensor parts = whole.unflatten(shard.dim, {shard.parts, shard.full_size / shard.parts});
  const int64_t numel = parts.size(shard.dim + 1);
  const int64_t slice = (numel + axis.size() - 1) / axis.size(), begin = slice * axis.rank();
  return parts.narrow(shard.dim + 1, begin, std::min(slice, numel - begin))
      .flatten(shard.dim, shard.dim + 1);
}

void require_rounded(const Reads& reads, const Named& masters, at::ScalarType dtype,
                     const Communicator& tensor, const std::string& when) {
  test::require(!reads.empty(), when, ": nothing was read");
  for (const auto& [name, parameters] : reads) {
    for (const Parameter& parameter : parameters) {
      const TensorShard& shard = parameter.placement.shard;
      const at::Tensor expected = own_slice(masters.at(name), shard, tensor).to(dtype);
      at::Tensor value = parameter.tensor;
      if (!shard.replicated()) value = value.narrow(shard.dim, 0, expected.size(shard.dim));
      test::require_bit_equal(value, expected, name + " " + when);
    }
  }
}

// Four steps, the third of which is skipped. After each an evaluation, whose reads come first, then
// a visit of the masters; the next step starts from them too.
void check_row(const ParityRow& row, const ModelSpec& model = toy_language_model()) {
  const at::ScalarType dtype = row.parallel.precision.parameter;
  test::run_ranks(row.ranks, [&](Communicator& comm) {
    const auto reads = std::make_shared<Reads>();
    const Player player(comm, {watched(model, reads), row.mesh(), row.parallel});
    const Communicator& tensor = player.mesh().axis(Axis::kTensor);
    Strategy& strategy = player.strategy();
    Named masters = masters_of(strategy, model);
    for (int step = 0; step < 4; ++step) {
      const auto share = static_cast<uint64_t>(player.data_rank() + 10 * step);
      const std::vector<MicroBatch> batches{toy_micro_batch({}, 2, 5, 2 * share),
                                            toy_micro_batch({}, 2, 5, 2 * share + 1)};
      reads->clear();
      strategy.forward_backward(batches);
      require_rounded(*reads, masters, dtype, tensor, concat("in step ", step));
      strategy.optimizer_step(1e-2, at::full({}, step == 2 ? 1.0 : 0.0, at::kFloat));
      reads->clear();
      strategy.evaluate(batches);
      const Reads evaluated = *reads;
      const Named after = masters_of(strategy, model);
      require_rounded(evaluated, after, dtype, tensor, concat("after step ", step));
      for (const auto& [name, value] : after) {
        test::require(value.equal(masters.at(name)) == (step == 2), name, " in step ", step);
      }
      masters = after;
    }
  });
}

const std::vector<std::string> kStrategies = {"single", "ddp", "zero1", "zero2", "zero3", "fsdp"};

ParityRow row_of(const std::string& strategy, at::ScalarType dtype, int stages = 1) {
  ParityRow row{.ranks = strategy == "single" ? stages : 2 * stages, .pipeline = stages};
  row.parallel.strategy = strategy;
  row.parallel.precision.parameter = dtype;
  row.parallel.persistence_threshold = 20;  // norms and biases stay unsharded
  return row;
}

}  // namespace

TEST_CASE("forward reads the rounded masters under every strategy") {
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    for (const auto& strategy : kStrategies) {
      for (int variant = 0; variant < 5; ++variant) {
        ParityRow row = row_of(strategy, dtype);
        const bool fsdp = strategy == "fsdp";
        if (variant == 1) row.parallel.precision.gradient = at::kFloat;
        if (variant == 2) row.parallel.gradient_checkpointing = true;
        if (variant == 3) row.parallel.overlap = false;
        if (variant == 4 && fsdp) {
          row.parallel.unit_numel = 600;
          row.parallel.reshard_after_forward = false;
        }
        if (variant == 4 && !fsdp) row.parallel.prefetch_blocks = 3;
        INFO(row.name());
        check_row(row);
      }
    }
  }
  for (const int groups : {1, 2}) {
    ParityRow row = row_of("fsdp", at::kBFloat16);
    row.ranks = 4;
    row.parallel.shard_ranks = groups;
    INFO(row.name());
    check_row(row);
  }
}

TEST_CASE("forward reads the rounded masters that are offloaded") {
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    for (const auto& strategy : kStrategies) {
      if (strategy == "ddp") continue;
      for (const auto what : {Offload::kOptimizer, Offload::kOptimizerAndParameters}) {
        const bool keeps_shards = strategy == "zero3" || strategy == "fsdp";
        if (what == Offload::kOptimizerAndParameters && !keeps_shards) continue;
        for (const auto step : {OffloadStep::kHost, OffloadStep::kDevice}) {
          ParityRow row = row_of(strategy, dtype);
          row.parallel.offload = {.what = what, .step = step, .threads = 1, .chunk_numel = 100};
          INFO(row.name());
          check_row(row);
        }
      }
    }
  }
}

TEST_CASE("forward reads the rounded masters on every stage of a pipeline") {
  for (const auto& strategy : kStrategies) {
    ParityRow row = row_of(strategy, at::kBFloat16, 2);
    for (const std::string schedule : {"gpipe", "1f1b"}) {
      row.parallel.pipeline.schedule = schedule;
      INFO(row.name());
      check_row(row);
    }
  }
}

TEST_CASE("forward reads its slices of the rounded masters on a tensor axis") {
  const auto config = sized(
      "bloom", {.vocabulary = 31, .hidden = 24, .heads = 4, .layers = 1, .initializer_range = 0.1});
  for (const auto& strategy : kStrategies) {
    ParityRow row = row_of(strategy, at::kBFloat16);
    row.tensor = 2;
    row.ranks *= 2;
    INFO(row.name());
    check_row(row, causal(config));
  }
}
