// SPDX-License-Identifier: MIT
// tessera-generate: prompts in, JSON lines out, one line per error.
#include <ATen/ATen.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "lib/core/file.h"
#include "tessera/checkpoint/huggingface.h"
#include "tessera/data/tokenizer.h"
#include "tessera/model/whole_model.h"
#include "tests/parity/huggingface/generation_work.h"
#include "tests/support/temp_dir.hpp"
#include "tests/support/test.hpp"

using namespace tessera;
using namespace tessera::testing;

namespace {

struct ProgramResult {
  int status;
  std::string out, err;
};

ProgramResult run(const TempDir& folder, const std::string& arguments,
                  const std::string& input = "") {
  std::ofstream(folder.path("in")) << input;
  const std::string command = concat(TESSERA_GENERATE, " ", arguments, " < ", folder.path("in"),
                                     " > ", folder.path("out"), " 2> ", folder.path("err"));
  const int status = std::system(command.c_str());
  return {WEXITSTATUS(status), read_file(folder.path("out")), read_file(folder.path("err"))};
}

std::vector<Json> lines_of(const std::string& text) {
  std::vector<Json> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(Json::parse(line, {}, "output"));
  return lines;
}

std::string json_prompts(const Ids& prompts) {
  std::string text;
  for (const auto& prompt : prompts) {
    text += JsonWriter().begin_object().field("input_ids", prompt).end_object().text() + "\n";
  }
  return text;
}

// A small random model with the examples' tokenizer.
std::string text_model(const TempDir& folder) {
  const std::string tokenizer = std::string(TESSERA_EXAMPLES) + "/data/tokenizer";
  LanguageModel language_model = LanguageModel::preset("bloom-tiny");
  language_model.config().vocabulary = Tokenizer::load(tokenizer).size();
  const ModelSpec spec = language_model.make_causal();
  const WholeModel model(spec, {.seed = 8});
  HuggingFaceWriter writer(folder.path("model"));
  for (const auto& parameter : model.parameters()) writer.add(parameter.name, parameter.tensor);
  writer.add_text("config.json", language_model.to_json(ModelHead::kCausal));
  writer.add_file(tokenizer + "/tokenizer.json");
  writer.commit();
  return folder.path("model");
}

void check_refused(const ProgramResult& result, int status, const std::string& text) {
  INFO(result.err);
  CHECK(result.status == status);
  CHECK(result.out.empty());
  CHECK(result.err.find(text) != result.err.npos);
  CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
}

}  // namespace

TEST_CASE("tessera-generate writes what transformers writes, on one rank and several") {
  const WritingTrial trial("llama");
  const TempDir folder;
  const std::string common = concat("--model ", trial.fixture.directory, " --eos_token_id ",
                                    trial.options.end_tokens.front(), " --max_new_tokens ",
                                    trial.options.max_new_tokens, " --batch_size 3 ");
  for (const std::string layout :
       {"", "--ranks 2 --strategy zero3", "--ranks 4 --pipeline_parallel 2 --tensor_parallel 2"}) {
    INFO(layout);
    const ProgramResult result = run(folder, common + layout, json_prompts(trial.prompts));
    INFO(result.err);
    REQUIRE(result.status == 0);
    const std::vector<Json> lines = lines_of(result.out);
    REQUIRE(lines.size() == trial.expected.size());
    for (size_t i = 0; i < lines.size(); ++i) {
      CHECK(lines[i].at("index").as_int64() == static_cast<int64_t>(i));
      CHECK(ids_of(lines[i].at("ids")) == trial.expected[i]);
      const bool ended = trial.expected[i].back() == trial.options.end_tokens.front();
      CHECK(lines[i].at("finish_reason").as_string() == (ended ? "stop" : "length"));
    }
  }
}

