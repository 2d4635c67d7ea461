// SPDX-License-Identifier: MIT
// tessera-plan from the command line.
#include <algorithm>
#include <cmath>
#include <map>
#include <sstream>
#include <utility>

#include "tessera/core/error.h"
#include "tessera/core/json.h"
#include "tests/programs/plan_answers.h"
#include "tests/support/temp_dir.hpp"
#include "tests/support/test.hpp"

using namespace tessera;
using namespace tessera::programs;

TEST_CASE("tessera-plan says what a model needs that is nowhere") {
  const Json plan = json_of(
      "--model_config bloom-7b1 --strategy zero3 --ranks 8 --dtype bf16 "
      "--card h200 --persistence_threshold 0");
  const double parameters = 7069016064.0;
  const Json stage = plan.at("stages").at(0);
  CHECK(stage.at("parameters_bytes").as_double() == Approx(2 * parameters / 8).epsilon(1e-3));
  CHECK(stage.at("gradients_bytes").as_double() == Approx(2 * parameters / 8).epsilon(1e-3));
  CHECK(stage.at("optimizer_bytes").as_double() == Approx(10 * parameters / 8).epsilon(1e-3));
  CHECK(plan.at("fits").as_bool());
  CHECK(plan.at("stages").size() == 1);
}

TEST_CASE("the plan counts what the optimizer keeps") {
  const std::string job =
      "--model_config bloom-7b1 --strategy zero3 --ranks 8 --dtype bf16 --card h200 "
      "--persistence_threshold 0 ";
  const double parameters = 7069016064.0;
  // The table keeps fp32 moments: 8 bytes instead of 2.03.
  const double coded = 4.03125 + 5.96875 * 250880 * 4096 / parameters;
  for (const auto& [optimizer, bytes] : {std::pair("adamw_torch", 10.0),
                                         {"adamw_torch_fused", 10},
                                         {"adamw_torch --moments_dtype bf16", 6},
                                         {"adamw_torch --moments_dtype int8", coded},
                                         {"adamw_bnb_8bit", coded},
                                         {"adam", 10},
                                         {"lion_32bit", 8},
                                         {"adagrad", 8},
                                         {"sgd", 4},
                                         {"sgd --optim_args momentum=0.9", 8}}) {
    INFO(optimizer);
    const Json stage = json_of(job + "--optim " + optimizer).at("stages").at(0);
    CHECK(stage.at("optimizer_bytes").as_double() == Approx(bytes * parameters / 8).epsilon(1e-3));
  }
  // Momentum of hidden matrices, two moments for the table and the rest; on the fullest rank.
  const Json muon = json_of(job + "--optim muon --optim_args lr=0.02").at("stages").at(0);
  const double table = 250880.0 * 4096, fullest = 1.1;
  CHECK(muon.at("optimizer_bytes").as_double() > (8 * parameters + 2 * table) / 8);
  CHECK(muon.at("optimizer_bytes").as_double() < fullest * (8 * parameters + 2 * table) / 8);
  CHECK(muon.at("buffers_bytes").as_double() >
        json_of(job + "--optim sgd").at("stages").at(0).at("buffers_bytes").as_double());
  const Answer rates = ask(job + "--optim muon --optim_args lr=0.02 --learning_rate 0");
  CHECK(rates.code == 2);
  CHECK_THAT(rates.err, test::contains("--optim_args: lr 0.02 beside --learning_rate 0; both must "
                                       "be positive"));
  const Answer refused = ask(job + "--optim sgd --optim_args betas=0.9");
  CHECK(refused.code == 2);
  CHECK_THAT(refused.err, test::contains("\"betas=0.9\" is no argument of sgd; it takes momentum, "
                                         "nesterov"));
  const Answer unknown = ask(job + "--optim adafactor");
  CHECK(unknown.code == 2);
  CHECK_THAT(unknown.err, test::contains("'adafactor' is not one of adamw_torch, adamw_8bit, "
                                         "adam, sgd, adagrad, lion_32bit, muon"));
  const Answer twice = ask(job + "--optim adamw_8bit --moments_dtype bf16");
  CHECK(twice.code == 2);
  CHECK_THAT(twice.err, test::contains("--optim adamw_8bit has moments in int8"));
  const Answer cut =
      ask("--model_config bloom-mini --strategy ddp --ranks 2 --tensor_parallel 2 --dtype bf16 "
          "--card h200 --optim adamw_8bit");
  CHECK(cut.code == 2);
  CHECK_THAT(cut.err, test::contains("moments in 8 bits: the tensor axis cuts "));
}

