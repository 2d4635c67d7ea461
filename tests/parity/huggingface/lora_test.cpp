// SPDX-License-Identifier: MIT
// Adapters made by peft train as in peft, in every strategy; merged, they give its logits.
#include "tessera/model/lora.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>

#include "lib/checkpoint/expert_files.h"
#include "lib/model/expert_names.h"
#include "lib/tools/checkpoint/merge_adapter.h"
#include "tessera/checkpoint/adapter.h"
#include "tessera/model/whole_model.h"
#include "tests/parity/huggingface/fixtures.h"
#include "tests/parity/parity.h"
#include "tests/support/messages.hpp"
#include "tests/support/ranks.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/support/test.hpp"

using namespace tessera;
using namespace tessera::testing;

namespace {

struct Adapted {
  Fixture base;
  std::string directory;
  std::unique_ptr<HuggingFaceDirectory> weights;
  std::shared_ptr<const AdapterDirectory> adapter;
  ModelSpec model;
};

Adapted load_adapted(const std::string& name) {
  Adapted adapted;
  adapted.directory = fixture_path("lora/" + name);
  const Json config = Json::parse_file(adapted.directory + "/adapter_config.json");
  adapted.base = load_fixture(config.at("base_model_name_or_path").as_string());
  adapted.weights = std::make_unique<HuggingFaceDirectory>(adapted.base.directory);
  adapted.adapter = std::make_shared<const AdapterDirectory>(adapted.directory);
  adapted.model = add_lora(adapted.base.model, adapted.adapter->config().rule, adapted.adapter);
  adapted.adapter->check_fits(adapted.model);
  return adapted;
}

std::vector<ParityRow> layouts(int tensor, bool all) {
  std::vector<ParityRow> rows;
  auto add = [&](const std::string& strategy, const ParityRow& shape) -> ParallelConfig& {
    rows.push_back(shape);
    rows.back().parallel = {.strategy = strategy, .persistence_threshold = 100};
    rows.back().parallel.gradient_checkpointing = shape.accumulation == 3;
    return rows.back().parallel;
  };
  add("single", {});
  add("zero3", {.ranks = 2, .accumulation = 3});
  if (tensor > 1) add("single", {.ranks = tensor, .tensor = tensor}).sequence_parallel = true;
  if (!all) return rows;
  for (const char* strategy : {"ddp", "zero1", "zero2", "fsdp"}) {
    add(strategy, {.ranks = 3, .accumulation = 2});
  }
  add("zero3", {.ranks = 2}).offload = {.what = Offload::kOptimizerAndParameters};
  add("zero1", {.ranks = 2}).offload = {.what = Offload::kOptimizer};
  add("single", {.ranks = 2, .accumulation = 4, .pipeline = 2});
  add("fsdp", {.ranks = 2 * tensor, .accumulation = 3, .tensor = tensor});
  add("zero3", {.ranks = 4 * tensor, .accumulation = 3, .pipeline = 2, .tensor = tensor});
  return rows;
}

void require_close(double actual, double expected, double tolerance, const std::string& what) {
  const double relative = std::abs(actual - expected) / std::max(std::abs(expected), 1e-12);
  test::require(relative <= tolerance, what, " is ", actual, ", peft has ", expected);
}

void require_same_training(const RankRecord& result, const Adapted& adapted) {
  const Json expected = Json::parse_file(adapted.directory + "/expected.json");
  const auto loss = numbers(expected.at("loss")), norm = numbers(expected.at("grad_norm"));
  test::require(result.steps.size() == loss.size(), result.steps.size(), " steps were made");
  for (size_t i = 0; i < loss.size(); ++i) {
    require_close(result.steps[i].loss, loss[i], 1e-5, concat("loss of step ", i + 1));
    require_close(result.steps[i].norm, norm[i], 2e-4, concat("gradient norm of step ", i + 1));
  }
  require_close(result.evaluations.back().loss, expected.at("eval_loss").as_double(), 1e-5,
                "evaluation loss");
  const Json final = expected.at("final");
  size_t trained = 0;
  std::vector<std::pair<std::string, at::Tensor>> stored;
  for (const auto& [key, value] : result.final) {
    const std::string name = checkpoint_name(adapted.model, key);
    if (!is_adapter(name) || value.dim() == 2) {
      stored.emplace_back(name, value);
      continue;
    }
    if (is_of_all_experts(name)) {
      stored.emplace_back(name, in_adapter_file(name, value));
      continue;
    }
    for (int64_t expert = 0; expert < value.size(0); ++expert) {
      stored.emplace_back(name_of_expert(name, expert), value[expert]);
    }
  }
  for (const auto& [name, value] : stored) {
    const TensorSource& from = adapted.adapter->has(name)
                                   ? static_cast<const TensorSource&>(*adapted.adapter)
                                   : *adapted.weights;
    const at::Tensor before = is_of_all_experts(name)
                                  ? adapted.adapter->file().read(name)
                                  : from.read(name, value.sizes()).to(at::kFloat);
    const auto numbers = final.find(name);
    if (!numbers) {
      test::require(value.equal(before), name, " is frozen");
      continue;
    }
    ++trained;
    const at::Tensor after = value.to(at::kDouble).flatten();
    const at::Tensor change = after - before.to(at::kDouble).flatten();
    const at::Tensor probe = at::arange(change.numel(), at::kDouble).cos();
    const double size = numbers->at("change").as_double();
    require_close(after.norm().item<double>(), numbers->at("norm").as_double(), 1e-5,
                  "norm of " + name);
    require_close(change.norm().item<double>(), size, 2e-4, "change of " + name);
    const double probed = (change * probe).sum().item<double>();
    test::require(std::abs(probed - numbers->at("probe").as_double()) <= 1e-3 * size, "probe of ",
                  name, " is ", probed);
  }
  test::require(trained == final.size(), trained, " parameters are trained");
}

void check_adapters(const std::string& name, bool all) {
  const Adapted adapted = load_adapted(name);
  const Json training = Json::parse_file(adapted.directory + "/expected.json").at("training");
  ParityWork work{.model = adapted.model, .global_batches = fixture_batches(adapted.base)};
  const std::vector<MicroBatch> once = work.global_batches;  // twice as many steps
  work.global_batches.insert(work.global_batches.end(), once.begin(), once.end());
  work.source = adapted.weights.get();
  work.weight_decay = training.at("weight_decay").as_double();
  work.trainer.max_grad_norm = training.at("max_grad_norm").as_double();
  work.trainer.schedule = {.kind = LrScheduleKind::kConstant,
                           .peak = training.at("learning_rate").as_double()};
  const int64_t divisor = adapted.base.model.tensor_divisor;
  const int tensor = divisor == 0 ? 1 : divisor % 2 == 0 ? 2 : 3;  // 0: no tensor axis
  for (const ParityRow& row : layouts(tensor, all)) {
    INFO(name << " " << row.name());
    test::run_ranks(row.ranks, [&](Communicator& comm) {
      const RankRecord result = run_parity(comm, row, work);
      if (comm.rank() == 0) require_same_training(result, adapted);
    });
  }
}

at::Tensor logits_of(const ModelSpec& model, const TensorSource& source, const MicroBatch& batch) {
  const at::NoGradGuard no_grad;
  return WholeModel(model, {.source = &source}).logits(batch);
}

}  // namespace

