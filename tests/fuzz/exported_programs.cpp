// SPDX-License-Identifier: MIT
#include "tests/fuzz/exported_programs.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <array>
#include <filesystem>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "lib/core/file.h"
#include "tessera/core/error.h"
#include "tessera/model/lora.h"
#include "tessera/program/from_program.h"
#include "tests/support/temp_dir.hpp"

namespace tessera::testing {
namespace {

constexpr const char* kPrefix = "program-";
constexpr const char* kClassifier = "program-classifier";
constexpr int64_t kVocabulary = 96, kClasses = 3;

// A router's choice jumps where a sum of gradients was rounded.
bool has_router(const std::string& model) {
  return model == "program-olmoe" || model == "program-gpt_oss" || model == "program-qwen2_moe";
}

// The others' fused projections, norms of all heads or sinks are refused.
bool has_tensor_axis(const std::string& name) {
  return name == "gemma3" || name == "gpt_neox" || name == "llama";
}

void draw(std::mt19937_64& random, FuzzCase& c) {
  c.vocabulary = kVocabulary;
  c.supervised_only = random() % 2 == 0;
  if (random() % 3 == 0) {
    c.lora = random() % 2 == 0 ? 1 : 3;
    c.lora_on = std::array{"default", "all", "all+norm"}[random() % 3];
  }
  c.blocks = "-";
}

ModelSpec with_adapters(const FuzzCase& c, ModelSpec model) {
  LoraRule rule{.r = c.lora, .alpha = 2};
  const bool has_default = !model.default_lora_targets.empty();
  if (c.lora_on != "default" || !has_default) rule.target_modules = {"all-linear"};
  if (c.lora_on == "all+norm") {
    rule.modules_to_save = {c.model == "program-gpt_neox" ? "final_layer_norm" : "model.norm"};
  }
  return add_lora(std::move(model), rule);
}

std::string replaced(std::string text, const std::string& old, const std::string& with) {
  for (size_t at = 0; (at = text.find(old, at)) != std::string::npos; at += with.size()) {
    text.replace(at, old.size(), with);
  }
  return text;
}

// A copy of the directory's programs with one more of fp64: the fp32 one with other dtypes.
void copy_with_double(const std::filesystem::path& from, const TempDir& to) {
  constexpr const char* kDouble = "program.float64.train.json";
  std::filesystem::copy(from, to.path("."));
  std::string program = read_file(from / "program.float32.train.json");
  for (const std::string key : {"\"dtype\":", "\"as_scalar_type\":"}) {
    program = replaced(program, key + "7", key + "8");  // torch.export's float32 and float64
  }
  to.write(kDouble, program);
  std::string modes;
  for (const std::string mode : {"train", "eval"}) {
    modes += concat(R"({"dtype": "float64", "mode": ")", mode, R"(", "file": ")", kDouble, "\"},");
  }
  const std::string list = "\"programs\": [", manifest = read_file(from / "program.json");
  check(manifest.find(list) != std::string::npos, ErrorCode::kInternal, from, " has no programs");
  to.write("program.json", replaced(manifest, list, list + modes));
}

// The program in ATen's operators, which are independent of Tessera's, in fp32 and fp64.
ModelSpec plain_program(const std::string& name) {
  static std::mutex mutex;
  static std::map<std::string, ModelSpec> made;
  const std::lock_guard lock(mutex);
  if (const auto known = made.find(name); known != made.end()) return known->second;
  const TempDir folder;
  copy_with_double(std::filesystem::path(TESSERA_PROGRAMS) / name, folder);
  return made[name] = from_program(folder.path("."), {.own_operators = false});
}

FuzzModel build(const FuzzCase& c) {
  const PrecisionConfig& precision = c.parallel.precision;
  check(precision.parameter == at::kFloat, ErrorCode::kInvalidArgument,
        "fuzz: the committed programs were exported in fp32");
  check(!has_router(c.model) || precision.reduce.value_or(at::kFloat) == at::kFloat,
        ErrorCode::kInvalidArgument, "fuzz: a router's choice depends on rounded sums");
  check(!c.parallel.sequence_parallel, ErrorCode::kInvalidArgument,
        "fuzz: exported programs have no sequence parallelism");
  const std::string name = c.model.substr(std::string(kPrefix).size());
  FuzzModel result{.model = from_program(std::string(TESSERA_PROGRAMS) + "/" + name),
                   .plain = plain_program(name),
                   // LibTorch's grouped products of experts have no fp64.
                   .widest = has_router(c.model) ? at::kFloat : at::kDouble,
                   .gives_scores = true};
  if (c.lora > 0) {
    result.model = with_adapters(c, std::move(result.model));
    result.plain = with_adapters(c, std::move(*result.plain));
  }
  // The embedding of token 0, which pads, is 0: first in a row it leaves a router equal scores,
  // among which CPU and GPU choose other experts.
  const int64_t first_token = has_router(c.model) ? 1 : 0;
  result.batch = [first_token, supervised_only = c.supervised_only](int64_t rows, int64_t length,
                                                                    uint64_t seed) {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
    MicroBatch batch;
    batch.input_ids = at::randint(first_token, kVocabulary, {rows, length}, generator, at::kLong);
    batch.labels = at::randint(kVocabulary, {rows, length}, generator, at::kLong);
    batch.labels.masked_fill_(at::rand({rows, length}, generator).lt(0.4), kIgnoredLabel);
    if (supervised_only) choose_head_positions(batch, 1);
    return batch;
  };
  return result;
}

void draw_classifier(std::mt19937_64& random, FuzzCase& c) {
  draw(random, c);
  c.supervised_only = false;  // a class belongs to the row
}

// Rows that are padded behind by token 0, the last other token of which gives the class; about a
// quarter of the rows has none.
FuzzModel build_classifier(const FuzzCase& c) {
  FuzzModel result = build(c);
  result.batch = [](int64_t rows, int64_t length, uint64_t seed) {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
    const at::Tensor ends = at::randint(1, length + 1, {rows, 1}, generator, at::kLong);
    MicroBatch batch;
    batch.input_ids = at::randint(1, kVocabulary, {rows, length}, generator, at::kLong);
    batch.input_ids.masked_fill_(at::arange(length).unsqueeze(0).ge(ends), 0);
    batch.labels = at::randint(kClasses, {rows}, generator, at::kLong);
    batch.labels.masked_fill_(at::rand({rows}, generator).lt(0.25), kIgnoredLabel);
    return batch;
  };
  return result;
}

std::vector<FuzzCase> smaller(const FuzzCase& c) {
  if (c.lora == 0) return {};
  FuzzCase without = c;
  without.lora = 0, without.lora_on = "default";
  return {without};
}

}  // namespace

FuzzFamilies exported_program_families() {
  FuzzFamilies families;
  for (const char* name :
       {"gemma3", "gpt_neox", "gpt_oss", "llama", "olmoe", "phi3", "qwen2_moe"}) {
    const bool has_rules = has_tensor_axis(name);
    families[std::string(kPrefix) + name] = {.draw = draw,
                                             .build = build,
                                             .smaller = smaller,
                                             .tensor_axis = has_rules,
                                             .fp32_only = true};
  }
  families[kClassifier] = {
      .draw = draw_classifier, .build = build_classifier, .smaller = smaller, .fp32_only = true};
  return families;
}

}  // namespace tessera::testing
