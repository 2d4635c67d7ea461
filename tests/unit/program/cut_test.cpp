// SPDX-License-Identifier: MIT
// Where programs are cut.
#include "tests/support/test.hpp"
#include "tests/unit/program/fixture.h"

using namespace tessera;
using namespace tessera::test;

TEST_CASE("a decoder is cut at its layers") {
  const ModelSpec spec = from_program(program_directory("llama"));
  std::vector<std::string> names;
  for (const BlockBuilder& block : spec.blocks) names.push_back(block.name);
  CHECK(names == std::vector<std::string>{"embedding", "model.layers.0", "model.layers.1", "head"});
  CHECK(spec.stored_name("model.layers.1", "mlp.up_proj.weight") ==
        "model.layers.1.mlp.up_proj.weight");
}
