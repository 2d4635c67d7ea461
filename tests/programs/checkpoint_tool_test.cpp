// SPDX-License-Identifier: MIT
#include "lib/tools/checkpoint/checkpoint_tool.h"

#include <ATen/ATen.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "tessera/checkpoint/checkpoint_writer.h"
#include "tessera/checkpoint/huggingface.h"
#include "tessera/checkpoint/safetensors.h"
#include "tests/support/ranks.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/support/test.hpp"

using namespace tessera;
using tessera::test::contains;
namespace fs = std::filesystem;

namespace {

struct Answer {
  int status;
  std::string out, err;
};
Answer tool(const std::vector<std::string>& arguments) {
  std::ostringstream out, err;
  const int status = programs::run_checkpoint_tool(arguments, out, err);
  return {status, out.str(), err.str()};
}

constexpr const char* kRun = R"({"model": {"config": {"model_type": "other", "dtype": "float32"},
  "names": {"head.weight": "lm_head.weight", "norm.count": "norm.num_batches_tracked"}}})";

StateTensor whole(const std::string& name, const std::string& kind, const at::Tensor& value) {
  const auto shape = value.sizes().vec();
  return {name, kind, {.shape = shape, .end = value.numel()}, value.reshape(-1), {}};
}

void save(const std::string& directory, int64_t step, const at::Tensor& weight,
          const std::string& run = kRun) {
  test::run_ranks(1, [&](Communicator& world) {
    save_checkpoint(
        world, directory, step,
        {whole("head.weight", "parameter", weight), whole("head.weight", "exp_avg", weight * 2),
         whole("norm.count", "buffer", at::full({}, 7, at::kLong))},
        run);
  });
}

at::Tensor weight() { return at::arange(24, at::kFloat).view({4, 6}); }

}  // namespace

TEST_CASE("inspect says what a checkpoint holds, also of a run's directory") {
  const TempDir folder;
  save(folder.path("run"), 3, weight());
  fs::create_directory(folder.path("run/checkpoint-9.tmp"));
  const Answer answer = tool({"inspect", folder.path("run")});
  CHECK(answer.status == 0);
  CHECK_THAT(answer.err, contains("skipped " + folder.path("run/checkpoint-9.tmp")));
  CHECK_THAT(answer.err, contains("reading " + folder.path("run/checkpoint-3")));
  CHECK_THAT(answer.out, contains("step 3, "));
  CHECK_THAT(answer.out, contains("run.model {\"config\""));
  CHECK_THAT(answer.out, contains("head.weight (exp_avg) Float [4, 6]\n"));
  CHECK_THAT(answer.out, contains("3 tensors, 1 elements in Long, 48 elements in Float"));
}

TEST_CASE(
    "export writes what transformers reads, in the dtype asked for, and verify and diff take it") {
  const TempDir folder;
  save(folder.path("run"), 3, weight());
  folder.write("tokenizer.json", "{}");
  const std::string exported = folder.path("model");
  const Answer answer = tool({"export", folder.path("run/checkpoint-3"), exported, "--dtype",
                              "bf16", "--tokenizer", folder.path("tokenizer.json")});
  INFO(answer.err);
  CHECK(answer.status == 0);
  CHECK(answer.out == exported + ": 2 tensors of step 3 in bf16, tokenizer of " +
                          folder.path("tokenizer.json") + "\n");
  const HuggingFaceDirectory model(exported);
  CHECK(model.names() == std::vector<std::string>{"lm_head.weight", "norm.num_batches_tracked"});
  CHECK(at::equal(model.read("lm_head.weight", {4, 6}), weight().to(at::kBFloat16)));
  CHECK(model.read("norm.num_batches_tracked", {}).item<int64_t>() == 7);
  CHECK(fs::exists(exported + "/tokenizer.json"));
  std::ifstream config(exported + "/config.json");
  const std::string text{std::istreambuf_iterator<char>(config), {}};
  CHECK_THAT(text, contains("\"dtype\": \"bfloat16\""));

  const Answer verified = tool({"verify", exported});
  CHECK(verified.status == 0);
  CHECK_THAT(verified.out, contains("2 tensors, headers, names and sizes are right"));
  const Answer differs = tool({"diff", exported, folder.path("run")});
  CHECK(differs.status == 1);
  CHECK_THAT(differs.out, contains("lm_head.weight: only in " + exported));

  const Answer again = tool({"export", folder.path("run/checkpoint-3"), exported});
  CHECK(again.status == 2);
  CHECK_THAT(again.err, contains("already exists and is not overwritten"));
}

