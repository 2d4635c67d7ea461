// SPDX-License-Identifier: MIT
// Where programs are cut, and what the pieces are made of.
#include <algorithm>
#include <memory>
#include <set>

#include "lib/core/file.h"
#include "lib/program/assemble_blocks.h"
#include "lib/program/cut_programs.h"
#include "lib/program/extents.h"
#include "lib/program/graph_reader.h"
#include "lib/program/row_proof.h"
#include "tests/support/ranks.hpp"
#include "tests/support/test.hpp"
#include "tests/unit/program/committed.h"

using namespace tessera;
using namespace tessera::program;
using namespace tessera::test;

namespace {

using Names = std::vector<std::string>;

Names names_of(const ModelSpec& spec) {
  Names names;
  for (const BlockBuilder& block : spec.blocks) names.push_back(block.name);
  return names;
}

Names targets_of(const Graph& graph) {
  Names targets;
  for (const Node& node : graph.nodes) targets.push_back(node.target);
  return targets;
}

// A file of the readers' corpus, cut.
struct Cut {
  explicit Cut(const std::string& name)
      : graph([&] {
          const std::string text = read_file(std::string(TESSERA_CORPUS) + "/program/" + name);
          Graph read = read_graph(Json::parse(text, {}, name));
          resolve_extents(read);
          return read;
        }()),
        facts(graph),
        segments(find_segments(graph, facts, {"layers"})) {}
  Graph piece(size_t first, size_t last) const {
    return piece_of(graph, facts, segments, first, last, outputs_of(graph, facts, segments, last));
  }

  Graph graph;
  GraphFacts facts;
  Segments segments;
};

ModelParts parts_of(const std::string& name) {
  const std::string directory = program_directory(name);
  const Manifest manifest = read_manifest(Json::parse_file(directory + "/program.json"));
  const auto constants = std::make_shared<const Constants>(directory + "/" + manifest.constants);
  return assemble_blocks(read_programs(directory, manifest, /*cut=*/true), manifest, constants,
                         {.data_rank = 0});
}

// Places where a block runs the same interpreter as an earlier one.
size_t shared_pieces(const ModelParts& model) {
  std::set<const Interpreter*> different;
  for (const auto& block : model.blocks) {
    different.insert(block->variants.front().main.interpreter.get());
  }
  return model.blocks.size() - different.size();
}

}  // namespace

TEST_CASE("decoders are cut at their layers") {
  const auto [name, path] =
      GENERATE(table<std::string, std::string>({{"llama", "model.layers"},
                                                {"gemma3", "model.layers"},
                                                {"gpt_neox", "gpt_neox.layers"},
                                                {"gpt_oss", "model.layers"},
                                                {"olmoe", "model.layers"},
                                                {"phi3", "model.layers"}}));
  INFO(name);
  const ModelSpec spec = from_program(program_directory(name));
  const Names names = names_of(spec);
  REQUIRE(names.size() >= 4);
  CHECK(names.front() == "embedding");
  CHECK(names[1] == path + ".0");
  CHECK(names[2] == path + ".1");
  CHECK(names.back() == "head");
}

TEST_CASE("parameters have the names of their layer, and the weights' in files") {
  const ModelSpec spec = from_program(program_directory("llama"));
  CHECK(spec.stored_name("model.layers.1", "mlp.up_proj.weight") ==
        "model.layers.1.mlp.up_proj.weight");
  CHECK(spec.stored_name("embedding", "model.embed_tokens.weight") == "model.embed_tokens.weight");
  CHECK(spec.tied.empty());
  const ModelSpec tied = from_program(program_directory("gemma3"));
  REQUIRE(tied.tied.size() == 1);
  CHECK(tied.tied[0].owner_block == "embedding");
  CHECK(tied.tied[0].alias_block == "head");
  CHECK(tied.tied[0].owner_parameter == "model.embed_tokens.weight");
}

TEST_CASE("costs count what products use") {
  const ModelSpec spec = from_program(program_directory("llama"));
  CHECK(spec.blocks[0].cost.parameters == 96 * 32);
  CHECK(spec.blocks[0].cost.flops_per_token == 0);
  CHECK(spec.blocks[1].cost.parameters == parameter_count(spec.slice(1, 1)).all);
  CHECK(spec.blocks.back().cost.flops_per_token == 6 * 96 * 32);
  CHECK(spec.flops_per_token(100) > spec.flops_per_token(0));
}

TEST_CASE("equal layers share what runs them") {
  CHECK(shared_pieces(parts_of("llama")) == 1);
  CHECK(shared_pieces(parts_of("toy")) == 1);
}

