// SPDX-License-Identifier: MIT
#pragma once
// What a run uses of its nodes: sampled on each, put together at the end.
#include <cstdint>
#include <exception>
#include <memory>

#include "lib/metrics/resource_sampler.h"
#include "lib/run/run_context.h"
#include "tessera/metrics/recorder.h"
#include "tessera/metrics/resource_summary.h"

namespace tessera::programs {

class NodeResources {
 public:
  // One rank of a node samples it: its host memory, and the GPUs of the job's ranks on it.
  // recorder: where rank 0 is; null: this node's samples are summed up. Collective.
  NodeResources(const RunContext& run, metrics::Recorder* recorder);

  void end_of_training();
  void drop() { sampler_.reset(); }  // the run fails
  // Of the other nodes, for the summary; page-locked bytes are those of the node that had most.
  // Collective.
  void gather(metrics::RunEndInfo& info);
  void throw_sampling_failure() const;  // a sample could not be written

 private:
  const RunContext& run_;
  metrics::Recorder* const recorder_;
  metrics::ResourceSummary others_;                    // of this node, where rank 0 is on another
  int64_t pinned_peak_ = 0;                            // of this process
  std::unique_ptr<metrics::ResourceSampler> sampler_;  // the first rank of each node
  std::exception_ptr failure_;
};

}  // namespace tessera::programs
