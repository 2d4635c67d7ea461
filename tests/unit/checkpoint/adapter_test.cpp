// SPDX-License-Identifier: MIT
#include "tessera/checkpoint/adapter.h"

#include <ATen/ATen.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <filesystem>

#include "lib/checkpoint/expert_files.h"
#include "tessera/core/error.h"
#include "tessera/model/adapters.h"
#include "tessera/model/whole_model.h"
#include "tests/support/messages.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/support/test.hpp"
#include "tests/support/torch_modules.hpp"

using namespace tessera;
using namespace tessera::testing;
using tessera::test::contains;
namespace fs = std::filesystem;

namespace {

std::string config_with(const std::string& more, int64_t r = 2) {
  return concat(R"({"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": )", r,
                R"(, "bias": "none")", more.empty() ? "" : ", ", more, "}");
}
AdapterConfig read(const std::string& more) {
  return AdapterConfig::from_json(Json::parse(config_with(more), {}, "adapter_config.json"));
}
std::string refused(const std::string& more) {
  return error_of(ErrorCode::kDataLoss, [&] { read(more); });
}

using Tensors = std::vector<std::pair<std::string, at::Tensor>>;

// Two layers, "0" and "1", of width 3.
ModelSpec model() {
  const torch::nn::Sequential layers(torch::nn::Linear(3, 3), torch::nn::Linear(3, 3));
  return from_sequential(layers.ptr(), squared_error);
}
Tensors tensors_of(const std::string& module, int64_t r = 2) {
  const std::string name = concat(kLoraPrefix, module, ".");
  return {{name + "lora_A.weight", at::full({r, 3}, 0.5)},
          {name + "lora_B.weight", at::full({3, r}, 0.25)}};
}
std::string opened(const TempDir& folder, const std::string& config, const Tensors& tensors) {
  folder.write("adapter_config.json", config);
  save_safetensors(folder.path("adapter_model.safetensors"), tensors);
  return error_of(ErrorCode::kDataLoss, [&] { AdapterDirectory directory(folder.path("")); });
}

}  // namespace

TEST_CASE("adapter_config.json is read with PEFT's defaults and written so that it reads back") {
  const AdapterConfig plain = read("");
  CHECK(plain.rule.alpha == 8);
  CHECK(plain.rule.init == LoraInit::kDefault);
  AdapterConfig config = read(
      R"("lora_alpha": 16, "lora_dropout": 0.1, "use_rslora": true, "fan_in_fan_out": true,
         "init_lora_weights": "gaussian", "target_modules": ["v_proj", "q_proj"],
         "modules_to_save": ["score"], "base_model_name_or_path": "some/base",
         "rank_pattern": {}, "layers_to_transform": null, "loftq_config": {}, "use_dora": false)");
  config = AdapterConfig::from_json(Json::parse(config.to_json(), {}, "written"));
  CHECK(config.rule.r == 2);
  CHECK(config.rule.alpha == 16);
  CHECK(config.rule.dropout == 0.1);
  CHECK(config.rule.use_rslora);
  CHECK(config.rule.init == LoraInit::kGaussian);
  CHECK(config.rule.target_modules == std::vector<std::string>{"q_proj", "v_proj"});
  CHECK(config.rule.modules_to_save == std::vector<std::string>{"score"});
  CHECK(config.base_model == "some/base");
  CHECK(config.task_type == "CAUSAL_LM");
  CHECK(config.fan_in_fan_out);
}

TEST_CASE("target_parameters are read and written, without dropout") {
  const AdapterConfig config = read(R"("target_modules": [], "target_parameters": ["b.up", "a"])");
  const AdapterConfig again =
      AdapterConfig::from_json(Json::parse(config.to_json(), {}, "written"));
  CHECK(again.rule.target_parameters == std::vector<std::string>{"b.up", "a"});
  CHECK(again.rule.target_modules.empty());
  CHECK(read(R"("target_parameters": null)").rule.target_parameters.empty());
  CHECK_THAT(refused(R"("target_parameters": ["a"], "lora_dropout": 0.1)"),
             contains("lora_dropout: PEFT has no dropout with target_parameters"));
}

