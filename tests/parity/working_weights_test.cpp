// 16-bit training computes with the rounded master weights: what forward reads is compared with
// them bit for bit, on every rank.
#include <ATen/ATen.h>

#include <map>

#include "tessera/comm/device_mesh.h"
#include "tessera/optim/adamw.h"
#include "tests/parity/parity.h"
#include "tests/support/ranks.hpp"
#include "tests/support/test.hpp"
#include "tests/support/toy_models.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

// "block.parameter" -> copies of what forward read, of one rank.
using Reads = std::map<std::string, std::vector<at::Tensor>>;

class Watched final : public Block {
 public:
  Watched(std::unique_ptr<Block> inner, std::string name, std::shared_ptr<Reads> reads)
      : inner_(std::move(inner)), name_(std::move(name)), reads_(std::move(reads)) {}
  at::Tensor forward(const at::Tensor& hidden, const MicroBatch& batch) override {
    for (const Parameter& parameter : inner_->parameters()) {
      (*reads_)[name_ + "." + parameter.name].push_back(parameter.tensor.detach().clone());
    }
    return inner_->forward(hidden, batch);
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

using Masters = std::map<std::string, at::Tensor>;

Masters masters_of(Strategy& strategy) {
  Masters masters;
  strategy.visit_parameters(
      [&](const VisitedParameter& p) { masters[p.block + "." + p.name] = p.value.clone(); });
  if (masters.contains("embedding.weight")) masters["head.weight"] = masters["embedding.weight"];
  return masters;
}

void require_rounded(const Reads& reads, const Masters& masters, at::ScalarType dtype,
                     const std::string& when) {
  test::require(!reads.empty(), when, ": nothing was read");
  for (const auto& [name, values] : reads) {
    for (const at::Tensor& value : values) {
      test::require_bit_equal(value, masters.at(name).to(dtype), name + " " + when);
    }
  }
}

// Four steps, the third of which is skipped; after each an evaluation, whose reads come first, then
// the masters are visited. The next step starts with them as well.
void check_row(const ParityRow& row) {
  const at::ScalarType dtype = row.parallel.precision.parameter;
  test::run_ranks(row.ranks, [&](Communicator& comm) {
    DeviceMesh mesh(comm, {.pipeline = row.pipeline, .data = row.data()});
    const auto reads = std::make_shared<Reads>();
    const auto strategy = make_strategy(row.parallel, mesh);
    strategy->attach(watched(toy_language_model(), reads), {.seed = 7}, make_adamw({}));
    Masters masters = masters_of(*strategy);
    for (int step = 0; step < 4; ++step) {
      const auto share = static_cast<uint64_t>(mesh.coordinate(Axis::kData) + 10 * step);
      const std::vector<MicroBatch> batches{toy_micro_batch({}, 2, 5, 2 * share),
                                            toy_micro_batch({}, 2, 5, 2 * share + 1)};
      reads->clear();
      strategy->forward_backward(batches);
      require_rounded(*reads, masters, dtype, concat("in step ", step));
      strategy->optimizer_step(1e-2, at::full({}, step == 2 ? 1.0 : 0.0, at::kFloat));
      reads->clear();
      strategy->evaluate(batches);
      const Reads evaluated = *reads;
      const Masters after = masters_of(*strategy);
      require_rounded(evaluated, after, dtype, concat("after step ", step));
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
  row.parallel.persistence_threshold = 20;  // norms and biases stay in full
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
