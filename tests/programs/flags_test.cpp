// SPDX-License-Identifier: MIT
#include "lib/settings/flags.h"

#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "lib/interop/foreign_flags.h"
#include "lib/run/layout.h"
#include "lib/settings/train_flags.h"
#include "tessera/backends/pipeline/partition.h"
#include "tessera/core/error.h"
#include "tessera/core/json.h"
#include "tests/programs/train_options.h"
#include "tests/support/messages.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/support/test.hpp"
#include "tests/support/text.hpp"

using namespace tessera;
using namespace tessera::programs;
using tessera::test::has;

namespace {

struct Values {
  bool tf32 = false, shuffle = true;
  int64_t steps = 3;
  double rate = 5e-5;
  std::string name, dtype = "fp32";
  FlagSet flags{"prog", "Does things."};
  Values() {
    flags.section("Things");
    flags.add("tf32", &tf32, "a switch");
    flags.add("shuffle", &shuffle, "another switch");
    flags.add("max_steps", &steps, "a number");
    flags.add("learning_rate", &rate, "a number");
    flags.add("model_name", &name, "a text");
    flags.add("dtype", &dtype, "a choice", {"fp32", "bf16"});
  }
};

// Message of the usage error for these arguments.
std::string refusal(const std::vector<std::string>& arguments) {
  Values values;
  return error_of(ErrorCode::kInvalidArgument, [&] { values.flags.parse(arguments); });
}

struct TemporaryFile {
  std::string path = (std::filesystem::temp_directory_path() / "tessera_flags_XXXXXX").string();
  explicit TemporaryFile(const std::string& text) {
    const int descriptor = mkstemp(path.data());
    REQUIRE(descriptor >= 0);
    close(descriptor);
    std::ofstream(path) << text;
  }
  ~TemporaryFile() { std::filesystem::remove(path); }
};

}  // namespace

TEST_CASE("every spelling of a flag sets its variable") {
  Values v;
  v.flags.parse({"--tf32", "--max_steps", "-7", "--learning-rate=1e-3", "--shuffle", "false",
                 "--model_name=a=b", "--dtype", "bf16"});
  CHECK(v.tf32);
  CHECK_FALSE(v.shuffle);
  CHECK(v.steps == -7);
  CHECK(v.rate == 1e-3);
  CHECK(v.name == "a=b");
  CHECK(v.dtype == "bf16");
  CHECK(v.flags.origin("max_steps") == "command line");
}

TEST_CASE("a bare switch does not swallow the next flag") {
  Values v;
  v.flags.parse({"--tf32", "--shuffle=false"});
  CHECK(v.tf32);
  CHECK_FALSE(v.shuffle);
}

TEST_CASE("of a flag given twice the last one wins, with a notice") {
  Values v;
  v.flags.parse({"--max_steps", "1", "--dtype=bf16", "--max-steps", "2", "--dtype", "bf16"});
  CHECK(v.steps == 2);
  CHECK(v.dtype == "bf16");
  REQUIRE(v.flags.notices().size() == 1);
  CHECK(v.flags.notices()[0] == "--max_steps is given twice; the last one, 2, wins over 1");
}

TEST_CASE("what is wrong is named, with the nearest valid name") {
  CHECK(has(refusal({"--lerning_rate", "1"}), "--learning_rate"));
  CHECK(has(refusal({"--dtype", "bf61"}), "nearest is bf16"));
  CHECK(has(refusal({"--max_steps", "3.5"}), "--max_steps (command line): expected an integer"));
  CHECK(has(refusal({"--max_steps", "99999999999999999999"}), "expected an integer"));
  CHECK(has(refusal({"--learning_rate", "nan"}), "expected a number"));
  CHECK(has(refusal({"--learning_rate", "1x"}), "expected a number"));
  CHECK(has(refusal({"--shuffle=maybe"}), "expected true or false"));
  CHECK(has(refusal({"--max_steps"}), "needs a value"));
  CHECK(has(refusal({"--max_steps", "--tf32"}), "needs a value"));
  CHECK(has(refusal({"train.json"}), "unexpected argument 'train.json'"));
  CHECK(has(refusal({"--fp16"}), "unknown flag --fp16 (prog --help"));
}

