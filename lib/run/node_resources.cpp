// SPDX-License-Identifier: MIT
#include "lib/run/node_resources.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lib/core/device_driver.h"
#include "lib/core/host_memory.h"
#include "lib/core/host_name.h"
#include "tessera/core/error.h"

namespace tessera::programs {

NodeResources::NodeResources(const RunContext& run, metrics::Recorder* recorder)
    : run_(run), recorder_(recorder) {
  const std::string host = host_name();
  const std::string address = pci_address(run.world.device());
  std::vector<std::string> gpus;
  for (const std::string& rank :
       run.control.exchange(address.empty() ? "" : concat(address, " ", host))) {
    const size_t end = rank.find(' ');
    if (!rank.empty() && rank.substr(end + 1) == host) gpus.push_back(rank.substr(0, end));
  }
  const LaunchInfo& launch = run.launch;
  if (launch.local_rank != 0) return;
  metrics::ResourceSamplerOptions options{.tree_root = metrics::node_tree_root(launch.launcher),
                                          .gpus = std::move(gpus)};
  if (launch.launcher == "threads" || launch.local_size == 1) {  // one process per node
    options.pinned_bytes = [] { return pinned_memory().bytes; };
  }
  sampler_ = std::make_unique<metrics::ResourceSampler>(
      std::move(options), [this](const metrics::ResourceRecord& sample) {
        if (recorder_ != nullptr) {
          recorder_->resource(sample);
        } else {
          others_.add(sample);
        }
      });
}

void NodeResources::end_of_training() {
  if (sampler_) failure_ = sampler_->stop();
  sampler_.reset();
  pinned_peak_ = pinned_memory().peak_bytes;
}

void NodeResources::gather(metrics::RunEndInfo& info) {
  const LaunchInfo& launch = run_.launch;
  int64_t nodes = 1;
  const bool speaks = launch.local_rank == 0 && !run_.reports();
  for (const std::string& node : run_.control.exchange(speaks ? others_.bytes() : "")) {
    if (node.empty()) continue;
    ++nodes;
    if (recorder_ != nullptr) recorder_->other_node(metrics::ResourceSummary::from_bytes(node));
  }
  // Ranks that are threads share one process, counted once.
  const bool counts = launch.launcher != "threads" || launch.local_rank == 0;
  std::map<std::string, int64_t> pinned;  // by host
  for (const std::string& rank :
       run_.control.exchange(concat(counts ? pinned_peak_ : 0, " ", host_name()))) {
    int64_t& most = pinned[rank.substr(rank.find(' ') + 1)];
    most += std::stoll(rank);
    info.pinned_peak_bytes = std::max(info.pinned_peak_bytes.value_or(0), most);
  }
  info.extra.emplace_back("nodes", nodes);
}

void NodeResources::throw_sampling_failure() const {
  if (failure_) std::rethrow_exception(failure_);
}

}  // namespace tessera::programs
