// SPDX-License-Identifier: MIT
// The fuzzer must find defects, shrink cases, and report one line.
#include "lib/testing/fuzz.h"

#include <ATen/ATen.h>
#include <torch/optim/adamw.h>

#include <algorithm>

#include "lib/testing/oracle.h"
#include "tessera/backends/data_parallel/ddp.h"
#include "tessera/model/parameter_groups.h"
#include "tests/fuzz/dry_memory.h"
#include "tests/support/messages.hpp"
#include "tests/support/test.hpp"
#include "tests/support/toy_models.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

// Data parallelism with a defect that only some cases reveal.
class Forgetful : public Ddp {
 public:
  explicit Forgetful(Communicator& data) : Ddp({.strategy = "ddp"}, data) {}
  StepResult forward_backward(std::span<const MicroBatch> batches,
                              const BackwardOptions& options) override {
    const bool forgets = batches.size() > 2 && data().size() > 1;
    return Ddp::forward_backward(forgets ? batches.first(2) : batches, options);
  }
};

template <typename S>
FuzzSummary fuzz(int64_t cases) {
  FuzzOptions options{.seconds = 250, .cases = cases, .only_models = {"toy"}};
  options.largest = {.pipeline = 1, .data = 3, .tensor = 1};
  options.most_failures = 1;
  options.print = [](const std::string&) {};
  return fuzz_layouts(
      [](const DeviceMesh& mesh) -> std::unique_ptr<Strategy> {
        return std::make_unique<S>(mesh.axis(Axis::kData));
      },
      options);
}

class Plain : public Ddp {
 public:
  explicit Plain(Communicator& data) : Ddp({.strategy = "ddp"}, data) {}
};

// Exposes its moments, but loses what is written to them.
class ForgetsMoments : public Plain {
 public:
  using Plain::Plain;
  std::vector<StateTensor> state() override {
    std::vector<StateTensor> pieces = Plain::state();
    for (StateTensor& piece : pieces) {
      if (piece.kind == "exp_avg") piece.value = piece.value.clone();
    }
    return pieces;
  }
};

template <typename S>
FuzzSummary fuzz_line(const std::string& line) {
  FuzzOptions options{.line = line};
  options.print = [](const std::string&) {};
  return fuzz_layouts(
      [](const ParallelConfig&, const DeviceMesh& mesh) -> std::unique_ptr<Strategy> {
        return std::make_unique<S>(mesh.axis(Axis::kData));
      },
      options);
}

}  // namespace

TEST_CASE("a case survives its line, and a line that says nothing is the default") {
  CHECK(to_line({}).empty());
  FuzzCase c;
  c.blocks = "L6.Pf.D";
  c.mesh = {2, 3, 1};
  c.parallel.strategy = "fsdp";
  c.parallel.precision.reduce = at::kBFloat16;
  c.parallel.offload.step = OffloadStep::kDevice;
  c.parallel.pipeline.block_costs = {1, 0.25};
  c.parallel.recomputed_blocks = {0, 2};
  c.parallel.overlap = false;
  c.epsilon = 1e-3;
  c.resume = 1;
  c.then = {{1, 2, 3}, {.strategy = "zero1"}};
  c.then.parallel.pipeline.block_costs = {2};
  const std::string line = to_line(c);
  CHECK(to_line(parse_case(line)) == line);
  CHECK(parse_case(line).parallel.pipeline.block_costs == c.parallel.pipeline.block_costs);
  CHECK(parse_case(line).parallel.recomputed_blocks == c.parallel.recomputed_blocks);
  CHECK(error_of([] { parse_case("dta=2"); }) == "fuzz case: there is no field \"dta\"");
  CHECK(error_of([] { parse_case("data=two"); }) == "fuzz case: data=two has no meaning");
}

TEST_CASE("a strategy of a user's own that forgets a micro-batch is found and shrunk") {
  const FuzzSummary summary = fuzz<Forgetful>(30);
  REQUIRE(!summary.failures.empty());
  CHECK(!summary.good());
  const std::string& failure = summary.failures.front();
  INFO(failure);
  const size_t begin = failure.find('\'') + 1;
  const FuzzCase smallest = parse_case(failure.substr(begin, failure.find('\'', begin) - begin));
  CHECK(smallest.mesh.data == 2);
  CHECK(smallest.accumulation == 3);
  CHECK(smallest.steps == 1);
  CHECK(smallest.blocks == "-");
}

