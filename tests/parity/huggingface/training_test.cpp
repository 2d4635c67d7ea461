// SPDX-License-Identifier: MIT
// Training steps agree with torch.optim.AdamW on transformers' model, in every strategy.
#include <ATen/ATen.h>

#include <cmath>
#include <cstdlib>

#include "tessera/checkpoint/huggingface.h"
#include "tests/parity/huggingface/fixtures.h"
#include "tests/parity/parity.h"
#include "tests/support/ranks.hpp"
#include "tests/support/test.hpp"

using namespace tessera;
using namespace tessera::testing;

namespace {

// Every step has 12 rows, from all at once down to one row per micro-batch. With three
// micro-batches, blocks are recomputed.
std::vector<ParityRow> rows_for(const Fixture& fixture, int tensor, bool all) {
  std::vector<ParityRow> rows;
  auto add = [&](const std::string& strategy, const ParityRow& shape) {
    rows.push_back(shape);
    rows.back().parallel = {.strategy = strategy, .persistence_threshold = 100};
    rows.back().parallel.gradient_checkpointing = shape.accumulation == 3;
  };
  add("single", {});
  add("zero3", {.ranks = 3});
  add("fsdp", {.ranks = 4, .accumulation = 3});
  add("single", {.ranks = 2, .accumulation = 4, .pipeline = 2});
  // 42 tokens: two ranks divide them inside a row.
  add("single", {.ranks = tensor, .accumulation = 4, .tensor = tensor});
  rows.back().parallel.sequence_parallel = true;
  if (fixture.head == ModelHead::kCausal) {
    add("ddp", {.ranks = 2, .accumulation = 3, .context = 2});
    rows.back().parallel.context_attention = ContextAttention::kKeys;
    add("zero3", {.ranks = 4, .accumulation = 4, .context = 4});
    if (fixture.config().key_head_count() % 2 == 0) {
      add("fsdp", {.ranks = 4, .accumulation = 2, .context = 2});
      rows.back().parallel.context_attention = ContextAttention::kHeads;
    }
  }
  if (!all) return rows;
  add("single", {.accumulation = 3});
  add("single", {.accumulation = 12});
  for (const std::string strategy : {"ddp", "zero2", "fsdp"}) {
    add(strategy, {.ranks = 2, .accumulation = 6});
  }
  for (const std::string strategy : {"ddp", "zero1", "zero3"}) {
    add(strategy, {.ranks = 4, .accumulation = 3});
  }
  add("single", {.ranks = 3, .accumulation = 6, .pipeline = 3});
  add("zero1", {.ranks = 4, .accumulation = 3, .pipeline = 2});
  add("zero3", {.ranks = 4, .accumulation = 2, .pipeline = 2});
  rows.back().parallel.pipeline.schedule = "gpipe";
  add("zero3", {.ranks = 4, .accumulation = 2, .pipeline = 2});
  rows.back().parallel.pipeline.shared_vocabulary = true;
  add("single", {.ranks = tensor, .accumulation = 3, .tensor = tensor});
  for (const std::string strategy : {"zero1", "zero3", "fsdp"}) {
    add(strategy, {.ranks = 2 * tensor, .accumulation = 2, .tensor = tensor});
  }
  add("zero2", {.ranks = 4 * tensor, .accumulation = 3, .pipeline = 2, .tensor = tensor});
  rows.back().parallel.sequence_parallel = true;
  return rows;
}

struct WorstDifference {
  double loss = 0, grad_norm = 0, final_parameters = 0, evaluation = 0;
};

void require_close(double actual, double expected, double tolerance, const std::string& what,
                   double& worst) {
  const double relative = std::abs(actual - expected) / std::max(std::abs(expected), 1e-12);
  worst = std::max(worst, relative);
  test::require(relative <= tolerance, what, " is ", actual, ", transformers has ", expected);
}

void require_same_training(const RankRecord& result, const Fixture& fixture,
                           const TensorSource& source, const Json& expected,
                           WorstDifference& worst) {
  const auto loss = numbers(expected.at("loss")), norm = numbers(expected.at("grad_norm"));
  test::require(result.steps.size() == loss.size(), result.steps.size(), " steps were made");
  for (size_t i = 0; i < loss.size(); ++i) {
    require_close(result.steps[i].loss, loss[i], 2e-5, concat("loss of step ", i + 1), worst.loss);
    require_close(result.steps[i].norm, norm[i], 2e-4, concat("gradient norm of step ", i + 1),
                  worst.grad_norm);
  }
  // Evaluates the first batch with the trained model.
  require_close(result.evaluations.back().loss, expected.at("eval_loss").as_double(), 2e-5,
                "evaluation loss", worst.evaluation);
  const auto correct = expected.find("eval_correct");
  test::require(correct.has_value() == (fixture.head == ModelHead::kClassification),
                "classifiers say how many rows are predicted correctly");
  if (correct) {
    const std::vector<double>& counters = result.evaluations.back().counters;
    test::require(!counters.empty() && counters[0] == correct->as_double(),
                  "correct predictions, transformers has ", correct->as_double());
  }
  const auto final = expected.at("final").members();
  test::require(final.size() == result.final.size(), result.final.size(), " parameters");
  for (const auto& [key, value] : result.final) {
    const std::string name = checkpoint_name(fixture.model, key);
    const Json numbers = expected.at("final").at(name);
    const at::Tensor after = without_key_bias(name, value.to(at::kDouble), fixture.config().heads);
    const at::Tensor change =
        after - without_key_bias(name, source.read(name, value.sizes()).to(at::kDouble),
                                 fixture.config().heads);
    const at::Tensor probe = at::arange(change.numel(), at::kDouble).cos();
    const double size = numbers.at("change").as_double();
    require_close(after.norm().item<double>(), numbers.at("norm").as_double(), 1e-5,
                  "norm of " + name, worst.final_parameters);
    require_close(change.norm().item<double>(), size, 2e-4, "change of " + name,
                  worst.final_parameters);
    const double probed = (change * probe).sum().item<double>();
    test::require(std::abs(probed - numbers.at("probe").as_double()) <= 1e-3 * size, "probe of ",
                  name, " is ", probed, ", transformers has ", numbers.at("probe").as_double());
  }
}

ParityWork training_of(const Fixture& fixture, const TensorSource& source, const Json& expected) {
  const Json training = expected.at("training");
  ParityWork work{.model = fixture.model, .global_batches = fixture_batches(fixture)};
  work.source = &source;
  work.weight_decay = training.at("weight_decay").as_double();
  work.trainer.max_grad_norm = training.at("max_grad_norm").as_double();
  work.trainer.schedule = {.peak = training.at("learning_rate").as_double(),
                           .warmup_steps = training.at("warmup_steps").as_int64(),
                           .total_steps = static_cast<int64_t>(work.global_batches.size())};
  return work;
}

void check_rows(const std::string& name, const std::vector<ParityRow>& rows, const ParityWork& work,
                const Fixture& fixture, const Json& expected) {
  WorstDifference worst;
  for (const ParityRow& row : rows) {
    INFO(name << " " << row.name());
    test::run_ranks(row.ranks, [&](Communicator& comm) {
      const RankRecord result = run_parity(comm, row, work);
      if (comm.rank() == 0) require_same_training(result, fixture, *work.source, expected, worst);
    });
  }
  std::cout << name << ": " << rows.size()
            << " layouts against transformers, worst relative difference: loss " << worst.loss
            << ", gradient norm " << worst.grad_norm << ", final parameters "
            << worst.final_parameters << ", evaluation " << worst.evaluation << "\n";
}

// all_rows: forced by TESSERA_WHOLE_MATRIX, as in the nightly run.
void check_fixture(const std::string& name, bool all_rows) {
  all_rows = all_rows || std::getenv("TESSERA_WHOLE_MATRIX") != nullptr;
  const Fixture fixture = load_fixture(name);
  const HuggingFaceDirectory source(fixture.directory);
  const Json expected = expected_numbers(fixture);
  const int64_t divisor = fixture.model.tensor_divisor;  // 0: no tensor axis
  std::vector<ParityRow> rows = rows_for(fixture, divisor % 2 == 0 ? 2 : 3, all_rows);
  std::erase_if(rows, [&](const ParityRow& row) {
    if (divisor == 0 && row.tensor > 1) return true;
    return row.parallel.pipeline.shared_vocabulary &&
           (fixture.head == ModelHead::kClassification || fixture.config().layers < row.pipeline);
  });
  check_rows(name, rows, training_of(fixture, source, expected), fixture, expected);
}

// Micro-batches of 3 rows, whatever the layout: the balance loss depends on them.
void check_balanced(const std::string& name) {
  Fixture fixture = load_fixture(name);
  fixture.language_model.config().router_z_loss_coef = 0.02;  // make_fixtures.py's Z_FACTOR
  fixture.model = fixture.language_model.make_causal();
  std::vector<ParityRow> rows;
  const auto add = [&](const std::string& strategy, const ParityRow& shape) {
    rows.push_back(shape);
    rows.back().parallel.strategy = strategy;
    rows.back().parallel.persistence_threshold = 100;
  };
  add("single", {.accumulation = 4});
  add("single", {.accumulation = 4});
  rows.back().parallel.gradient_checkpointing = true;
  add("ddp", {.ranks = 2, .accumulation = 2});
  add("zero1", {.ranks = 2, .accumulation = 2});
  add("zero2", {.ranks = 4});
  add("zero3", {.ranks = 4});
  rows.back().parallel.gradient_checkpointing = true;
  add("fsdp", {.ranks = 2, .accumulation = 2});
  for (const std::string schedule : {"gpipe", "1f1b"}) {
    add("single", {.ranks = 2, .accumulation = 4, .pipeline = 2});
    rows.back().parallel.pipeline.schedule = schedule;
    rows.back().parallel.gradient_checkpointing = schedule == "gpipe";
  }
  add("single", {.ranks = 3, .accumulation = 4, .pipeline = 3});
  add("zero1", {.ranks = 4, .accumulation = 2, .pipeline = 2});
  for (const ContextAttention attention : {ContextAttention::kKeys, ContextAttention::kHeads}) {
    add("ddp", {.ranks = 4, .accumulation = 2, .context = 2});
    rows.back().parallel.context_attention = attention;
  }
  add("zero3", {.ranks = 4, .accumulation = 4, .context = 4});
  add("ddp", {.ranks = 4, .accumulation = 4, .pipeline = 2, .context = 2});
  add("zero3", {.ranks = 4, .accumulation = 2, .pipeline = 2});
  rows.back().parallel.pipeline.shared_vocabulary = true;
  for (const bool sequence_parallel : {false, true}) {
    add("single", {.ranks = 2, .accumulation = 4, .tensor = 2});
    rows.back().parallel.sequence_parallel = sequence_parallel;
    rows.back().parallel.gradient_checkpointing = sequence_parallel;
    add("zero3", {.ranks = 4, .accumulation = 2, .tensor = 2});
    rows.back().parallel.sequence_parallel = sequence_parallel;
    add("single", {.ranks = 4, .accumulation = 4, .pipeline = 2, .tensor = 2});
    rows.back().parallel.sequence_parallel = sequence_parallel;
  }
  add("ddp", {.ranks = 4, .accumulation = 4, .tensor = 2, .context = 2});
  const HuggingFaceDirectory source(fixture.directory);
  const Json expected = expected_numbers(fixture);
  check_rows(name, rows, training_of(fixture, source, expected), fixture, expected);
}

}  // namespace

