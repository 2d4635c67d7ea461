// SPDX-License-Identifier: MIT
#pragma once
// What Slurm's compact notations mean.
#include <string>
#include <vector>

namespace tessera::slurm {

// The first host of a list like "n[03-05,7],login": "n03".
std::string first_host(const std::string& node_list);

// Tasks of a node by "2(x3),1": nodes 0 to 2 have two, node 3 has one. 0 when the text is no such
// list or has no such node.
int tasks_on_node(const std::string& tasks_per_node, int node);

// Ports of rank 0 to try in this order, the same on all ranks of a step. They lie below the range
// that systems give out by themselves.
std::vector<int> ports_of(const std::string& job_and_step);

}  // namespace tessera::slurm