TEST_CASE("the export of a language model finds the names by its configuration") {
  const TempDir folder;
  const char* run = R"({"model": {"config": {"model_type": "bloom", "vocab_size": 8,
    "hidden_size": 4, "n_layer": 1, "n_head": 2, "architectures": ["BloomForCausalLM"]}}})";
  test::run_ranks(1, [&](Communicator& world) {
    save_checkpoint(world, folder.path("run"), 1,
                    {whole("h.0.input_layernorm.weight", "parameter", at::ones({4}))}, run);
    save_checkpoint(world, folder.path("other"), 1,
                    {whole("encoder.0.weight", "parameter", at::ones({4}))}, run);
  });
  const Answer answer = tool({"export", folder.path("run"), folder.path("model")});
  INFO(answer.err);
  REQUIRE(answer.status == 0);
  CHECK(HuggingFaceDirectory(folder.path("model")).names() ==
        std::vector<std::string>{"transformer.h.0.input_layernorm.weight"});
  const Answer other = tool({"export", folder.path("other"), folder.path("model2")});
  CHECK(other.status == 4);
  CHECK_THAT(other.err, contains("tensor encoder.0.weight belongs to no block"));
  CHECK_FALSE(fs::exists(folder.path("model2")));
}

TEST_CASE("an export without the model's configuration is refused") {
  const TempDir folder;
  save(folder.path("run"), 3, weight(), "{}");
  const Answer answer = tool({"export", folder.path("run"), folder.path("model")});
  CHECK(answer.status == 4);
  CHECK_THAT(answer.err, contains("the run has kept no configuration of its model"));
}

TEST_CASE("merge copies neither hidden files nor what lies outside the base, and says so") {
  const TempDir folder;
  for (const char* name : {"base/additional_chat_templates", "adapter"}) {
    fs::create_directories(folder.path(name));
  }
  save_safetensors(folder.path("base/model.safetensors"), {{"up.weight", at::ones({4, 4})}});
  for (const char* name : {"base/config.json", "base/README.md", "base/.netrc", "secret"}) {
    folder.write(name, "{}");
  }
  fs::create_symlink("/proc/self/environ", folder.path("base/env.txt"));
  fs::create_symlink("../../secret", folder.path("base/additional_chat_templates/a.jinja"));
  folder.write("base/additional_chat_templates/b.jinja", "x");
  save_safetensors(folder.path("adapter/adapter_model.safetensors"),
                   {{"base_model.model.up.lora_A.weight", at::ones({2, 4})},
                    {"base_model.model.up.lora_B.weight", at::ones({4, 2})}});
  folder.write("adapter/adapter_config.json",
               R"({"peft_type": "LORA", "r": 2, "target_modules": ["up"]})");
  const Answer answer =
      tool({"merge", folder.path("base"), folder.path("adapter"), folder.path("merged")});
  INFO(answer.err);
  REQUIRE(answer.status == 0);
  std::set<std::string> copied;
  for (const auto& entry : fs::recursive_directory_iterator(folder.path("merged"))) {
    if (entry.is_regular_file()) copied.insert(entry.path().filename());
  }
  CHECK(copied ==
        std::set<std::string>{"README.md", "b.jinja", "config.json", "model.safetensors"});
  CHECK_THAT(answer.out, contains("not copied: " + folder.path("base/.netrc") + " is hidden"));
  CHECK_THAT(answer.out,
             contains("not copied: " + folder.path("base/env.txt") + " is a link out of"));
  CHECK_THAT(answer.out, contains("a.jinja is a link out of the folder, to "));

  fs::remove(folder.path("base/config.json"));
  fs::create_symlink("/proc/self/environ", folder.path("base/model.safetensors.index.json"));
  fs::remove(folder.path("base/model.safetensors"));
  CHECK_THAT(tool({"inspect", folder.path("base")}).err, contains("is a link out of the folder"));
}