TEST_CASE("BLOOM's adapters train as in peft under every strategy") {
  check_adapters("bloom", /*all=*/false);
  check_adapters("bloom_all", /*all=*/true);
  check_adapters("bloom_classification_all", /*all=*/false);
}

TEST_CASE("GPT-2's adapters train as in peft under every strategy") {
  check_adapters("gpt2", /*all=*/false);
  check_adapters("gpt2_all", /*all=*/true);
}

TEST_CASE("Llama's adapters train as in peft under every strategy") {
  check_adapters("llama", /*all=*/false);
  check_adapters("llama_all", /*all=*/true);
  check_adapters("llama_tied_all", /*all=*/false);
  check_adapters("llama_classification", /*all=*/false);
}

TEST_CASE("Mistral's and Qwen's adapters train as in peft under every strategy") {
  check_adapters("mistral", /*all=*/false);
  check_adapters("qwen2_all", /*all=*/false);
  check_adapters("qwen3_all", /*all=*/true);
}

TEST_CASE("experts' adapters train as in peft under every strategy") {
  check_adapters("qwen3_moe_experts", /*all=*/true);
  check_adapters("olmoe_experts", /*all=*/false);
  check_adapters("mixtral_experts", /*all=*/false);
}

TEST_CASE("adapters of gpt-oss' tensors of all experts train as in peft under every strategy") {
  check_adapters("gpt_oss_experts", /*all=*/true);
  check_adapters("gpt_oss_down", /*all=*/false);
}