TEST_CASE("matrices of all experts lie in files as PEFT's, and come back") {
  const std::string folder = "base_model.model.model.layers.0.mlp.experts.";
  // [experts, r, in] and [experts, out, r].
  const at::Tensor a = at::arange(3 * 2 * 5, at::kFloat).view({3, 2, 5}),
                   b = at::arange(3 * 4 * 2, at::kFloat).view({3, 4, 2});
  for (const std::string& name : {folder + "lora_", folder + "base_layer.lora_"}) {
    const std::string of_a = name + "A.weight", of_b = name + "B.weight";
    const at::Tensor a_in_file = in_adapter_file(of_a, a), b_in_file = in_adapter_file(of_b, b);
    CHECK(a_in_file.equal(a.view({6, 5})));  // expert after expert
    REQUIRE(b_in_file.sizes() == at::IntArrayRef{4, 6});
    for (int64_t expert = 0; expert < 3; ++expert) {  // every expert's columns of rank 0, then of 1
      CHECK(b_in_file.view({4, 2, 3}).select(2, expert).equal(b[expert]));
    }
    CHECK(from_adapter_file(of_a, a_in_file, 3).equal(a));
    CHECK(from_adapter_file(of_b, b_in_file, 3).equal(b));
  }
  CHECK(in_adapter_file(folder + "gate_proj.lora_A.weight", a).is_same(a));
  CHECK(in_adapter_file(folder + "down_proj", a).is_same(a));
}

TEST_CASE("what is not plain LoRA is refused by its key") {
  CHECK_THAT(refused(R"("use_dora": true)"), contains("use_dora: is not supported"));
  CHECK_THAT(refused(R"("rank_pattern": {"q_proj": 3})"), contains("rank_pattern"));
  CHECK_THAT(refused(R"("alpha_pattern": {"q_proj": 3})"), contains("alpha_pattern"));
  CHECK_THAT(refused(R"("lora_bias": true)"), contains("lora_bias"));
  CHECK_THAT(refused(R"("trainable_token_indices": [1])"), contains("trainable_token_indices"));
  CHECK_THAT(refused(R"("init_lora_weights": "pissa")"), contains("init_lora_weights"));
  const auto whole = [](const std::string& text) {
    return error_of(ErrorCode::kDataLoss, [&] {
      AdapterConfig::from_json(Json::parse(text, {}, "adapter_config.json"));
    });
  };
  CHECK_THAT(whole(R"({"peft_type": "IA3", "r": 2})"), contains("IA3 are not supported"));
  CHECK_THAT(whole(R"({"peft_type": "LORA", "r": 0})"), contains("r:"));
  CHECK_THAT(whole(R"({"peft_type": "LORA", "r": 2, "bias": "all"})"), contains("biases"));
  CHECK_THAT(whole(R"({"peft_type": "LORA", "r": 2, "task_type": "TOKEN_CLS"})"),
             contains("CAUSAL_LM and SEQ_CLS"));
}

TEST_CASE("a saved adapter fills the model's") {
  const TempDir folder;
  REQUIRE(opened(folder, config_with(R"("target_modules": ["1", "absent"])"), tensors_of("1")) ==
          "no error");
  const auto adapter = std::make_shared<const AdapterDirectory>(folder.path(""));
  CHECK(adapter->config().rule.target_modules == std::vector<std::string>{"1"});
  adapter->check_fits(add_lora(model(), adapter->config().rule));
  WholeModel whole(add_lora(model(), adapter->config().rule, adapter), {});
  for (const Parameter& parameter : whole.parameters()) {
    if (!parameter.tensor.requires_grad()) continue;
    const double value = parameter.name.ends_with("lora_A.weight") ? 0.5 : 0.25;
    CHECK(at::equal(parameter.tensor, at::full_like(parameter.tensor, value)));
  }
}

TEST_CASE("targets that are a pattern become the modules of the file") {
  for (const char* targets : {R"("target_modules": "^[01]$")",
                              R"("target_modules": ["0", "1"], "layers_to_transform": [1])"}) {
    const TempDir folder;
    REQUIRE(opened(folder, config_with(targets), tensors_of("1")) == "no error");
    CHECK(AdapterDirectory(folder.path("")).config().rule.target_modules ==
          std::vector<std::string>{"1"});
  }
}