TEST_CASE("tessera-plan names what a rank sends, with the link's bandwidth and time") {
  const std::string job =
      "--model_config bloom-560m --strategy zero1 --ranks 16 --dtype bf16 --card h200 "
      "--link_gb_per_s 300 --network_gb_per_s 20";
  const Json near = json_of(job + " --gpus_per_host 16").at("messages");
  REQUIRE(near.size() == 3);
  CHECK(near.at(0).at("operation").as_string() == "reduce-scatter");
  CHECK(near.at(0).at("bytes").as_double() == Approx(2 * 559214592.0 * 15 / 16).epsilon(1e-3));
  CHECK(near.at(0).at("time_s").as_double() == Approx(near.at(0).at("bytes").as_double() / 300e9));
  CHECK(near.at(1).at("operation").as_string() == "all-gather");  // of a shared table's rows
  CHECK(near.at(1).at("bytes").as_double() == Approx(8.0 * 512 * 1024 * 2 * 15).epsilon(0.01));
  const Json far = json_of(job + " --gpus_per_host 8").at("messages");
  CHECK(far.at(0).at("between_hosts").as_bool());
  // A host's eight ranks have a network card each; the link inside the host is the upper bound.
  CHECK(far.at(0).at("bytes_per_second").as_double() == 8 * 20e9);
  const Json apart = json_of(job + " --gpus_per_host 2 --tensor_parallel 2").at("messages");
  CHECK(apart.at(0).at("bytes_per_second").as_double() == 20e9);
  const Json fast = json_of(job + "0 --gpus_per_host 8").at("messages");
  CHECK(fast.at(0).at("bytes_per_second").as_double() == 300e9);
}

TEST_CASE("tessera-plan waits for what a slow link cannot send beside the backward pass") {
  const auto step = [](const std::string& flags) {
    return json_of("--model_config bloom-560m --ranks 2 --dtype bf16 --card h200 " + flags)
        .at("step");
  };
  const auto seconds = [](const Json& part, const char* name) { return part.at(name).as_double(); };
  const Json fast = step("--strategy ddp"), slow = step("--strategy ddp --link_gb_per_s 0.5");
  // A ring of two sends half of the gradients twice, and the batch's rows of a shared table.
  const double rows = 8.0 * 512 * 1024 * 2;
  const double sent = (2 * 559214592.0 + rows) / 0.5e9;
  CHECK(seconds(fast, "comm_exposed_s") < 0.2 * seconds(fast, "step_time_s"));
  const double meeting = 1.8e-3;
  CHECK(seconds(slow, "comm_exposed_s") ==
        Approx(meeting + sent - seconds(slow, "compute_s") * 2 / 3).epsilon(1e-3));
  CHECK(seconds(slow, "step_time_s") - seconds(fast, "step_time_s") ==
        Approx(seconds(slow, "comm_exposed_s") - seconds(fast, "comm_exposed_s")).epsilon(1e-6));
  // Sums of activations are never overlapped.
  const auto exposed = [&](const std::string& link) {
    return seconds(step("--tensor_parallel 2 --strategy single --link_gb_per_s " + link),
                   "comm_exposed_s");
  };
  CHECK(exposed("1") - exposed("10") ==
        Approx(10 * (exposed("10") - exposed("100"))).epsilon(1e-3));
}

TEST_CASE("tessera-plan counts the slowest stage, and its wait for the others") {
  const auto step = [](const std::string& flags) {
    return json_of(
               "--model_config bloom-560m --ranks 4 --dtype bf16 --card h200 "
               "--gradient_accumulation_steps 6 " +
               flags)
        .at("step");
  };
  const Json four = step("--pipeline_parallel 4"), alone = step("--strategy ddp");
  const double compute = four.at("compute_s").as_double();
  CHECK(four.at("bubble_s").as_double() == Approx(compute * 3 / 6).epsilon(1e-6));
  CHECK(alone.at("bubble_s").as_double() == 0);
  // The head with BLOOM's vocabulary is more than a quarter of the model.
  CHECK(compute > 1.2 * alone.at("compute_s").as_double() / 4);
}

