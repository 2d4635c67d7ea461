// What a run uses of its nodes: sampled on each, put together at the end.
#include <algorithm>
#include <map>
#include <utility>

#include "lib/core/host_memory.h"
#include "lib/core/host_name.h"
#include "lib/core/pci_address.h"
#include "lib/run/training_run.h"
#include "tessera/core/error.h"

namespace tessera::programs {

// One rank of a node samples it: its host memory, and the GPUs of the job's ranks on it.
// Collective.
void TrainingRun::start_sampler() {
  const std::string host = host_name();
  const std::string address = pci_address(world_.device());
  std::vector<std::string> gpus;
  for (const std::string& rank :
       control_.exchange(address.empty() ? "" : concat(address, " ", host))) {
    const size_t end = rank.find(' ');
    if (!rank.empty() && rank.substr(end + 1) == host) gpus.push_back(rank.substr(0, end));
  }
  if (launch_.local_rank != 0) return;
  metrics::ResourceSamplerOptions options{.tree_root = metrics::node_tree_root(launch_.launcher),
                                          .gpus = std::move(gpus)};
  if (launch_.launcher == "threads" || launch_.local_size == 1) {  // one process a node
    options.pinned_bytes = [] { return pinned_memory().bytes; };
  }
  sampler_ = std::make_unique<metrics::ResourceSampler>(
      std::move(options), [this](const metrics::ResourceRecord& sample) {
        if (recorder_) {
          recorder_->resource(sample);
        } else {
          resources_.add(sample);
        }
      });
}

// Of the other nodes, for the summary; page-locked bytes are those of the node that had most.
// Collective.
void TrainingRun::gather_resources(metrics::RunEndInfo& info) {
  int64_t nodes = 1;
  const bool speaks = launch_.local_rank == 0 && !reports();
  for (const std::string& node : control_.exchange(speaks ? resources_.bytes() : "")) {
    if (node.empty()) continue;
    ++nodes;
    if (recorder_) recorder_->other_node(metrics::ResourceSummary::from_bytes(node));
  }
  // Ranks that are threads share a process.
  const bool counts = launch_.launcher != "threads" || launch_.local_rank == 0;
  std::map<std::string, int64_t> pinned;  // by host
  for (const std::string& rank :
       control_.exchange(concat(counts ? pinned_peak_ : 0, " ", host_name()))) {
    int64_t& most = pinned[rank.substr(rank.find(' ') + 1)];
    most += std::stoll(rank);
    info.pinned_peak_bytes = std::max(info.pinned_peak_bytes.value_or(0), most);
  }
  info.extra.emplace_back("nodes", nodes);
}

}  // namespace tessera::programs
