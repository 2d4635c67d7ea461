// SPDX-License-Identifier: MIT
// Text output of tessera-plan.
#include <sstream>

#include "lib/core/number_text.h"
#include "tessera/core/error.h"
#include "tessera/core/json.h"
#include "tests/programs/plan_answers.h"
#include "tests/support/test.hpp"

using namespace tessera;
using namespace tessera::programs;

TEST_CASE("tessera-plan says in a sentence what its table comes to, without rows of zeros") {
  const std::string job = "--model_config llama-3.2-1b --strategy zero2 --ranks 4 --dtype bf16 ";
  const Answer answer = ask(job + "--card h100");
  const Json plan = json_of(job + "--card h100");
  const double step_s = plan.at("step").at("step_time_s").as_double();
  const double bytes = plan.at("stages").at(0).at("device_bytes").as_double();
  const std::string begin = answer.out.substr(0, answer.out.find('\n'));
  CHECK(begin.starts_with("llama-3.2-1b on 4 x h100: zero2 fits with "));
  CHECK_THAT(begin, test::contains(printed(
                        "with %.1f of %.1f GiB a rank; a step of 32 x 512 tokens takes %.1f ms, ",
                        bytes / 0x1p30, plan.at("card_bytes").as_double() / 0x1p30, step_s * 1e3)));
  // Thousands separators, and no row of zeros.
  CHECK_THAT(answer.out, test::contains("\n1,235,814,400 parameters, zero2 on 4 rank(s)"));
  const double rate = plan.at("step").at("tokens_per_second").as_double();
  CHECK_THAT(begin, test::contains(" ms, " + with_thousands(printed("%.0f", rate)) + " tokens/s."));
  std::istringstream lines(answer.out);
  for (std::string line; std::getline(lines, line);) {
    if (line.find("0.0") == line.npos) continue;
    const std::string cell = line.substr(line.find_last_of(' ') + 1);
    INFO(line);
    CHECK(cell != "0.0");
  }
  CHECK(answer.out.find("deferred weight gradients") == answer.out.npos);
  CHECK(answer.out.find("on the host") == answer.out.npos);
  CHECK_THAT(ask(job + "--card h100 --offload optimizer --offload_keep_on_gpu 0").out,
             test::contains("on the host"));
  // A row that only one stage has is kept.
  const Answer stages =
      ask("--model_config bloom-7b1 --pipeline_parallel 2 --ranks 4 --dtype bf16 --card h100 "
          "--strategy zero1 --gradient_accumulation_steps 8");
  CHECK_THAT(stages.out, test::contains("\n  embedding "));
  CHECK_THAT(ask(job + "--card h100 --gpu_memory 4GiB").out,
             test::contains("zero2 does not fit: it needs 13.8 of 4.0 GiB a rank"));
  CHECK_THAT(ask("--model_config gpt2 --ranks 2 --card cpu").out,
             test::contains("gpt2 on 2 ranks of this host: ddp fits with "));
}