TEST_CASE("tessera-plan takes bandwidths that were measured") {
  const TempDir folder;
  const std::string environment = folder.write(
      "env.json",
      R"({"bandwidth": {"host to GPU 0, pinned": "41.5 GB/s", "GPU 0 to GPU 1": "250.0 GB/s"}})");
  const std::string benchmark = folder.write(
      "b.json", R"({"benchmarks": [{"busbw_GB_per_s": 200.5}, {"busbw_GB_per_s": 310.5}]})");
  const std::string job = "--model_config gpt2 --ranks 2 --card h200 --bandwidths ";
  CHECK(json_of(job + environment).at("messages").at(0).at("bytes_per_second").as_double() ==
        250e9);
  CHECK(json_of(job + benchmark).at("messages").at(0).at("bytes_per_second").as_double() ==
        310.5e9);
  CHECK(ask(job + folder.write("other.json", "{}")).code == 4);
}

TEST_CASE("tessera-plan ends with 3 where the layout does not fit, with 2 for what is no layout") {
  const Answer large = ask("--model_config bloom-7b1 --ranks 2 --dtype bf16 --card h100");
  CHECK(large.code == 3);
  CHECK(large.err.find("does not fit") != std::string::npos);
  CHECK(ask("--model_config bloom-7b1 --rank 2").code == 2);
  CHECK(ask("--model_config bloom-7b1 --card h20").code == 2);
  CHECK(ask("--model_config bloom-560m --ranks 3 --tensor_parallel 2").code == 2);
  CHECK(ask("--model_config bloom-560m --ranks 6 --tensor_parallel 6").code == 2);
  CHECK(ask("--ranks 2").code == 2);
}

TEST_CASE("tessera-plan takes the memory of a GPU by hand") {
  const std::string job = "--model_config llama-3.2-1b --dtype bf16 --card h200 --gpu_memory ";
  const std::pair<const char*, double> good[] = {
      {"80GiB", 80 * 0x1p30},   {"81559MiB", 81559 * 0x1p20},
      {"0.5TiB", 0.5 * 0x1p40}, {"24GB", 24e9},
      {"24000mb", 24e9},        {"1.5TB", 1.5e12}};
  for (const auto& [text, bytes] : good) {
    INFO(text);
    CHECK(json_of(job + text).at("card_bytes").as_double() == bytes);
  }
  const Json whole = json_of("--model_config llama-3.2-1b --dtype bf16 --card h200");
  const double needed = whole.at("stages").at(0).at("device_bytes").as_double();
  CHECK(ask(job + concat(std::ceil(needed / 1e6), "MB")).code == 0);
  const Answer small = ask(job + concat(std::floor(needed / 1e6), "MB"));
  CHECK(small.code == 3);
  CHECK(small.err.find("does not fit into") != std::string::npos);
  CHECK(ask(job + "1MiB --fit").code == 3);
  for (const std::string bad : {"80", "GiB", "80G", "80Gib/s", "-80GiB", "0GiB", "nanGiB", "infGiB",
                                "1e999GiB", "80GiB8"}) {
    const Answer answer = ask(job + bad);
    INFO(bad << ": " << answer.err);
    CHECK(answer.code == 2);
    CHECK(answer.out.empty());
    CHECK(answer.err.find("as 80GiB, found '" + bad + "'") != std::string::npos);
  }
  const Answer host = ask("--model_config gpt2 --card cpu --gpu_memory 8GiB");
  CHECK(host.code == 2);
  CHECK(host.err.find("name a GPU") != std::string::npos);
  CHECK(ask("--model_config gpt2 --card h200 --gpu_memroy 8GiB").err.find("--gpu_memory") !=
        std::string::npos);
}

TEST_CASE("as few blocks run again as --activation_memory asks for, and the plan says how many") {
  const std::string job =
      "--model_config llama-3.2-1b --dtype bf16 --card h200 --per_device_train_batch_size 8 ";
  const auto stage_of = [&](const std::string& flags) {
    return json_of(job + flags).at("stages").at(0);
  };
  const auto held = [](const Json& stage) {
    double bytes = stage.at("workspace_bytes").as_double();
    for (const char* part :
         {"embedding", "layers", "gradients of activations", "running", "constants", "inputs"}) {
      bytes += stage.at(concat(part, "_bytes")).as_double();
    }
    return bytes;
  };
  const double all_kept = held(stage_of("")), none = held(stage_of("--gradient_checkpointing"));
  int64_t before = 1000;
  double time_before = 1e9;
  for (int part = 1; part <= 5; ++part) {
    const double asked = (none + part * (all_kept - none) / 4) / 0x1p20;
    const std::string flags = concat("--activation_memory ", std::ceil(asked), "MiB ");
    const Json plan = json_of(job + flags), stage = plan.at("stages").at(0);
    const int64_t again = stage.at("recomputed_blocks").as_int64();
    INFO(flags << ": " << again << " blocks");
    CHECK(again <= before);
    CHECK((again == 0) == (part == 5));
    CHECK(held(stage) <= std::ceil(asked) * 0x1p20);
    CHECK(held(stage) <= stage.at("activation_limit_bytes").as_double() * (1 + 1e-9));
    const Json step = plan.at("step");
    CHECK((step.at("recomputed_operations_ratio").as_double() > 0) == (again > 0));
    CHECK(step.at("recomputed_operations_ratio").as_double() < 1.0 / 3);
    CHECK(step.at("step_time_s").as_double() <= time_before);
    const std::string text = ask(job + flags).out;
    CHECK(text.find(concat("recomputed in backward: ", again, " of ",
                           stage.at("recomputable_blocks").as_int64(), " blocks, ")) !=
          std::string::npos);
    before = again;
    time_before = step.at("step_time_s").as_double();
  }
  const Json stages = json_of(job +
                              "--ranks 2 --pipeline_parallel 2 --gradient_accumulation_steps 8 "
                              "--activation_memory 2.5")
                          .at("stages");
  CHECK(stages.at(0).at("recomputed_blocks").as_int64() >
        stages.at(1).at("recomputed_blocks").as_int64());
}