TEST_CASE("layers whose constants differ are no equal layers") {
  const Cut scaled("scales");
  REQUIRE(scaled.segments.names.size() == 5);
  CHECK(text_of(scaled.piece(2, 2)) == text_of(scaled.piece(2, 2)));
  CHECK(text_of(scaled.piece(2, 2)) != text_of(scaled.piece(3, 3)));
}

TEST_CASE("what no parameter enters is formed in every block") {
  const Cut cut("layers");
  CHECK(cut.segments.names == Names{"embedding", "layers.0", "layers.1", "head"});
  CHECK(obstacles(cut.graph, cut.facts, cut.segments) == Names{"nothing crosses", "", ""});
  const Graph first = cut.piece(0, 1), second = cut.piece(2, 2);
  const Names mask = {"aten.sym_size.int", "_operator.mul", "_operator.floordiv",
                      "aten.ones.default"};
  for (const Graph& piece : {first, second}) {
    const Names targets = targets_of(piece);
    REQUIRE(targets.size() == 6);
    CHECK(std::equal(mask.begin(), mask.end(), targets.begin()));
    CHECK(piece.outputs.size() == 1);
  }
  REQUIRE(second.inputs.size() == 3);
  CHECK(second.inputs[0].kind == InputKind::kHidden);
  CHECK(second.inputs[1].name == "layers.1.weight");
  CHECK(second.inputs[2].kind == InputKind::kUser);
}

TEST_CASE("layers that take turns are one block") {
  const Cut cut("turns");
  CHECK(cut.segments.names == Names{"embedding", "layers.0+layers.1", "head"});
}

TEST_CASE("what a later block writes in place is its own copy, and passed on as written") {
  const Cut cut("in-place");
  CHECK(cut.segments.names == Names{"embedding", "layers.0", "layers.1", "head"});
  CHECK(obstacles(cut.graph, cut.facts, cut.segments) == Names{"nothing crosses", "", ""});
  const Graph layer = cut.piece(2, 2);
  REQUIRE(layer.inputs[0].kind == InputKind::kHidden);
  CHECK(GraphFacts(layer).is_written(layer.inputs[0].value));
  CHECK(layer.outputs == std::vector<ValueId>{layer.inputs[0].value});
}

TEST_CASE("memory that is written on both sides is not cut") {
  const Cut cut("in-place-twice");
  const Names reasons = obstacles(cut.graph, cut.facts, cut.segments);
  CHECK_THAT(reasons[1], contains("is written on one side"));
  CHECK(reasons[2].empty());
}

TEST_CASE("a buffer that changes is not used by two blocks, and must have a rank") {
  const Cut cut("batch-norm");
  CHECK(cut.facts.is_written(cut.graph.inputs[0].value));
  CHECK(cut.facts.is_written(cut.graph.inputs[2].value));
  const std::string message = require_error(
      ErrorCode::kInvalidArgument, [] { from_program(program_directory("toy")); },
      "running statistics without a rank");
  CHECK_THAT(message, contains("running_statistics_of_rank"));
}

TEST_CASE("a program that writes to a parameter is refused with node and operator") {
  const std::string message = require_error(
      ErrorCode::kDataLoss, [] { Cut("writes-parameter"); }, "add_ to a weight");
  CHECK_THAT(message, contains("node r (aten.add_.Tensor)"));
}

TEST_CASE("heads that keep to their rows are known, others are not") {
  for (const std::string name : {"llama", "gemma3", "gpt_neox", "olmoe"}) {
    INFO(name);
    CHECK(parts_of(name).blocks.back()->variants.front().acts_on_rows);
  }
  const Cut cut("layers");
  CHECK(!acts_on_rows(cut.piece(2, 3)));
}

TEST_CASE("a head on some positions gives the loss of these") {
  for (const std::string name : {"llama", "gemma3", "olmoe"}) {
    INFO(name);
    LoadedModel loaded(program_directory(name));
    MicroBatch batch = causal_batch(reference_of(name).at("batches").at(size_t{0}));
    const ProgramStep whole = step(loaded, batch);
    batch.head_positions = batch.labels.flatten().ne(kIgnoredLabel).nonzero().flatten();
    REQUIRE(batch.head_positions.numel() < batch.labels.numel());
    const ProgramStep some = step(loaded, batch);
    CHECK(some.loss == Approx(whole.loss).epsilon(1e-6));
    for (const auto& [parameter, gradient] : whole.gradients) {
      INFO(parameter);
      CHECK(at::allclose(some.gradients.at(parameter), gradient, 1e-5, 1e-7));
    }
    const at::Tensor scores = loaded.model.logits(batch);
    batch.head_positions = at::Tensor();
    const at::Tensor all = loaded.model.logits(batch).flatten(0, 1);
    CHECK(scores.size(0) < all.size(0));
  }
}
