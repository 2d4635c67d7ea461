// SPDX-License-Identifier: MIT
// tessera-plan with offloaded state, part of which stays on the GPU.
#include <cmath>

#include "tests/programs/plan_answers.h"

using namespace tessera;
using namespace tessera::programs;

TEST_CASE("state stays on the GPU as --offload_keep_on_gpu says, and auto leaves a reserve") {
  const std::string job =
      "--model_config bloom-560m --dtype bf16 --card h100 --per_device_train_batch_size 16 "
      "--offload optimizer ";
  const Json none = json_of(job + "--offload_keep_on_gpu 0"), stage = none.at("stages").at(0);
  CHECK(stage.at("optimizer_bytes").as_double() == 0);
  double host = stage.at("host_bytes").as_double();
  double time = none.at("step").at("step_time_s").as_double();
  for (const char* amount : {"0.5", "3.1", "3.3GiB", "auto"}) {
    INFO(amount);
    const Json plan = json_of(job + "--offload_keep_on_gpu " + amount);
    const Json now = plan.at("stages").at(0);
    const double kept = now.at("optimizer_bytes").as_double();
    CHECK(kept > 0);
    if (std::string(amount) == "0.5") CHECK(kept <= 0x1p29);
    CHECK(now.at("host_bytes").as_double() < host);
    CHECK(plan.at("step").at("step_time_s").as_double() < time);
    host = now.at("host_bytes").as_double();
    time = plan.at("step").at("step_time_s").as_double();
  }
  CHECK(host == 0);  // all of it fits
  // With half of that memory, auto takes the rest, less 5 %.
  const double memory = stage.at("device_bytes").as_double() + 4e9;
  const Json half = json_of(
      job + concat("--offload_keep_on_gpu auto --gpu_memory ", std::ceil(memory / 0x1p20), "MiB"));
  CHECK(half.at("fits").as_bool());
  const double used = half.at("stages").at(0).at("device_bytes").as_double();
  CHECK(used <= 0.95 * (memory + 0x1p20));
  CHECK(used > 0.9 * memory);
  // As unless told otherwise, and nothing of it on the CPU.
  CHECK(json_of(job).at("stages").at(0).at("optimizer_bytes").as_double() ==
        json_of(job + "--offload_keep_on_gpu auto")
            .at("stages")
            .at(0)
            .at("optimizer_bytes")
            .as_double());
  const Json on_cpu = json_of(
      "--model_config bloom-560m --dtype bf16 --card cpu --offload optimizer --offload_step host");
  CHECK(on_cpu.at("stages").at(0).at("optimizer_bytes").as_double() == 0);
  for (const std::string bad : {"-1", "much", "nan", "Auto"}) {
    const Answer answer = ask(job + "--offload_keep_on_gpu " + bad);
    INFO(bad << ": " << answer.err);
    CHECK(answer.code == 2);
    CHECK(answer.err.find("as 2.5 or 900MiB, at most 2^60 bytes, found '" + bad + "'") !=
          std::string::npos);
  }
}
