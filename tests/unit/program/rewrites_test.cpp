// SPDX-License-Identifier: MIT
// Regions that tessera's operators replace, and their proofs.
#include <ATen/ATen.h>

#include <map>

#include "lib/core/folder_file.h"
#include "lib/program/cut_programs.h"
#include "lib/program/rewrites/apply.h"
#include "tests/support/test.hpp"
#include "tests/unit/program/committed.h"

using namespace tessera;
using namespace tessera::program;
using namespace tessera::test;

namespace {

// Counts of the targets in the rewritten training program, and the report.
struct Rewritten {
  std::map<std::string, int> targets;
  RewriteReport report;
};

Rewritten rewritten(const std::string& directory) {
  const Manifest manifest = read_manifest(Json::parse_file(file_in(directory, "program.json")));
  const Constants constants(file_in(directory, manifest.constants));
  Rewritten result;
  read_programs(directory, manifest, true, [&](Graph& graph, const ProgramEntry& entry) {
    const ProofInputs inputs(graph, manifest.inputs, constants, entry.dtype, entry.training);
    if (!entry.training) return;
    apply_rewrites(graph, inputs, result.report);
    for (const Node& node : graph.nodes) ++result.targets[node.target];
  });
  return result;
}

}  // namespace

TEST_CASE("norms, gates and products of exported decoders become tessera's") {
  const Rewritten llama = rewritten(program_directory("llama"));
  for (const std::string& line : llama.report.lines()) UNSCOPED_INFO(line);
  CHECK(llama.targets.at("tessera.rms_norm") == 5);
  CHECK(llama.targets.at("tessera.swiglu") == 2);
  CHECK(llama.targets.at("tessera.linear") == 15);
  CHECK(llama.targets.at("tessera.attention") == 2);
  CHECK(!llama.targets.contains("aten.scaled_dot_product_attention.default"));
  CHECK(!llama.targets.contains("aten.le.Tensor"));  // the mask is gone
  CHECK(!llama.targets.contains("aten.rsqrt.default"));
}

namespace {

Rewritten rewritten_fixture(const std::string& name) { return rewritten(program_directory(name)); }

}  // namespace

TEST_CASE("attention of exported decoders becomes tessera's with its window, tables and heads") {
  for (const std::string name : {"gemma3", "gpt_neox", "llama", "olmoe", "phi3"}) {
    INFO(name);
    const Rewritten program = rewritten_fixture(name);
    for (const std::string& line : program.report.lines()) UNSCOPED_INFO(line);
    CHECK(program.targets.at("tessera.attention") == 2);
    CHECK(!program.targets.contains("aten.scaled_dot_product_attention.default"));
  }
  const Rewritten sinks = rewritten_fixture("gpt_oss");
  CHECK(!sinks.targets.contains("tessera.attention"));
  bool told = false;
  for (const std::string& line : sinks.report.lines()) {
    told = told || line.starts_with("not replaced 2 attentions (GptOssAttention");
  }
  CHECK(told);
}

// Families of the user's own: names of directories in TESSERA_EXPORTED_FAMILIES.
TEST_CASE("report of exported families") {
  const char* root = std::getenv("TESSERA_EXPORTED_FAMILIES");
  if (root == nullptr) return;
  for (const auto& entry : std::filesystem::directory_iterator(root)) {
    const Rewritten family = rewritten(entry.path().string());
    for (const std::string& line : family.report.lines()) {
      std::printf("%s: %s\n", entry.path().filename().c_str(), line.c_str());
    }
  }
}
