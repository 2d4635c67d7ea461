// SPDX-License-Identifier: MIT
#pragma once
// The programs of a directory, cut alike.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lib/program/graph.h"
#include "lib/program/graph_facts.h"
#include "lib/program/manifest.h"
#include "lib/program/program_cut.h"

namespace tessera::program {

// One file; several dtypes and modes may name it.
struct CutProgram {
  Graph graph;
  GraphFacts facts;
  Segments segments;
  std::vector<std::string> obstacles;
};

// A block is a run of segments, the same in all programs.
struct BlockRange {
  std::string name;
  size_t first = 0, last = 0;
};

struct CutPrograms {
  std::vector<CutProgram> programs;
  std::vector<size_t> of_entry;  // by Manifest::programs
  std::vector<BlockRange> blocks;
  std::vector<std::string> notices;  // why blocks are not cut further
};

// Changes a program before it is cut; the entry is the first that names its file.
using ChangeProgram = std::function<void(Graph& graph, const ProgramEntry& entry)>;

// Reads the manifest's programs from the directory, checks them against the manifest, and cuts them
// where all can be cut. cut: false makes one block. change may be empty. Throws Error(kDataLoss).
CutPrograms read_programs(const std::string& directory, const Manifest& manifest, bool cut,
                          const ChangeProgram& change = {});

}  // namespace tessera::program
