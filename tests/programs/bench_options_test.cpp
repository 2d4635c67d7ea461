// SPDX-License-Identifier: MIT
#include "benchmarks/strategies/bench_options.h"

#include "tessera/core/error.h"
#include "tests/programs/train_options.h"
#include "tests/support/messages.hpp"
#include "tests/support/test.hpp"

using namespace tessera;
using bench::parse_options;

TEST_CASE("bench_strategies takes the flags of the programs, and lists of two") {
  const bench::Options o = parse_options(programs::words_of(
      "--strategy fsdp,zero3 --per_device_train_batch_size 8,16 --max_seq_length 64 "
      "--max_steps 3 --max_grad_norm 2 --gradient_checkpointing --prefetch_blocks 2 "
      "--pipeline_parallel 2 --pipeline_schedule interleaved --pipeline_chunks 3 --rows "
      "packed --sync false"));
  CHECK(o.strategies == "fsdp,zero3");
  CHECK(o.micro_batches == "8,16");
  CHECK(o.run.data.max_seq_length == 64);
  CHECK(o.of("zero3").parallel.strategy == "zero3");
  CHECK(o.variant() == "pre2 pp2 int3 gc rows-packed clip2 nosync");
  CHECK(bench::Options().variant().empty());
  CHECK_FALSE(o.profile);
  CHECK(parse_options({"--profile"}).profile);
}

TEST_CASE("bench_strategies names what it lacks, and reads no flag in vain") {
  const auto refusal = [](std::vector<std::string> arguments) {
    return error_of(ErrorCode::kInvalidArgument, [&] { parse_options(arguments); });
  };
  CHECK_THAT(refusal({"--max_seq_len", "4"}), test::contains("the nearest is --max_seq_length"));
  CHECK_THAT(refusal({"--max_seq_length"}), test::contains("needs a value"));
  CHECK_THAT(refusal({"--strategy", "ddp,zero4"}), test::contains("'zero4' is no strategy"));
  CHECK_THAT(refusal({"--per_device_train_batch_size", "4,x"}), test::contains("'x'"));
  CHECK_THAT(refusal({"--learning_rate", "1"}), test::contains("unknown flag --learning_rate"));
  CHECK_THAT(refusal({"--profile", "maybe"}), test::contains("maybe"));
  CHECK_THAT(refusal({"--bucket_bytes", "0"}), test::contains("at least 1"));
}
