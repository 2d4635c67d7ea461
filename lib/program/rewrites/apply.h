// SPDX-License-Identifier: MIT
#pragma once
// Rewrites of a program, each with its proof, and the report about them.
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lib/program/rewrites/proof.h"

namespace tessera::program {

// What became of the regions of one kind.
struct RewriteResult {
  std::string rewrite;       // "rms norm"
  std::string module_class;  // where: "LlamaRMSNorm"
  std::string first;         // the first region: its module's path
  int64_t regions = 0;
  bool replaced = false;
  double difference = 0;  // the largest of the proofs
  std::string reason;     // why not
};

class RewriteReport {
 public:
  void add(const RewriteResult& result);  // of one region
  const std::vector<RewriteResult>& results() const { return results_; }
  // A line for each kind of region: "replaced 5 rms norms (LlamaRMSNorm, first model.norm): ...".
  std::vector<std::string> lines() const;

 private:
  std::vector<RewriteResult> results_;
};

// Proofs by the text of region and replacement: equal layers are proven once.
using Proofs = std::map<std::string, Proof>;

// Drops operators that give their input, and replaces what rewrites() find and a proof holds for.
// Nodes that nothing needs any more are removed.
void apply_rewrites(Graph& graph, const ProofInputs& inputs, RewriteReport& report);

// A block's piece with its decoder layers as one operator each; nullopt: it has none.
std::optional<Graph> with_whole_layers(Graph piece, const ProofInputs& inputs, Proofs& proofs,
                                       RewriteReport& report);

}  // namespace tessera::program