TEST_CASE("what is not UTF-8 is refused, as a name, as a value and after =") {
  const std::string bad = "bad\xff";
  CHECK(refusal({"--model_name", bad}) ==
        "argument 'bad\xEF\xBF\xBD': byte 3 is not valid UTF-8; records are JSON, so names of "
        "files must be UTF-8");
  CHECK(has(refusal({"--model_name=" + bad}), "byte 16 is not valid UTF-8"));
  CHECK(has(refusal({"--" + bad, "1"}), "byte 5 is not valid UTF-8"));
  CHECK(has(refusal({"--max_steps", bad}), "not valid UTF-8"));
  CHECK(has(refusal({bad}), "not valid UTF-8"));
  CHECK(has(refusal({"--help", bad}), "not valid UTF-8"));
  CHECK(has(refusal({"--config", bad}), "not valid UTF-8"));
  Values v;
  v.flags.parse({"--model_name", "gut\xC3\xA9"});
  CHECK(v.name == "gut\xC3\xA9");
}

TEST_CASE("a configuration file sits between the defaults and the command line") {
  const TemporaryFile file(
      R"({"max_steps": 8, "learning_rate": 0.01, "tf32": true, "dtype": "bf16"})");
  Values v;
  v.flags.parse({"--config", file.path, "--max_steps", "9"});
  CHECK(v.steps == 9);
  CHECK(v.rate == 0.01);
  CHECK(v.tf32);
  CHECK(v.flags.origin("learning_rate") == file.path);
  CHECK(v.flags.origin("max_steps") == "command line");
  CHECK(v.flags.origin("model_name") == "default");
  const Json config = Json::parse(v.flags.config_json(), {}, "config");
  CHECK(config.at("learning_rate").at("origin").as_string() == file.path);
  CHECK(config.at("max_steps").at("value").as_int64() == 9);
  CHECK_FALSE(config.contains("config"));
}

TEST_CASE("mistakes in a configuration file are usage errors") {
  for (const auto& [text, message] :
       {std::pair{R"({"max_step": 8})", "--max_steps"},
        std::pair{R"({"max_steps": 8, "max_steps": 9})", "max_steps"},
        std::pair{R"({"max_steps": [8]})", "expected an integer"},
        std::pair{R"({"model_name": ["a", "b"]})", "expected text, a list with commas"},
        std::pair{R"({"max_steps": 8.5})", "expected an integer"},
        std::pair{R"([1])", "expected an object"}, std::pair{R"({"config": "x"})", "another"},
        std::pair{R"({"max_steps")", ""}}) {
    const TemporaryFile file(text);
    CHECK(has(refusal({"--config", file.path}), message));
  }
  CHECK(has(refusal({"--config", "/no/such/file.json"}), "/no/such/file.json"));
}

TEST_CASE("a configuration file in YAML or TOML is named, JSON under their endings is read") {
  const TempDir dir;
  CHECK(has(refusal({"--config", dir.write("c.yaml", "max_steps: 8\n")}),
            "c.yaml: YAML is not read; write the same names and values as JSON: {"));
  CHECK(has(refusal({"--config", dir.write("c.yml", "# steps\nmax_steps: 8\n")}), "YAML"));
  CHECK(has(refusal({"--config", dir.write("c.toml", "max_steps = 8\n")}), "TOML"));
  Values v;
  v.flags.parse({"--config", dir.write("d.yaml", "{\"max_steps\": 8}")});
  CHECK(v.steps == 8);
}

TEST_CASE("a word behind a value says how several values are written") {
  CHECK(has(refusal({"--model_name", "a", "b"}),
            "unexpected argument 'b' behind --model_name a; --model_name takes one value: write "
            "a list with commas (--model_name a,b), a text with blanks in quotation marks"));
  CHECK(has(refusal({"--max_steps", "1", "2", "--tf32"}), "takes one value: an integer"));
  CHECK(refusal({"--dtype", "bf16", "fp32"}) ==
        "unexpected argument 'fp32' behind --dtype bf16; --dtype takes one value: fp32, bf16");
  CHECK(has(refusal({"--tf32", "x.json"}), "unexpected argument 'x.json'"));
  CHECK(has(refusal({"--no_flag", "a", "b"}), "unknown flag --no_flag"));
  CHECK(has(refusal({"--max_steps", "1", "-x"}), "unexpected argument '-x'; flags are"));
}