TEST_CASE("adapters of other families' tensors of all experts train as in peft, on every axis") {
  check_adapters("qwen3_moe_tensors", /*all=*/true);
  check_adapters("olmoe_up", /*all=*/false);
  check_adapters("mixtral_tensors", /*all=*/false);
}

TEST_CASE("experts' adapters are merged into a base with one tensor of all experts") {
  for (const char* name :
       {"qwen3_moe_experts", "mixtral_experts", "qwen3_moe_tensors", "mixtral_tensors"}) {
    INFO(name);
    const Adapted adapted = load_adapted(name);
    const TempDir made;
    HuggingFaceWriter writer(made.path("base"), {});
    for (const ParameterInfo& p : parameters_of(adapted.base.model)) {
      const std::string stored = adapted.base.model.stored_name(p.block, p.name);
      writer.add(stored, adapted.weights->read(stored, p.shape));
    }
    writer.add_file(adapted.base.directory + "/config.json");
    writer.commit();
    for (const auto& [base, to] :
         {std::pair(adapted.base.directory, "by_expert"), std::pair(made.path("base"), "of_all")}) {
      programs::merge_adapter(
          {.base = base, .adapter = adapted.directory, .directory = made.path(to)});
    }
    const HuggingFaceDirectory by_expert(made.path("by_expert")), of_all(made.path("of_all"));
    CHECK(of_all.names().size() < by_expert.names().size());
    for (const ParameterInfo& p : parameters_of(adapted.base.model)) {
      const std::string stored = adapted.base.model.stored_name(p.block, p.name);
      INFO(stored);
      CHECK(of_all.read(stored, p.shape).equal(by_expert.read(stored, p.shape)));
    }
  }
}

TEST_CASE("an adapter without an expert, or of more experts, is of another model") {
  const Adapted adapted = load_adapted("olmoe_experts");
  const std::string first = "base_model.model.model.layers.0.mlp.experts.";
  const auto refusal = [&](const std::string& absent, const std::string& added) {
    const TempDir made;
    std::vector<std::string> names;
    for (const SafetensorsEntry& entry : adapted.adapter->file().header().entries) {
      if (entry.name != absent) names.push_back(entry.name);
    }
    if (!added.empty()) names.push_back(added);
    HuggingFaceWriter writer(made.path("adapter"), adapter_writer_options(names));
    for (const std::string& name : names) {
      const std::string from = name == added ? first + "0.up_proj.lora_A.weight" : name;
      writer.add(name, adapted.adapter->file().read(from));
    }
    writer.add_file(adapted.directory + "/adapter_config.json");
    writer.commit();
    const AdapterDirectory changed(made.path("adapter"));
    return error_of(
        [&] { changed.check_fits(add_lora(adapted.base.model, changed.config().rule)); });
  };
  CHECK(refusal("", "") == "no error");
  const std::string last = first + "4.down_proj.lora_B.weight",
                    behind = first + "5.up_proj.lora_A.weight";
  CHECK_THAT(refusal(last, ""), Catch::Contains("\"" + last + "\" is missing"));
  CHECK_THAT(refusal("", behind), Catch::Contains("\"" + behind + "\" belongs to nothing"));
}

