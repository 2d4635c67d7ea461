// SPDX-License-Identifier: MIT
// Exported programs on a tensor axis: the numbers of one rank.
#include <fstream>

#include "tessera/checkpoint/huggingface.h"
#include "tessera/optim/sgd.h"
#include "tests/parity/exported_adapter.h"
#include "tests/parity/programs_work.h"
#include "tests/support/fused_layers.h"
#include "tests/support/ranks.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/support/test.hpp"

using namespace tessera;
using namespace tessera::testing;

TEST_CASE("exported decoders on a tensor axis give the numbers of one rank") {
  for (const std::string name : {"gemma3", "gpt_neox", "llama"}) {
    for (const bool own_operators : {true, false}) {
      INFO(name << ", own operators " << own_operators);
      const HuggingFaceDirectory weights(directory_of(name));
      ParityWork work = decoder_work(name, 96, weights);
      work.model = from_program(directory_of(name), {.own_operators = own_operators});
      work.optimizer = make_sgd({});
      const RankRecord expected = single_run(work);
      check_row(row_of("single", {.ranks = 2, .tensor = 2}), work, expected);
      if (!own_operators) continue;
      check_row(row_of("zero3", {.ranks = 4, .accumulation = 2, .tensor = 2}, true), work,
                expected);
      check_row(row_of("fsdp", {.ranks = 4, .accumulation = 2, .tensor = 2}), work, expected);
      check_row(row_of("single", {.ranks = 4, .accumulation = 2, .pipeline = 2, .tensor = 2}), work,
                expected);
    }
  }
}

TEST_CASE("ranks share whole layers of an exported program, composed and fused") {
  const HuggingFaceDirectory weights(directory_of("llama"));
  ParityWork work = decoder_work("llama", 96, weights);
  work.optimizer = make_sgd({});
  const RankRecord expected = single_run(work);
  const ParityRow row = row_of("ddp", {.ranks = 4, .accumulation = 2, .tensor = 2});
  const ModelSpec plain = work.model;
  for (const bool sequence_parallel : {false, true}) {
    ParityRow both = row;
    ParityRow deep =
        row_of("single", {.ranks = 4, .accumulation = 2, .pipeline = 2, .tensor = 2}, true);
    both.parallel.sequence_parallel = deep.parallel.sequence_parallel = sequence_parallel;
    for (const ModelSpec& model : {plain, with_fused_layers(plain)}) {
      work.model = model;
      check_row(both, work, expected);
      check_row(deep, work, expected);
    }
  }
  // Rules that cut a layer otherwise than the block.
  const TempDir folder;
  std::ofstream(folder.path("rules.json"))
      << R"({"gate_proj": "whole", "up_proj": "whole", "down_proj": "whole"})";
  const ModelSpec ruled =
      from_program(directory_of("llama"), {.tensor_rules = folder.path("rules.json")});
  for (const ModelSpec& model : {ruled, with_fused_layers(ruled)}) {
    work.model = model;
    check_row(row, work, expected);
  }
  ParityRow by_tokens = row;
  by_tokens.parallel.sequence_parallel = true;
  CHECK_THROWS_WITH(run_on_threads(by_tokens, work),
                    test::contains("cannot hold a part of the tokens: it is no whole layer"));
}

TEST_CASE("adapters of an exported program on a tensor axis train as in PEFT") {
  const ExportedAdapter exported(directory_of("gpt_neox"));
  const auto trained = run_on_threads(row_of("single", {.ranks = 2, .tensor = 2}),
                                      peft_work(exported), /*visits=*/true);
  CHECK(difference_of_losses(trained.front(), exported.expected.at("loss")) < 1e-5);
  CHECK(difference_of_tensors(trained.front(), exported) == "");
}