TEST_CASE("the text of --help of a name that others have says what it means here") {
  FlagSet flags("prog", "");
  TrainOptions options;
  add_train_flags(flags, options, Program::kText, find_foreign);
  CHECK(has(flags.help("bf16"), "--bf16 true is --dtype bf16"));
  CHECK(has(flags.help("--bf16"), "of parameters and computation"));
  CHECK(has(flags.help("logging_strategy"), "not available here: use --logging_steps"));
  CHECK(has(flags.help("torch_dtype"), "Values that are understood: float32, float16"));
  CHECK(has(error_of(ErrorCode::kInvalidArgument, [&] { flags.help("quantise"); }),
            "unknown flag --quantise"));
}

TEST_CASE("the help lists every flag that works") {
  Values v;
  const std::string help = v.flags.help();
  CHECK(has(help, "--dtype fp32|bf16"));
  CHECK(has(help, "--learning_rate"));
}

TEST_CASE("flags of another set are left to it with their values") {
  Values v;
  const auto others =
      v.flags.parse_known({"--rows", "1", "2", "--max_steps", "5", "--verbose", "--tf32", "--x=y"});
  CHECK(v.steps == 5);
  CHECK(v.tf32);
  CHECK(others == std::vector<std::string>{"--rows", "1", "2", "--verbose", "--x=y"});
}

TEST_CASE("training options are checked by value") {
  auto refused = [](const std::vector<std::string>& extra) {
    std::vector<std::string> arguments{"--model_config", "bloom-tiny", "--train_file", "t.json",
                                       "--tokenizer",    "dir",        "--output_dir", "out"};
    arguments.insert(arguments.end(), extra.begin(), extra.end());
    FlagSet flags("prog", "");
    TrainOptions options;
    return error_of(ErrorCode::kInvalidArgument, [&] {
      add_train_flags(flags, options, Program::kSquad, find_foreign);
      flags.parse(arguments);
      validate_options(options, Program::kSquad);
    });
  };
  CHECK(refused({}) == "no error");
  CHECK(has(refused({"--strategy", "zero4"}), "nearest is zero"));
  CHECK(has(refused({"--model", "dir"}), "either --model"));
  CHECK(has(refused({"--per_device_train_batch_size", "0"}), "at least 1"));
  CHECK(has(refused({"--learning_rate", "-1"}), "at least 0"));
  CHECK(has(refused({"--adam_beta2", "1"}), "at least 0 and below 1"));
  CHECK(has(refused({"--pipeline_parallel", "0"}), "at least 1"));
  CHECK(has(refused({"--tensor_parallel", "70000"}), "at most 65536"));
  CHECK(has(refused({"--pipeline_schedule", "1b1f"}), "nearest is 1f1b"));
  CHECK(has(refused({"--offload", "optimiser"}), "nearest is optimizer"));
  CHECK(has(refused({"--train_slice", "5:5"}), "slice"));
  CHECK(has(refused({"--report_to", "jsonl,tensorbord"}), "tensorbord"));
  CHECK(has(refused({"--label_padding", "include"}), "--supervise all"));
  // Only missing options are named.
  const std::string best = "--load_best_model_at_end needs ";
  const std::pair<const char*, const char*> lacking[] = {
      {"", "--validation_file FILE; --save_strategy epoch"},
      {"--save_strategy epoch", "--validation_file FILE"},
      {"--save_strategy steps --save_steps 6 --eval_steps 4", "--validation_file FILE"},
      {"--validation_file v", "--save_strategy epoch"},
      {"--validation_file v --eval_steps 5",
       "--save_strategy steps --save_steps N, a multiple of --eval_steps 5"},
      {"--validation_file v --eval_steps -1",
       "--save_strategy epoch; --eval_steps 0, an evaluation at each of its checkpoints"},
      {"--validation_file v --save_strategy epoch --eval_steps 5",
       "--eval_steps 0, an evaluation at each checkpoint of --save_strategy epoch; it is 5"},
      {"--validation_file v --save_strategy steps --save_steps 6",
       "--eval_steps N, of which --save_steps 6 is a multiple; it is 0"},
      {"--validation_file v --save_strategy steps --save_steps 6 --eval_steps 4",
       "an evaluation at every checkpoint, and --save_steps 6 is no multiple of --eval_steps 4"}};
  for (const auto& [arguments, missing] : lacking) {
    CHECK(refused(words_of(concat("--load_best_model_at_end ", arguments))) == best + missing);
  }
  CHECK(refused(words_of("--load_best_model_at_end --validation_file v --save_strategy epoch")) ==
        "no error");
  CHECK(refused(words_of("--load_best_model_at_end --validation_file v --save_strategy steps "
                         "--save_steps 6 --eval_steps 3")) == "no error");
  CHECK(has(refused({"--train_ids", "x"}),
            "give one of --train_file, --train_ids and --random_rows"));
}

