// SPDX-License-Identifier: MIT
// The example in tessera/checkpoint/huggingface.h, with a model of torch modules.
#include <ATen/ATen.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <fstream>

#include "lib/testing/player.h"
#include "tessera/checkpoint/huggingface.h"
#include "tessera/model/adapters.h"
#include "tessera/optim/adamw.h"
#include "tests/support/ranks.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/support/test.hpp"
#include "tests/support/torch_modules.hpp"

using namespace tessera;
using namespace tessera::testing;
namespace nn = torch::nn;

namespace {

void write_as_the_header_says(const ModelSpec& spec, Strategy& strategy) {
  // clang-format off
  HuggingFaceWriter writer("out/final", {});
  strategy.visit_parameters([&](const VisitedParameter& p) {
    writer.add(spec.stored_name(p.block, p.name), p.value);
  });
  writer.add_text("config.json", "{}");  // of a language model: its configuration's to_json()
  writer.commit();
  // clang-format on
}

std::vector<std::string> lines_of(const std::string& path) {
  std::ifstream in(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

}  // namespace

TEST_CASE("the example of huggingface.h writes adapted modules, and stands in the header") {
  const TempDir folder;
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path(""));
  nn::Sequential layers(nn::Linear(3, 4), nn::Tanh(), nn::Linear(4, 2));
  for (const ModelSpec& spec :
       {from_sequential(layers, squared_error),
        from_module(std::make_shared<Pair>(nn::Linear(3, 4), nn::Linear(4, 2)), squared_error)}) {
    std::filesystem::remove_all("out");
    std::filesystem::create_directory("out");
    play({spec, {}, {.strategy = "single"}}, [&](Player& player) {
      Strategy& strategy = player.strategy();
      write_as_the_header_says(spec, strategy);
    });
    const HuggingFaceDirectory written("out/final");
    const bool whole = spec.block_count() == 1;
    CHECK(written.names() ==
          (whole ? std::vector<std::string>{"first.bias", "first.weight", "second.bias",
                                            "second.weight"}
                 : std::vector<std::string>{"0.bias", "0.weight", "2.bias", "2.weight"}));
  }
  std::filesystem::current_path(before);

  const auto header = lines_of(TESSERA_SOURCE_DIR "/include/tessera/checkpoint/huggingface.h");
  bool inside = false;
  for (std::string line : lines_of(__FILE__)) {
    if (line.ends_with("// clang-format on")) inside = false;
    if (inside) {
      const std::string comment = "///   " + line.substr(2);
      INFO(comment);
      CHECK(std::find(header.begin(), header.end(), comment) != header.end());
    }
    if (line.ends_with("// clang-format off")) inside = true;
  }
}