TEST_CASE("a run that goes on without its moments is found and shrunk to one that stops once") {
  const std::string line = "strategy=ddp data=2 accumulation=2 steps=4 resume=2 then.strategy=ddp";
  for (const std::string data : {"2", "1", "4"}) {
    INFO(data << " data ranks go on");
    CHECK(fuzz_line<Plain>(line + " then.data=" + data).good());
    const FuzzSummary summary = fuzz_line<ForgetsMoments>(line + " then.data=" + data);
    REQUIRE(summary.failures.size() == 1);
    INFO(summary.failures.front());
    CHECK(summary.failures.front().find("resumed: ") != std::string::npos);
    CHECK(summary.failures.front().find("steps=") == std::string::npos);  // the default: 2
    CHECK(summary.failures.front().find(" resume=1") != std::string::npos);
  }
  CHECK(fuzz_line<Plain>(line + " then.data=3").refused == 1);  // 4 micro-batches
}

TEST_CASE("a strategy of a user's own that keeps its promise holds") {
  const FuzzSummary summary = fuzz<Plain>(12);
  INFO(to_text(summary));
  CHECK(summary.good());
  CHECK(summary.held == 12);
}

FuzzSummary fuzz_every_strategy(const std::string& line) {
  FuzzOptions options{.line = line};
  options.print = [](const std::string&) {};
  options.check_memory = compare_with_dry_run;
  const FuzzStrategyFactory make = [](const ParallelConfig& config, const DeviceMesh& mesh) {
    return make_strategy(config, mesh);
  };
  return fuzz_layouts(make, options);
}

TEST_CASE("equal terms on a narrow wire have equal roundings") {  // 0.96 of the tolerance
  const FuzzSummary summary = fuzz_every_strategy(
      "model=modules blocks=L1.N.N.L3 vocabulary=5 data=3 strategy=zero3 reduce_dtype=fp16 steps=1 "
      "accumulation=4 rows=1 length=1 loss_scale=3 seed=82682");
  CHECK(summary.held == 1);
}

TEST_CASE("weights that no split master has begin one unit of the last place nearer to zero") {
  CHECK(fuzz_every_strategy("blocks=B.Q2 vocabulary=5 hidden=16 dtype=bf16 steps=1 rows=1 length=1 "
                            "seed=96454")
            .held == 1);
}

TEST_CASE("a plan keeps on the device the units that a run keeps, tied to the last block or not") {
  for (const std::string tie : {"first", "last"}) {
    CHECK(fuzz_every_strategy("blocks=Q1.Q2.C12.Q2.L6 vocabulary=101 hidden=12 offload=optimizer "
                              "offload_device_bytes=20000 steps=1 rows=1 length=1 tie=" +
                              tie)
              .held == 1);
  }
}

TEST_CASE("running statistics before everything that is trained, and behind it") {
  const std::string work = " steps=3 accumulation=2 evaluate=012 resume=1";
  const auto held = [&](const std::string& line) { return fuzz_every_strategy(line + work).held; };
  for (const std::string layout :
       {"strategy=ddp data=2 then.strategy=zero3", "strategy=zero2 data=2 recomputed_blocks=0,1,4",
        "strategy=fsdp data=2 gradient_checkpointing=1", "strategy=zero1 pipeline=2 data=2"}) {
    INFO(layout);
    CHECK(held("model=modules blocks=S.L6f.Bf.R.L3.B.D " + layout) == 1);
  }
  CHECK(held("model=modules blocks=B.L3 whole_module=1 strategy=zero2 data=2") == 1);
}

TEST_CASE("parameters that some micro-batches, ranks or steps do not use have a gradient of zero") {
  for (const std::string layout : {"strategy=ddp data=2", "strategy=zero2 data=3",
                                   "strategy=zero3 data=2", "strategy=fsdp data=2 pipeline=2"}) {
    for (const std::string accumulation : {"1", "3"}) {
      INFO(layout << " " << accumulation);
      CHECK(fuzz_every_strategy("blocks=V3.L6.V2.U4 steps=4 frozen=first " + layout +
                                " accumulation=" + accumulation)
                .held == 1);
    }
  }
}

TEST_CASE("a model of which nothing is trained is refused, as it must be") {
  const FuzzSummary summary = fuzz_every_strategy(
      "blocks=- tie=last frozen=last data=2 strategy=zero3 steps=1 rows=1 length=1");
  CHECK(summary.refused == 1);
  CHECK(summary.failures.empty());
}

