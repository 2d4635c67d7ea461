// SPDX-License-Identifier: MIT
#include "lib/program/cut_programs.h"

#include <algorithm>
#include <map>
#include <utility>

#include "lib/core/folder_file.h"
#include "lib/program/extents.h"
#include "lib/program/graph_reader.h"
#include "tessera/core/error.h"

namespace tessera::program {
namespace {

void check_input_shape(const Graph& graph, const GraphInput& input, at::IntArrayRef shape) {
  const Value& value = graph.values[static_cast<size_t>(input.value)];
  bool same = value.sizes.size() == shape.size();
  for (size_t i = 0; same && i < shape.size(); ++i) {
    same = value.sizes[i].expression.empty() && value.sizes[i].number == shape[i];
  }
  check(same, ErrorCode::kDataLoss, graph.file, ": \"", input.name,
        "\" has another shape than in program.json, which says ", shape);
}

// Checks the graph's inputs against the manifest, which names the user's inputs.
void check_inputs(Graph& graph, const Manifest& manifest) {
  size_t users = 0;
  for (GraphInput& input : graph.inputs) {
    if (input.kind == InputKind::kParameter) {
      const ParameterEntry* entry = manifest.parameter(input.name);
      check(entry != nullptr, ErrorCode::kDataLoss, graph.file, ": parameter \"", input.name,
            "\" is not in ", manifest.file);
      check_input_shape(graph, input, entry->shape);
    } else if (input.kind == InputKind::kBuffer) {
      const BufferEntry* entry = manifest.buffer(input.name);
      check(entry != nullptr, ErrorCode::kDataLoss, graph.file, ": buffer \"", input.name,
            "\" is not in ", manifest.file);
      check_input_shape(graph, input, entry->shape);
    } else if (input.kind == InputKind::kUser) {
      if (users < manifest.inputs.size()) input.name = manifest.inputs[users].name;
      ++users;
    }
  }
  check(users == manifest.inputs.size() && users > 0, ErrorCode::kDataLoss, graph.file, ": takes ",
        users, " inputs, but ", manifest.file, " names ", manifest.inputs.size());
}

// Loss and count, or scores and a balance loss.
size_t result_count(const Manifest& manifest) {
  return manifest.loss == LossKind::kSumCount || manifest.auxiliary_weight ? 2 : 1;
}

void check_results(const Graph& graph, const Manifest& manifest) {
  const size_t expected = result_count(manifest);
  check(graph.outputs.size() >= expected, ErrorCode::kDataLoss, graph.file, ": gives ",
        graph.outputs.size(), " results, expected ", expected, " for the loss of ", manifest.file);
  const size_t dims = manifest.loss == LossKind::kCausal           ? 3
                      : manifest.loss == LossKind::kClassification ? 2
                                                                   : 0;
  const Value& first = graph.values[static_cast<size_t>(graph.outputs[0])];
  check(dims == 0 || first.sizes.size() == dims, ErrorCode::kDataLoss, graph.file, ": scores have ",
        first.sizes.size(), " dimensions, expected ", dims);
}

CutProgram read_program(const std::string& path, const Manifest& manifest, bool cut,
                        const std::function<void(Graph& graph)>& change) {
  Graph graph = read_graph_file(path);
  check_inputs(graph, manifest);
  check_results(graph, manifest);
  graph.outputs.resize(result_count(manifest));
  join_extents(graph, manifest.inputs);
  resolve_extents(graph);
  change(graph);
  GraphFacts facts(graph);
  Segments segments =
      find_segments(graph, facts, cut ? manifest.layers : std::vector<std::string>());
  std::vector<std::string> reasons = obstacles(graph, facts, segments);
  return {std::move(graph), std::move(facts), std::move(segments), std::move(reasons)};
}

// Behind each segment: why no program, or not every one, can be cut there; empty: all can.
std::vector<std::string> joint_obstacles(const std::vector<CutProgram>& programs) {
  std::vector<std::string> reasons = programs.front().obstacles;
  for (const CutProgram& program : programs) {
    for (size_t b = 0; b < reasons.size(); ++b) {
      if (reasons[b].empty()) reasons[b] = program.obstacles[b];
    }
  }
  return reasons;
}

bool same_segments(const std::vector<CutProgram>& programs) {
  return std::all_of(programs.begin(), programs.end(), [&](const CutProgram& program) {
    return program.segments.names == programs.front().segments.names;
  });
}

// Every program passes on as many tensors there.
void check_same_crossing(const std::vector<CutProgram>& programs,
                         std::vector<std::string>& reasons) {
  for (size_t b = 0; b < reasons.size(); ++b) {
    const auto count = [&](const CutProgram& program) {
      return outputs_of(program.graph, program.facts, program.segments, b).size();
    };
    if (!reasons[b].empty() || programs.size() == 1) continue;
    const size_t first = count(programs.front());
    for (const CutProgram& program : programs) {
      if (count(program) != first) reasons[b] = "training and evaluation pass on other tensors";
    }
  }
}

std::string name_of(const std::vector<std::string>& names, size_t first, size_t last) {
  return first == last ? names[first] : names[first] + "-" + names[last];
}

}  // namespace

CutPrograms read_programs(const std::string& directory, const Manifest& manifest, bool cut,
                          const ChangeProgram& change) {
  CutPrograms all;
  std::map<std::string, size_t> files;
  for (const ProgramEntry& entry : manifest.programs) {
    const auto [known, added] = files.try_emplace(entry.file, all.programs.size());
    if (added) {
      all.programs.push_back(
          read_program(file_in(directory, entry.file), manifest, cut, [&](Graph& graph) {
            if (change) change(graph, entry);
          }));
    }
    all.of_entry.push_back(known->second);
  }
  if (!same_segments(all.programs)) {
    all.notices.push_back("the programs have different layers: the model is one block");
    for (CutProgram& program : all.programs) {
      program.segments = find_segments(program.graph, program.facts, {});
      program.obstacles = obstacles(program.graph, program.facts, program.segments);
    }
  }
  std::vector<std::string> reasons = joint_obstacles(all.programs);
  check_same_crossing(all.programs, reasons);
  const std::vector<std::string>& names = all.programs.front().segments.names;
  for (size_t s = 0, first = 0; s < names.size(); ++s) {
    if (s + 1 < names.size() && !reasons[s].empty()) {
      const bool empty_end = reasons[s] == "nothing crosses";
      if (!empty_end && cut) {
        all.notices.push_back(concat("not cut behind ", names[s], ": ", reasons[s]));
      }
      continue;
    }
    all.blocks.push_back({name_of(names, first, s), first, s});
    first = s + 1;
  }
  if (all.blocks.size() == 1) all.blocks.front().name = "program";
  return all;
}

}  // namespace tessera::program
