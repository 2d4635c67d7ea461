// SPDX-License-Identifier: MIT
// Names and parts under which files hold a program's parameters.
#include "tessera/program/stored_names.h"

#include <ATen/ATen.h>

#include <map>

#include "tests/support/ranks.hpp"
#include "tests/support/test.hpp"
#include "tests/unit/program/committed.h"

using namespace tessera;
using namespace tessera::test;

TEST_CASE("every tensor of the Hub's file comes out of the program's parameters again") {
  for (const std::string name : {"gemma3", "gpt_neox", "gpt_oss", "llama", "olmoe", "phi3"}) {
    INFO(name);
    LoadedModel loaded(program_directory(name));
    const Json names = Json::parse(stored_names(program_directory(name)), {}, "names");
    std::map<std::string, at::Tensor> written;
    size_t block = 0;
    for (const BlockBuilder& builder : loaded.spec.blocks) {
      for (const Parameter& parameter : loaded.model.blocks()[block]->parameters()) {
        const auto stored = names.find(builder.name + "." + parameter.name);
        if (!stored) continue;  // tied to one of another block
        for (const auto& [stored_name, part] : stored_tensors(*stored, parameter.tensor)) {
          INFO(stored_name);
          CHECK(written.emplace(stored_name, part).second);
        }
      }
      ++block;
    }
    CHECK(written.size() == loaded.weights.names().size());
    for (const std::string& stored_name : loaded.weights.names()) {
      INFO(stored_name);
      REQUIRE(written.contains(stored_name));
      const at::Tensor& part = written.at(stored_name);
      CHECK(at::equal(part, loaded.weights.read(stored_name, part.sizes())));
    }
  }
}

TEST_CASE("a value is cut as a form says, or refused") {
  const at::Tensor value = at::arange(24, at::kFloat).view({2, 4, 3});
  const auto tensors = [&](const std::string& form) {
    return stored_tensors(Json::parse(form, {}, "names.json"), value);
  };
  const auto parts =
      tensors(R"({"kind":"concat","dim":1,"of":[{"kind":"stack","dim":0,"of":["a","b"]},)"
              R"({"kind":"transpose","dims":[0,2],"of":"c"}]})");
  REQUIRE(parts.size() == 3);
  CHECK(parts[0].first == "a");
  CHECK(at::equal(parts[0].second, value.narrow(1, 0, 2)[0]));
  CHECK(at::equal(parts[1].second, value.narrow(1, 0, 2)[1]));
  CHECK(at::equal(parts[2].second, value.narrow(1, 2, 2).transpose(0, 2)));
  for (const char* form :
       {R"({"kind":"stack","dim":0,"of":["a","b","c"]})", R"({"kind":"stack","dim":3,"of":["a"]})",
        R"({"kind":"concat","dim":2,"of":["a","b"]})",
        R"({"kind":"transpose","dims":[0,9],"of":"a"})",
        R"({"kind":"slice","dim":0,"begin":0,"end":2,"of":"a"})", "null"}) {
    const std::string message = require_error(
        ErrorCode::kDataLoss, [&] { tensors(form); }, form);
    CHECK_THAT(message, contains("names.json"));
  }
}
