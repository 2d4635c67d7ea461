// SPDX-License-Identifier: MIT
// tessera-plan --check.
#include "tests/programs/plan_answers.h"
#include "tests/support/text.hpp"

using namespace tessera::programs;
using tessera::test::has;

namespace {

const std::string kJob = "--model_config llama-tiny --per_device_train_batch_size 1 --card cpu ";

}  // namespace

TEST_CASE("tessera-plan --check says in one sentence that a layout is right") {
  const Answer answer = ask(kJob + "--ranks 8 --strategy zero2 --pipeline_parallel 2 " +
                            "--gradient_accumulation_steps 2 --check");
  INFO(answer.err);
  CHECK(answer.code == 0);
  CHECK(answer.err.empty());
  CHECK(has(answer.out, " operations of 8 ranks in two steps fit together"));
  CHECK(has(answer.out, " of them were run dry, in "));
  CHECK(answer.out.find('\n') + 1 == answer.out.size());
  const Answer alone = ask(kJob + "--ranks 1 --task classification --check");
  CHECK(alone.code == 0);
  CHECK(has(alone.out, "the 0 operations of 1 rank in two steps"));
}

TEST_CASE("tessera-plan --check takes every task and packed rows") {
  for (const std::string flags :
       {"--task causal --packing", "--task classification", "--task squad", "--task chat"}) {
    const Answer answer = ask(kJob + "--ranks 2 --strategy zero3 --check " + flags);
    INFO(answer.out << answer.err);
    CHECK(answer.code == 0);
  }
}

TEST_CASE("tessera-plan --check refuses what no run would take, and what it does not print") {
  CHECK(ask(kJob + "--ranks 6 --pipeline_parallel 4 --check").code == 2);
  for (const std::string flag : {"--fit", "--json"}) {
    const Answer answer = ask(kJob + "--ranks 2 --check " + flag);
    CHECK(answer.code == 2);
    CHECK(has(answer.err, "--check prints a sentence"));
  }
}

TEST_CASE("tessera-plan --check takes 1024 ranks in seconds") {
  const Answer answer =
      ask("--model_config llama-3.1-8b --dtype bf16 --ranks 1024 --pipeline_parallel 8 "
          "--tensor_parallel 8 --strategy zero2 --gradient_accumulation_steps 16 --card h100 "
          "--per_device_train_batch_size 1 --check");
  INFO(answer.err);
  CHECK(answer.code == 0);
  CHECK(has(answer.out, " of 1024 ranks in two steps"));
}