TEST_CASE("merge puts adapters into the weights of their base, in its dtype") {
  const at::Tensor base = weight().to(at::kBFloat16), a = at::arange(12, at::kFloat).view({2, 6}),
                   b = at::ones({4, 2}) / 8;
  for (const bool transposed : {false, true}) {
    INFO(transposed);
    const TempDir folder;
    fs::create_directory(folder.path("base"));
    fs::create_directory(folder.path("adapter"));
    save_safetensors(folder.path("base/model.safetensors"),
                     {{"h.0.up.weight", transposed ? base.t().contiguous() : base},
                      {"norm.weight", at::ones({4}, at::kBFloat16)},
                      {"other", at::arange(3)}});
    folder.write("base/config.json", "{}");
    folder.write("base/tokenizer.json", "{\"t\": 1}");
    const std::string prefix = "base_model.model.transformer.";
    save_safetensors(folder.path("adapter/adapter_model.safetensors"),
                     {{prefix + "h.0.up.lora_A.weight", a},
                      {prefix + "h.0.up.lora_B.weight", b},
                      {prefix + "norm.weight", at::full({4}, 3.0)}});
    const std::string config =
        R"({"peft_type": "LORA", "r": 2, "lora_alpha": 3, "target_modules": ["up"],
           "modules_to_save": ["norm"], "fan_in_fan_out": )";
    folder.write("adapter/adapter_config.json", concat(config, transposed ? "true}" : "false}"));
    const Answer answer = tool({"merge", folder.path("base"), folder.path("adapter"),
                                folder.path("merged"), "--max_shard_bytes", "50"});
    INFO(answer.err);
    REQUIRE(answer.status == 0);
    CHECK_THAT(answer.out, contains("3 tensors, 1 of them with adapters, 1 trained in full"));
    const HuggingFaceDirectory merged(folder.path("merged"));
    const at::Tensor expected = (base.to(at::kFloat) + 1.5 * b.matmul(a)).to(at::kBFloat16);
    const at::Tensor up =
        merged.read("h.0.up.weight", transposed ? at::IntArrayRef{6, 4} : at::IntArrayRef{4, 6});
    CHECK(at::equal(transposed ? up.t() : up, expected));
    CHECK(at::equal(merged.read("norm.weight", {4}), at::full({4}, 3, at::kBFloat16)));
    CHECK(at::equal(merged.read("other", {3}), at::arange(3)));
    CHECK(fs::exists(folder.path("merged/config.json")));
    CHECK(fs::exists(folder.path("merged/tokenizer.json")));

    CHECK_THAT(tool({"inspect", folder.path("adapter")}).out,
               contains("lora_A.weight Float [2, 6]"));
    save_safetensors(folder.path("base/model.safetensors"), {{"h.0.up.weight", at::ones({4, 4})}});
    const Answer other =
        tool({"merge", folder.path("base"), folder.path("adapter"), folder.path("x")});
    CHECK(other.status == 4);
    CHECK_THAT(other.err, contains("the adapter is of another model"));
    CHECK_FALSE(fs::exists(folder.path("x")));
  }
}

