// SPDX-License-Identifier: MIT
#pragma once
// Parsers of Slurm's compact notations.
#include <string>
#include <vector>

namespace tessera::slurm {

// First host of a list: "n03" for "n[03-05,7],login".
std::string first_host(const std::string& node_list);

// Tasks of a node. "2(x3),1": two on nodes 0 to 2, one on node 3. 0 for a malformed text or a
// missing node.
int tasks_on_node(const std::string& tasks_per_node, int node);

// Rank 0's candidate ports in the order of attempts, equal on all ranks of a step. They lie below
// the ephemeral range.
std::vector<int> ports_of(const std::string& job_and_step);

}  // namespace tessera::slurm