TEST_CASE(
    "with --activation_memory auto blocks stay that the device has room for, less a reserve") {
  const std::string job =
      "--model_config llama-3.2-1b --dtype bf16 --card h200 --per_device_train_batch_size 8 ";
  const auto needed = [&](const std::string& flags) {
    return json_of(job + flags).at("stages").at(0).at("device_bytes").as_double();
  };
  const double all_kept = needed(""), none = needed("--gradient_checkpointing");
  const double memory = (all_kept + none) / 2 / 0x1p20;
  const Json plan =
      json_of(job + concat("--activation_memory auto --gpu_memory ", std::ceil(memory), "MiB"));
  CHECK(plan.at("fits").as_bool());
  const Json stage = plan.at("stages").at(0);
  CHECK(stage.at("recomputed_blocks").as_int64() > 0);
  CHECK(stage.at("recomputed_blocks").as_int64() < stage.at("recomputable_blocks").as_int64());
  CHECK(stage.at("device_bytes").as_double() <= 0.95 * (memory + 1) * 0x1p20);
  CHECK(json_of(job + "--activation_memory auto")
            .at("stages")
            .at(0)
            .at("recomputed_blocks")
            .as_int64() == 0);
  const Answer small =
      ask(job + concat("--activation_memory auto --gpu_memory ", std::floor(none / 0x1p20), "MiB"));
  CHECK(small.code == 3);
  CHECK(small.err.find("--activation_memory auto allows") != std::string::npos);
}

TEST_CASE("an --activation_memory that no plan meets ends with 3, and what is no amount with 2") {
  const std::string job = "--model_config llama-3.2-1b --dtype bf16 --card h200 ";
  const Answer small = ask(job + "--activation_memory 10MiB");
  CHECK(small.code == 3);
  const size_t least = small.err.find("; --activation_memory ");
  REQUIRE(least != std::string::npos);
  const std::string enough =
      small.err.substr(least + 2, small.err.find(" is the least") - least - 2);
  CHECK(ask(job + enough).code == 0);
  for (const std::string bad : {"0", "-1", "much", "2GB/s", "nan", "Auto"}) {
    const Answer answer = ask(job + "--activation_memory " + bad);
    INFO(bad << ": " << answer.err);
    CHECK(answer.code == 2);
    CHECK(answer.err.find("as 2.5 or 900MiB, at most 2^60 bytes, found '" + bad + "'") !=
          std::string::npos);
  }
  const Answer both = ask(job + "--activation_memory 2.5 --gradient_checkpointing");
  CHECK(both.code == 2);
  CHECK(both.err.find("give one of the two") != std::string::npos);
  CHECK(ask(job + "--activation_memory 100 --gradient_checkpointing false").code == 0);
}