TEST_CASE("files that do not belong together are refused") {
  const std::string config = config_with(R"("target_modules": ["1"])");
  const TempDir folder;
  CHECK_THAT(opened(folder, config, tensors_of("1", 3)), contains("has rank 3"));
  CHECK_THAT(opened(folder, config, {{"model.x", at::ones({1})}}), contains("base_model.model."));
  CHECK_THAT(opened(folder, config, {{"base_model.model.x", at::ones({1})}}),
             contains("holds no adapter"));
  Tensors quantised = tensors_of("1");
  quantised[0].second = at::ones({2, 3}, at::kChar);
  CHECK_THAT(opened(folder, config, quantised), contains("quantised"));
  fs::remove(folder.path("adapter_config.json"));
  const auto open = [&] { AdapterDirectory directory(folder.path("")); };
  CHECK_THAT(error_of(ErrorCode::kDataLoss, open), contains("has no adapter_config.json"));
}

TEST_CASE("an adapter that lacks a module which its configuration trains is refused by name") {
  const TempDir folder;
  const std::vector<std::string> base{"0.weight", "0.bias", "1.weight", "score.weight"};
  const auto missing = [&](const std::string& config, const Tensors& tensors) {
    REQUIRE(opened(folder, config_with(config), tensors) == "no error");
    const AdapterDirectory adapter(folder.path(""));
    return error_of(ErrorCode::kDataLoss, [&] { adapter.check_complete(base); });
  };
  const std::string saves =
      R"("target_modules": ["1"], "modules_to_save": ["classifier", "score"])";
  Tensors with_head = tensors_of("1");
  with_head.emplace_back("base_model.model.score.weight", at::ones({2, 3}));
  CHECK(missing(saves, with_head) == "no error");  // PEFT's default for classifiers
  const std::string said = missing(saves, tensors_of("1"));
  CHECK_THAT(said, contains("adapter_model.safetensors: no tensor of score, which "
                            "\"modules_to_save\" of adapter_config.json trains"));
  CHECK_THAT(missing(R"("target_modules": ["0", "1"])", tensors_of("1")),
             contains("no tensor of 0, which \"target_modules\""));
  CHECK(missing(R"("target_modules": ["0", "1"], "layers_to_transform": [1])", tensors_of("1")) ==
        "no error");
  CHECK(missing(R"("target_modules": ["1", "absent"])", tensors_of("1")) == "no error");
}

TEST_CASE("the files of an adapter are no links out of its directory") {
  for (const char* name : {"adapter_config.json", "adapter_model.safetensors"}) {
    const TempDir folder, outside;
    REQUIRE(opened(folder, config_with(R"("target_modules": ["1"])"), tensors_of("1")) ==
            "no error");
    fs::rename(folder.path(name), outside.path(name));
    fs::create_symlink(outside.path(name), folder.path(name));
    CHECK_THAT(error_of(ErrorCode::kDataLoss, [&] { AdapterDirectory directory(folder.path("")); }),
               contains(concat(name, ": is a link out of the folder")));
  }
}

TEST_CASE("an adapter of another model is refused") {
  const auto misfit = [](const std::string& targets, const Tensors& tensors) {
    const TempDir folder;
    REQUIRE(opened(folder, config_with(targets), tensors) == "no error");
    const AdapterDirectory adapter(folder.path(""));
    LoraRule rule = adapter.config().rule;
    rule.target_modules = {"1"};
    return error_of(ErrorCode::kDataLoss, [&] { adapter.check_fits(add_lora(model(), rule)); });
  };
  Tensors both = tensors_of("1"), wide = tensors_of("1");
  for (const auto& tensor : tensors_of("0")) both.push_back(tensor);
  wide[0].second = at::ones({2, 4});
  CHECK_THAT(misfit(R"("target_modules": ["1", "0"])", both), contains("belongs to nothing"));
  CHECK_THAT(misfit(R"("target_modules": ["1"])", wide), contains("has shape [2, 4]"));
  CHECK_THAT(misfit(R"("target_modules": ["0"])", tensors_of("0")), contains("is missing"));
}