TEST_CASE("the strategy flags reach the library") {
  FlagSet flags("prog", "");
  TrainOptions options;
  add_train_flags(flags, options, Program::kSquad, find_foreign);
  flags.parse(words_of(
      "--strategy fsdp --dtype bf16 --fp8 rowwise --reduce_dtype fp32 --reshard_after_forward "
      "false "
      "--fsdp_unit_numel 1000 --shard_ranks 2 --gradient_checkpointing --save_norm_outputs "
      "--offload optimizer+params --offload_step host --pin_memory false --pipeline_parallel "
      "2 --pipeline_schedule interleaved --pipeline_chunks 3 --tensor_parallel 4 "
      "--sequence_parallel"));
  flags.parse({"--pipeline_vocabulary", "shared", "--expert_parallel", "3"});
  const ParallelConfig config = parallel_config(options);
  CHECK(config.strategy == "fsdp");
  CHECK(config.precision.parameter == at::kBFloat16);
  CHECK(config.precision.fp8 == Fp8::kRowwise);
  CHECK(config.precision.reduce == at::kFloat);
  CHECK_FALSE(config.precision.gradient.has_value());
  CHECK_FALSE(config.reshard_after_forward);
  CHECK(config.unit_numel == 1000);
  CHECK(config.shard_ranks == 2);
  CHECK(config.gradient_checkpointing);
  CHECK(config.save_norm_outputs);
  CHECK(config.offload.what == Offload::kOptimizerAndParameters);
  CHECK(config.offload.step == OffloadStep::kHost);
  CHECK_FALSE(config.offload.pin_memory);
  CHECK(config.pipeline.schedule == "interleaved");
  CHECK(config.pipeline.chunks == 3);
  CHECK(config.pipeline.shared_vocabulary);
  CHECK(config.sequence_parallel);
  const MeshExtents mesh = mesh_extents(options, 24);
  CHECK(mesh.expert == 3);
  CHECK((mesh.pipeline == 2 && mesh.data == 3 && mesh.tensor == 4));
}

TEST_CASE("stages are balanced for the run's rows, in its plan as well") {
  Prepared run;
  run.model = LanguageModel::preset("bloom-560m").make_causal();
  TrainOptions options;
  options.axes.pipeline = 2;
  const auto first_stage = [&](double supervised_share, StageBalance balance) {
    run.supervised_share = supervised_share;
    options.axes.balance = balance;
    const PipelineConfig pipeline = parallel_config(run, options).pipeline;
    CHECK(planned_layout(run, options, 2).parallel.pipeline.block_costs == pipeline.block_costs);
    return partition(run.model, pipeline, 2).front().count;
  };
  CHECK(options.axes.balance == StageBalance::kTime);
  CHECK(first_stage(1, StageBalance::kTime) == 19);
  CHECK(first_stage(0.02, StageBalance::kTime) == 13);
  CHECK(first_stage(0.02, StageBalance::kMeasured) == 13);  // now it is measured
  CHECK(first_stage(0.02, StageBalance::kFlops) == 23);
  CHECK(first_stage(0.02, StageBalance::kParameters) == 13);
}