TEST_CASE(
    "tessera-generate writes the same from a run's checkpoint, on any layout, and its export") {
  const WritingTrial trial("llama");
  const TempDir folder;
  std::ofstream rows(folder.path("rows.jsonl"));
  for (int64_t row = 0; row < 4; ++row) {
    const std::vector<int64_t> ids{row + 5, 2 * row + 9, 30 - row, 41, row + 17};
    rows << JsonWriter()
                .begin_object()
                .field("input_ids", ids)
                .field("labels", ids)
                .end_object()
                .text()
         << "\n";
  }
  rows.close();
  const std::string train =
      concat(TESSERA_FINETUNE_CAUSAL, " --model ", trial.fixture.directory, " --train_ids ",
             folder.path("rows.jsonl"), " --output_dir ", folder.path("run"),
             " --strategy zero2 --ranks 2 --per_device_train_batch_size 2 --max_steps 2"
             " --learning_rate 0.02 --save_strategy steps --save_steps 2 > ",
             folder.path("log"), " 2>&1");
  REQUIRE(std::system(train.c_str()) == 0);
  const auto written = [&](const std::string& arguments) {
    const ProgramResult result =
        run(folder, arguments + " --ignore_eos --max_new_tokens 6", json_prompts(trial.prompts));
    INFO(arguments << ": " << result.err);
    REQUIRE(result.status == 0);
    return result.out;
  };
  const std::string expected = written("--model " + folder.path("run/final"));
  CHECK(expected != written("--model " + trial.fixture.directory));
  CHECK(written("--checkpoint " + folder.path("run")) == expected);
  CHECK(written("--ranks 2 --strategy zero3 --offload optimizer+params --checkpoint " +
                folder.path("run/checkpoint-2")) == expected);
  CHECK(written("--ranks 4 --pipeline_parallel 2 --tensor_parallel 2 --checkpoint " +
                folder.path("run")) == expected);
}

TEST_CASE("tessera-generate cuts an exported program's layers by the rules of a file") {
  const TempDir folder;
  const std::string common = "--model " TESSERA_PROGRAMS "/llama --ignore_eos --max_new_tokens 4 ";
  const std::string prompts = json_prompts({{5, 6, 7}, {8, 9}});
  const ProgramResult alone = run(folder, common, prompts);
  INFO(alone.err);
  REQUIRE(alone.status == 0);
  const ProgramResult by_tokens =
      run(folder, common + "--ranks 2 --tensor_parallel 2 --sequence_parallel", prompts);
  INFO(by_tokens.err);
  CHECK(by_tokens.out == alone.out);
  const auto by_rules = [&](const std::string& rules) {
    std::ofstream(folder.path("rules.json")) << rules;
    return run(folder,
               common + "--ranks 2 --tensor_parallel 2 --program_tensor_rules " +
                   folder.path("rules.json"),
               prompts);
  };
  const ProgramResult whole =
      by_rules(R"({"gate_proj": "whole", "up_proj": "whole", "down_proj": "whole"})");
  INFO(whole.err);
  CHECK(whole.status == 0);
  CHECK(whole.out == alone.out);
  check_refused(by_rules(R"({"q_proj": "diagonal"})"), 4, "q_proj");
  check_refused(run(folder,
                    "--model " + WritingTrial("llama").fixture.directory +
                        " --program_tensor_rules " + folder.path("rules.json"),
                    prompts),
                2, "--program_tensor_rules");
}