TEST_CASE("BLOOM trains as in transformers under every strategy, 1-12 ranks, ragged") {
  check_fixture("causal", /*all_rows=*/true);
  check_fixture("classification", /*all_rows=*/false);
}

TEST_CASE("GPT-2 trains as in transformers under every strategy, 1-12 ranks, ragged") {
  check_fixture("gpt2", /*all_rows=*/true);
  check_fixture("gpt2_classification", /*all_rows=*/false);
  check_fixture("gpt2_gelu", /*all_rows=*/false);
}

TEST_CASE("Llama trains as in transformers under every strategy, 1-12 ranks, ragged") {
  check_fixture("llama", /*all_rows=*/true);
  check_fixture("llama_tied", /*all_rows=*/false);
  check_fixture("llama_classification", /*all_rows=*/false);
}

TEST_CASE("Mistral trains as in transformers under every kind of layout, in windows and without") {
  check_fixture("mistral", /*all_rows=*/false);
  check_fixture("mistral_classification", /*all_rows=*/false);
}

TEST_CASE("mixtures of experts train as in transformers under every kind of layout") {
  check_fixture("qwen3_moe", /*all_rows=*/false);
  check_fixture("olmoe", /*all_rows=*/false);
  check_fixture("mixtral", /*all_rows=*/false);
  check_fixture("gpt_oss", /*all_rows=*/false);
  check_fixture("qwen2_moe", /*all_rows=*/false);
  check_fixture("glm4_moe", /*all_rows=*/false);
}

