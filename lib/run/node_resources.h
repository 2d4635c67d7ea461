// SPDX-License-Identifier: MIT
#pragma once
// Resource use of a run's nodes: sampled on each, combined at the end.
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
  // One rank per node samples its host memory and the GPUs of the job's ranks on it. recorder: on
  // rank 0's node; null: only this node's summary is kept. Collective.
  NodeResources(const RunContext& run, metrics::Recorder* recorder);

  void end_of_training();
  void drop() { sampler_.reset(); }  // called when the run fails
  // Adds the other nodes' summaries; page-locked bytes are those of the largest node. Collective.
  void gather(metrics::RunEndInfo& info);
  void throw_sampling_failure() const;  // throws if a sample could not be written

 private:
  const RunContext& run_;
  metrics::Recorder* const recorder_;
  metrics::ResourceSummary others_;  // this node's summary, if rank 0 is on another
  int64_t pinned_peak_ = 0;          // of this process
  std::unique_ptr<metrics::ResourceSampler> sampler_;  // on the first rank of each node
  std::exception_ptr failure_;
};

}  // namespace tessera::programs