TEST_CASE("tessera-generate: texts, a file for the answers, sampling, perplexity") {
  const TempDir folder;
  const std::string model = text_model(folder);
  const std::string common = "--model " + model + " --ignore_eos --max_new_tokens 5 ";
  std::ofstream(folder.path("prompts.txt")) << "The river\nrises in the hills. The\n";
  ProgramResult result = run(folder, common + "--prompts " + folder.path("prompts.txt") +
                                         " --output " + folder.path("answers.jsonl"));
  INFO(result.err);
  REQUIRE(result.status == 0);
  CHECK(result.out.empty());
  const std::vector<Json> lines = lines_of(read_file(folder.path("answers.jsonl")));
  REQUIRE(lines.size() == 2);
  CHECK(lines[1].at("prompt").as_string() == "rises in the hills. The");
  CHECK(lines[1].at("ids").size() == 5);
  const Tokenizer tokenizer = Tokenizer::load(model);
  std::vector<int32_t> ids;
  for (const int64_t id : ids_of(lines[1].at("ids"))) ids.push_back(static_cast<int32_t>(id));
  CHECK(lines[1].at("text").as_string() == tokenizer.decode(ids, true));

  const std::string quoted = " --prompt 'rises in the hills. The'";
  const std::vector<Json> one = lines_of(run(folder, common + quoted).out);
  REQUIRE(one.size() == 1);
  CHECK(ids_of(one[0].at("ids")) == ids_of(lines[1].at("ids")));
  CHECK(one[0].at("prompt").as_string() == "rises in the hills. The");
  CHECK(run(folder, common + "--ranks 2" + quoted).out == run(folder, common + quoted).out);
  CHECK(lines_of(run(folder, common + "--prompt 'The\nriver'").out).size() == 1);
  check_refused(run(folder, common + "--prompts 'The river'"), 4,
                "The river: cannot be opened: No such file or directory; --prompt TEXT takes");
  check_refused(run(folder, common + "--prompts x --prompt y"), 2, "not both");
  const std::string asked = common + "--chat --chat_template chatml ";
  const ProgramResult said = run(folder, asked + "--prompt 'Where is the river?'");
  INFO(said.err);
  CHECK(said.status == 0);
  CHECK(said.out == run(folder, asked, "Where is the river?\n").out);

  const std::string drawn = common + "--do_sample --temperature 1.5 --top_k 0 --seed ";
  const std::string prompt = "{\"prompt\": \"The river\"}\n";
  const std::string once = run(folder, drawn + "1", prompt).out;
  CHECK(lines_of(once).size() == 1);
  CHECK(run(folder, drawn + "1 --ranks 2", prompt).out == once);
  CHECK(run(folder, drawn + "2", prompt).out != once);

  const std::string measured = "--model " + model + " --perplexity " + folder.path("prompts.txt") +
                               " --max_length 6 --stride 3 --batch_size 2 ";
  result = run(folder, measured);
  INFO(result.err);
  REQUIRE(result.status == 0);
  const Json line = lines_of(result.out).front();
  const double expected = static_cast<double>(tokenizer.size());  // an untrained model is uniform
  CHECK(line.at("perplexity").as_double() == Approx(expected).epsilon(0.5));
  CHECK(line.at("predicted_tokens").as_int64() ==
        static_cast<int64_t>(tokenizer.encode(read_file(folder.path("prompts.txt"))).size()) - 1);
  CHECK(lines_of(run(folder, measured + "--ranks 2").out).front().at("windows").as_int64() ==
        line.at("windows").as_int64());
}

TEST_CASE("tessera-generate: one line and an exit code for what cannot be done") {
  const WritingTrial trial("generation/gpt2");
  const TempDir folder;
  const std::string model = "--model " + trial.fixture.directory + " ";
  const std::string prompts = json_prompts({{5, 6}});
  for (const std::string ranks : {"", " --ranks 2"}) {
    check_refused(run(folder, model + ranks, json_prompts({{5}, {}})), 4,
                  "standard input:2: an empty prompt");
    check_refused(run(folder, model + ranks, json_prompts({std::vector<int64_t>(16, 5)})), 4,
                  "standard input:1: a prompt of 16 tokens, but the model has 16 positions");
    check_refused(run(folder, model + ranks, ""), 4, "standard input: holds no prompt");
    check_refused(run(folder, model + ranks, "{\"text\": 1}\n"), 4, "standard input:1");
    check_refused(run(folder, model + ranks + " --prompts " + folder.path("missing")), 4,
                  "missing");
    check_refused(run(folder, model + ranks, "a text\n"), 2, "there is no tokenizer");
  }
  const std::filesystem::path endless = folder.path("endless");
  std::filesystem::copy(fixture_path("generation/bloom"), endless);
  std::string config = read_file(endless / "config.json");
  config.replace(config.find("\"eos_token_id\": 2"), 17, "\"eos_token_id\": null");
  std::ofstream(endless / "config.json") << config;
  for (const std::string ranks : {"", " --ranks 2"}) {
    check_refused(run(folder, "--model " + endless.string() + ranks, prompts), 2, "--ignore_eos");
  }
  check_refused(run(folder, "", prompts), 2, "--model DIR");
  check_refused(run(folder, model + "--top_p 0", prompts), 2, "--top_p is 0");
  check_refused(run(folder, model + "--max_new_tokens 0", prompts), 2, "--max_new_tokens is 0");
  check_refused(run(folder, model + "--checkpoint x", prompts), 2, "--model DIR");
  check_refused(run(folder, "--model " + fixture_path("gpt2_classification"), prompts), 2,
                "classifier");
  check_refused(run(folder, "--checkpoint " + folder.path("nothing"), prompts), 4, "nothing");
}