TEST_CASE("adapters of all experts of another layout or count, or for an MXFP4 base, are refused") {
  const Adapted adapted = load_adapted("gpt_oss_experts");
  const auto refusals = [&](const std::string& changed, const at::Tensor& value) {
    const TempDir made;
    std::vector<std::string> names;
    for (const SafetensorsEntry& entry : adapted.adapter->file().header().entries) {
      names.push_back(entry.name);
    }
    HuggingFaceWriter writer(made.path("adapter"), adapter_writer_options(names));
    for (const std::string& name : names) {
      writer.add(name, name == changed ? value : adapted.adapter->file().read(name));
    }
    writer.add_file(adapted.directory + "/adapter_config.json");
    writer.commit();
    const AdapterDirectory other(made.path("adapter"));
    return std::pair(
        error_of([&] { other.check_fits(add_lora(adapted.base.model, other.config().rule)); }),
        error_of([&] {
          programs::merge_adapter({.base = adapted.base.directory,
                                   .adapter = made.path("adapter"),
                                   .directory = made.path("merged")});
        }));
  };
  CHECK(refusals("", {}) == std::pair<std::string, std::string>("no error", "no error"));
  const std::string inner = "base_model.model.model.layers.0.mlp.experts.base_layer.lora_";
  // As PEFT has it under transformers 4, and of 6 experts instead of 5.
  const auto swapped = refusals(inner + "A.weight", at::ones({15, 80}));
  CHECK_THAT(swapped.first, Catch::Contains("has shape [15, 80], the model has [15, 24]"));
  CHECK_THAT(swapped.second, Catch::Contains("gpt-oss under transformers 4"));
  const auto more = refusals(inner + "B.weight", at::ones({80, 18}));
  CHECK_THAT(more.first, Catch::Contains("has shape [80, 18], the model has [80, 15]"));
  CHECK_THAT(more.second, Catch::Contains("not of the same experts"));
  const TempDir made;
  CHECK_THAT(error_of([&] {
               programs::merge_adapter({.base = fixture_path("gpt_oss_mxfp4"),
                                        .adapter = fixture_path("lora/gpt_oss_down"),
                                        .directory = made.path("merged")});
             }),
             Catch::Contains("as MXFP4; merge into its bf16 form"));
}

TEST_CASE("adapters and what they are merged into give peft's logits") {
  for (const char* name : {"bloom",
                           "bloom_all",
                           "bloom_classification_all",
                           "gpt2",
                           "gpt2_all",
                           "llama",
                           "llama_all",
                           "llama_tied_all",
                           "llama_classification",
                           "mistral",
                           "qwen2_all",
                           "qwen3_all",
                           "qwen3_moe_experts",
                           "olmoe_experts",
                           "mixtral_experts",
                           "gpt_oss_experts",
                           "gpt_oss_down",
                           "qwen3_moe_tensors",
                           "olmoe_up",
                           "mixtral_tensors"}) {
    INFO(name);
    const Adapted adapted = load_adapted(name);
    const at::Tensor expected =
        SafetensorsFile(adapted.directory + "/expected.safetensors").read("logits");
    MicroBatch batch = fixture_batches(adapted.base).front();
    batch.input_ids = batch.input_ids.narrow(0, 0, 4);
    batch.labels = batch.labels.narrow(0, 0, 4);
    batch.attention_mask = batch.attention_mask.narrow(0, 0, 4);
    const at::Tensor visible = expected.dim() == 3
                                   ? batch.attention_mask.unsqueeze(-1).to(at::kFloat)
                                   : at::ones({}, at::kFloat);
    const auto close = [&](const at::Tensor& logits) {
      return at::allclose(logits * visible, expected * visible, 1e-5, 1e-5);
    };
    CHECK(close(logits_of(adapted.model, *adapted.weights, batch)));
    const TempDir merged;
    programs::merge_adapter({.base = adapted.base.directory,
                             .adapter = adapted.directory,
                             .directory = merged.path("merged")});
    const HuggingFaceDirectory source(merged.path("merged"));
    CHECK(close(logits_of(adapted.base.model, source, batch)));
  }
}