TEST_CASE("verify reads every byte, and names the tensor of a damaged one") {
  const TempDir folder;
  save(folder.path("run"), 3, weight());
  const std::string file = folder.path("run/checkpoint-3/rank-0.safetensors");
  const Answer good = tool({"verify", folder.path("run/checkpoint-3")});
  CHECK(good.status == 0);
  CHECK_THAT(good.out, contains("3 tensors, every byte has the hash of the manifest"));
  CHECK(tool({"verify", file}).status == 0);
  std::fstream change(file, std::ios::in | std::ios::out | std::ios::binary);
  change.seekp(-1, std::ios::end);
  change.put('\x55');
  change.close();
  const Answer bad = tool({"verify", folder.path("run/checkpoint-3")});
  CHECK(bad.status == 4);
  CHECK_THAT(bad.out, contains("damaged: " + file + ": byte ") && contains("norm.count (buffer)"));
  CHECK_THAT(bad.err, contains("1 place is damaged"));
}

TEST_CASE("diff says which tensors differ, and by how much") {
  const TempDir folder;
  save(folder.path("a"), 1, weight());
  at::Tensor other = weight();
  other[2][3] += 0.5;
  other[3][3] = std::numeric_limits<float>::quiet_NaN();
  save(folder.path("b"), 1, other);
  const Answer same = tool({"diff", folder.path("b"), folder.path("b/checkpoint-1")});
  CHECK(same.status == 0);
  CHECK_THAT(same.out, contains("3 tensors are the same, 0 differ"));
  const Answer answer = tool({"diff", folder.path("a"), folder.path("b")});
  CHECK(answer.status == 1);
  CHECK_THAT(answer.out, contains("head.weight (parameter): 2 of 24 elements differ, by at most "
                                  "0.5; the first is [15]: 15 and 15.5\n"));
  CHECK_THAT(answer.out, contains("head.weight (exp_avg): 2 of 24 elements differ, by at most 1;"));
  CHECK_THAT(answer.out, contains("1 tensors are the same, 2 differ"));
}

TEST_CASE("each command of tessera-checkpoint has a help that says its paths and flags") {
  for (const std::string command : {"inspect", "verify", "export", "merge", "diff"}) {
    for (const std::vector<std::string>& asked : {std::vector<std::string>{command, "--help"},
                                                  {command, "-h"},
                                                  {command, "--help", "all"},
                                                  {command, "nowhere", "--help"}}) {
      const Answer answer = tool(asked);
      INFO(command);
      CHECK(answer.status == 0);
      CHECK(answer.err.empty());
      CHECK_THAT(answer.out, contains("tessera-checkpoint " + command + " "));
      CHECK((answer.out.find("  --max_shard_bytes ") != std::string::npos) ==
            (command == "export" || command == "merge"));
      CHECK((answer.out.find("  --dtype fp32|bf16|fp16 ") != std::string::npos) ==
            (command == "export"));
    }
  }
  CHECK_THAT(tool({"export", "--help", "dtype"}).out, contains("Type: one of fp32, bf16, fp16"));
  CHECK_THAT(tool({"--help"}).out, contains("COMMAND --help"));
  CHECK(tool({"--version"}).out.starts_with("tessera-checkpoint "));
}

TEST_CASE("a call that makes no sense is a usage error, a path without a checkpoint bad data") {
  const TempDir folder;
  CHECK(tool({}).status == 2);
  CHECK_THAT(tool({"look"}).err, contains("unknown command look; expected inspect, verify"));
  CHECK_THAT(tool({"diff", "a"}).err, contains("diff takes 2 paths, found 1"));
  CHECK(tool({"verify", folder.path("x"), "--fast"}).status == 2);
  CHECK(tool({"--help"}).status == 0);
  CHECK(tool({"verify", folder.path("x")}).status == 4);
  fs::create_directory(folder.path("empty"));
  CHECK_THAT(tool({"verify", folder.path("empty")}).err, contains("neither a checkpoint"));
  folder.write("file", "no safetensors");
  CHECK(tool({"inspect", folder.path("file")}).status == 4);
}
