// SPDX-License-Identifier: MIT
// tessera-plan --fit: the longest row.
#include "tessera/core/error.h"
#include "tests/programs/plan_answers.h"
#include "tests/support/test.hpp"

using namespace tessera;
using namespace tessera::programs;

TEST_CASE("tessera-plan --fit names the longest row, and ranks that share it double it") {
  const std::string job =
      "--task causal --model_config llama-3.2-1b --dtype bf16 --card h200 --gpu_memory 30GiB "
      "--per_device_train_batch_size 1 --max_seq_length 4096 ";
  const auto longest = [&](const std::string& more) {
    const Json fit = json_of(job + more + " --fit");
    const int64_t tokens = fit.at("longest_row").as_int64();
    const auto with = [&](int64_t length) {
      return ask(job + more + " " + fit.at("longest_row_flags").as_string() +
                 concat(" --max_seq_length ", length));
    };
    CHECK(with(tokens).code == 0);
    CHECK(with(tokens + tokens / 16).code == 3);
    CHECK(ask(job + more + " --fit").out.find("\nlongest row: ") != std::string::npos);
    return static_cast<double>(tokens);
  };
  const double alone = longest("--ranks 1"), shared = longest("--ranks 2 --context_parallel 2");
  CHECK(alone > 50'000);
  CHECK(shared > 1.6 * alone);
  CHECK(shared < 2.6 * alone);
}