TEST_CASE("values count where they do something, and the rare ones are named") {
  FuzzOptions options{
      .line = "blocks=L6.D tie=first strategy=zero3 prefetch_blocks=5 offload_threads=2"};
  options.print = [](const std::string&) {};
  const auto make = [](const ParallelConfig& config, const DeviceMesh& mesh) {
    return make_strategy(config, mesh);
  };
  const FuzzSummary summary = fuzz_layouts(make, options);
  INFO(to_text(summary));
  CHECK(summary.good());
  CHECK(summary.values.at("prefetch_blocks").at("5") == 1);
  CHECK(summary.values.at("toy blocks").at("D") == 1);
  CHECK(summary.values.at("offload_threads").at("2") == 0);  // nothing is offloaded
  CHECK(summary.values.at("overlap").at("1") == 0);          // nothing is sent
  const auto names = [&](int64_t least, const std::string& value) {
    const auto rare = summary.rarer_than(least);
    return std::find(rare.begin(), rare.end(), value) != rare.end();
  };
  CHECK(names(1, "overlap: 1 (0)"));
  CHECK(!names(1, "prefetch_blocks: 5 (1)"));
  CHECK(names(2, "prefetch_blocks: 5 (1)"));
}

TEST_CASE("the oracle takes the steps of torch's AdamW behind clipping") {
  const ToyConfig toy{.layers = 1, .tied = false};
  ParameterGroup fast{.name = "fast", .matches = named("down"), .lr_factor = 3};
  fast.weight_decay = 0.2;
  fast.betas = std::pair(0.7, 0.95);
  const ModelSpec model = with_groups(toy_language_model(toy), {fast});
  Oracle oracle(model, {.seed = 3, .adamw = {.weight_decay = 0.1}});
  std::vector<std::unique_ptr<Block>> blocks;
  std::vector<at::Tensor> with_decay, without, grouped, all;
  for (const BlockBuilder& builder : model.blocks) {
    blocks.push_back(builder.build({.seed = 3}));
    for (const Parameter& p : blocks.back()->parameters()) {
      (p.name.starts_with("down") ? grouped
       : p.weight_decay           ? with_decay
                                  : without)
          .push_back(p.tensor);
      all.push_back(p.tensor);
    }
  }
  auto options = torch::optim::AdamWOptions(1e-2).weight_decay(0.1);
  torch::optim::AdamW adamw({torch::optim::OptimizerParamGroup(with_decay)}, options);
  torch::optim::AdamW no_decay({torch::optim::OptimizerParamGroup(without)},
                               options.weight_decay(0));
  torch::optim::AdamW fast_ones(
      {torch::optim::OptimizerParamGroup(grouped)},
      torch::optim::AdamWOptions(3e-2).weight_decay(0.2).betas(std::tuple(0.7, 0.95)));
  for (uint64_t step = 0; step < 4; ++step) {
    const MicroBatch batch = toy_micro_batch(toy, 6, 5, step);
    at::Tensor hidden;
    for (const auto& block : blocks) hidden = block->forward(hidden, batch, {});
    const at::Tensor loss = hidden[0] / batch.target_count;
    for (at::Tensor& p : all) p.mutable_grad().reset();
    loss.backward();
    at::Tensor square = at::zeros({}, at::kDouble);
    for (const at::Tensor& p : all) square += p.grad().to(at::kDouble).square().sum();
    const double norm = square.sqrt().item<double>(), clip = std::min(1.0, 0.5 / (norm + 1e-6));
    for (at::Tensor& p : all) p.mutable_grad().mul_(clip);
    adamw.step();
    no_decay.step();
    fast_ones.step();
    // The global batch in two uneven parts on two ranks.
    const OracleReport report =
        oracle.train({{rows_of(batch, 0, 2)}, {rows_of(batch, 2, 4)}},
                     {.learning_rate = 1e-2, .loss_scale = 64, .max_norm = 0.5});
    CHECK(report.loss == Approx(loss.item<double>()).epsilon(1e-6));
    CHECK(report.norm == Approx(norm).epsilon(1e-6));
    CHECK(report.clip == Approx(clip).epsilon(1e-6));
    CHECK(report.clip < 1);
  }
  const auto values = oracle.by_name(oracle.parameters());
  size_t i = 0;
  for (const Oracle::FlatParameter& entry : oracle.entries()) {
    const at::Tensor& expected = all[i++];
    const double error = (values.at(entry.name) - expected).norm().item<double>();
    CHECK(error <= 2e-5 * expected.norm().item<double>());
  }
}