TEST_CASE("tessera-plan refuses what no run would take, in one line") {
  const TempDir folder;
  const std::string yaml = folder.write("fsdp.yaml", "distributed_type: FSDP\nnum_processes: 2\n");
  const std::pair<std::string, const char*> bad[] = {
      {"bloom-560m --per_device_train_batch_size 0", "at least 1"},
      {"bloom-560m --max_seq_length -1", "at least 1"},
      {"bloom-560m --per_device_train_batch_size 1000000000000 --max_seq_length 1000000000",
       "at most 2^40 tokens"},
      {"bloom-560m --per_device_train_batch_size 1000000 --max_seq_length 1000000", "too large"},
      {"gpt2 --max_seq_length 4096", "1024 positions"},
      {"bloom-560m --ranks 0", "--ranks is 0"},
      {"bloom-560m --ranks 2 --strategy zero2 --offload optimizer+params", "zero3"},
      {"bloom-560m --ranks 2 --strategy single", "use ddp"},
      {"bloom-560m --ranks 2 --pipeline_parallel 2 --pipeline_chunks 2", "chunks"},
      {"bloom-560m --sequence_parallel", "tensor axis"},
      {"bloom-560m --lora true", "needs --lora_r"},
      {"bloom-560m --deepspeed " + yaml, "a configuration of accelerate"}};
  for (const auto& [flags, piece] : bad) {
    const Answer answer = ask("--card h200 --model_config " + flags);
    INFO(flags << ": " << answer.err);
    CHECK(answer.code == 2);
    CHECK(answer.err.find(piece) != std::string::npos);
    CHECK(std::count(answer.err.begin(), answer.err.end(), '\n') == 1);
  }
  CHECK(
      ask("--card h200 --model_config bloom-7b1 --dtype bf16 --strategy zero3 --ranks 1024").code ==
      0);
}

TEST_CASE("tessera-plan --fit --json names the same layouts as objects") {
  const std::string job =
      "--model_config llama-3.2-1b --dtype bf16 --card h200 --per_device_train_batch_size 8 --fit ";
  const Json fit = json_of(job + "--gpu_memory 16GiB"), none = json_of(job + "--gpu_memory 2GiB");
  const std::string text = ask(job + "--gpu_memory 16GiB").out;
  REQUIRE(fit.at("fits").size() == 1);
  REQUIRE(fit.at("faster").size() == 3);
  const Json best = fit.at("fits").at(0);
  CHECK(text.find(best.at("flags").as_string()) < text.find("faster, but"));
  CHECK(best.at("needed_bytes").as_double() < 16.0 * (1 << 30));
  for (const Json& faster : fit.at("faster").items()) {
    CHECK(faster.at("needed_bytes").as_double() > 16.0 * (1 << 30));
    CHECK(faster.at("step_time_s").as_double() <= best.at("step_time_s").as_double() * 1.01);
  }
  CHECK(none.at("fits").size() == 0);
  CHECK(none.at("least").size() == 3);
}

TEST_CASE("tessera-plan --fit names the fastest layout that fits, and what faster ones need") {
  const std::string job =
      "--model_config llama-3.2-1b --dtype bf16 --card h200 --gpu_memory 16GiB ";
  const Answer fit = ask(job + "--ranks 1 --per_device_train_batch_size 8 --fit");
  CHECK(fit.code == 0);
  const auto flags_after = [&](const std::string& title, int line) {
    size_t at = fit.out.find(title);
    for (int i = 0; i <= line; ++i) at = fit.out.find('\n', at) + 1;
    const size_t begin = fit.out.find("--strategy", at);
    return fit.out.substr(begin, fit.out.find('\n', begin) - begin);
  };
  REQUIRE(fit.out.starts_with("fastest of "));
  CHECK(ask(job + flags_after("fastest of ", 0)).code == 0);
  REQUIRE(fit.out.find("faster, but they need more") != std::string::npos);
  for (int line = 0; line < 3; ++line) {
    CHECK(ask(job + flags_after("faster, but", line)).code == 3);
  }
}

TEST_CASE("tessera-plan --fit says when nothing fits, and keeps the global batch") {
  const Answer none =
      ask("--model_config bloom-7b1 --dtype bf16 --card h200 --gpu_memory 4GiB --ranks 1 --fit");
  CHECK(none.code == 3);
  CHECK(none.out.starts_with("none of "));
  const Answer two =
      ask("--model_config gpt2 --dtype bf16 --card h200 --ranks 2 --per_device_train_batch_size 6 "
          "--gradient_accumulation_steps 2 --fit --max_seq_length 128");
  CHECK(two.code == 0);
  const size_t first = two.out.find("--strategy");
  std::istringstream words(two.out.substr(first, two.out.find('\n', first) - first));
  std::map<std::string, std::string> flags;
  for (std::string name, value; words >> name >> value;) flags[name] = value;
  const auto number = [&](const char* name, int64_t usual) {
    return flags.contains(name) ? std::stoll(flags[name]) : usual;
  };
  const int64_t data = 2 / number("--tensor_parallel", 1) / number("--pipeline_parallel", 1);
  CHECK(data * number("--per_device_train_batch_size", 1) *
            number("--gradient_accumulation_steps", 1) ==
        24);
}
