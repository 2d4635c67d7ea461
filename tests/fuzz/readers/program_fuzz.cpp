// SPDX-License-Identifier: MIT
// An exported program, or after 'm' its manifest: what is read can be cut, and made ready to run.
#include <memory>

#include "lib/program/extents.h"
#include "lib/program/graph_facts.h"
#include "lib/program/graph_reader.h"
#include "lib/program/interpreter.h"
#include "lib/program/manifest.h"
#include "lib/program/program_cut.h"
#include "tests/fuzz/readers/reader_fuzz.h"

using namespace tessera;
using namespace tessera::program;

namespace {

// Pieces have every node of the graph that has an effect, and read nothing that they do not make.
void check_pieces(const Graph& graph, const GraphFacts& facts) {
  const Segments segments = find_segments(graph, facts, {"layers"});
  const std::vector<std::string> reasons = obstacles(graph, facts, segments);
  fuzz::expect(reasons.size() + 1 == segments.names.size(), "another number of boundaries");
  for (size_t s = 0; s < segments.names.size(); ++s) {
    const std::vector<ValueId> outputs = outputs_of(graph, facts, segments, s);
    const Graph piece = piece_of(graph, facts, segments, s, s, outputs);
    std::vector<char> known(piece.values.size(), 0);
    for (const GraphInput& input : piece.inputs) known[static_cast<size_t>(input.value)] = 1;
    for (const Node& node : piece.nodes) {
      visit_reads(node, [&](ValueId id) {
        fuzz::expect(known[static_cast<size_t>(id)] != 0, "a piece reads what it does not make");
      });
      visit_writes(node, [&](ValueId id) { known[static_cast<size_t>(id)] = 1; });
    }
    fuzz::expect(text_of(piece) == text_of(piece_of(graph, facts, segments, s, s, outputs)),
                 "a piece is not the same twice");
  }
}

void read_program(std::string_view text) {
  fuzz::accepts({ErrorCode::kDataLoss}, [&] {
    auto graph = std::make_shared<Graph>(read_graph(Json::parse(text, {}, "program.json")));
    resolve_extents(*graph);
    const GraphFacts facts(*graph);
    const Interpreter interpreter(graph);
    fuzz::accepts({}, [&] { check_pieces(*graph, facts); });
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text = fuzz::text_of(data, size);
  if (text.starts_with('m')) {
    text.remove_prefix(1);
    fuzz::accepts({ErrorCode::kDataLoss},
                  [&] { read_manifest(Json::parse(text, {}, "program.json")); });
  } else {
    read_program(text);
  }
  return 0;
}