TEST_CASE("the bias of routing by sigmoids stays as it was loaded, in fp32") {
  const Fixture fixture = load_fixture("glm4_moe");
  const HuggingFaceDirectory source(fixture.directory);
  ParityWork work = training_of(fixture, source, expected_numbers(fixture));
  work.global_batches.resize(2);
  for (const ParityRow& shape :
       {ParityRow{.ranks = 2}, ParityRow{.ranks = 2, .accumulation = 2, .pipeline = 2},
        ParityRow{.ranks = 2, .tensor = 2}}) {
    ParityRow row = shape;
    row.parallel.precision.parameter = at::kBFloat16;
    row.parallel.strategy = row.pipeline * row.tensor > 1 ? "single" : "zero3";
    INFO(row.name());
    const std::vector<RankRecord> records = run_on_threads(row, work, /*visits=*/true);
    const Named& buffers = records.front().steps.back().buffers;
    CHECK(buffers.size() == 2);
    for (const auto& [key, value] : buffers) {
      CHECK(value.scalar_type() == at::kFloat);
      CHECK(value.equal(source.read(checkpoint_name(fixture.model, key), value.sizes())));
    }
  }
}

TEST_CASE("routers' losses are transformers' in every layout, of micro-batches with padding") {
  check_balanced("qwen3_moe_balanced");
}

TEST_CASE("Qwen trains as in transformers under every kind of layout") {
  check_fixture("qwen2", /*all_rows=*/false);
  check_fixture("qwen2_tied", /*all_rows=*/false);
  check_fixture("qwen3", /*all_rows=*/false);
  check_fixture("qwen3_classification", /*all_rows=*/false);
}
