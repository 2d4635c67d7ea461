// SPDX-License-Identifier: MIT
#include "lib/tools/plan/check_layout.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ostream>

#include "lib/plan/planned_layout.h"
#include "lib/run/layout.h"
#include "lib/run/optimizer.h"
#include "tessera/core/error.h"
#include "tessera/plan/check_communication.h"

namespace tessera::programs {
namespace {

constexpr size_t kMostProblems = 20;  // further ones say the same

std::string seconds_text(double seconds) { return concat(std::round(seconds * 10) / 10, " s"); }

}  // namespace

int check_layout(const Prepared& model, const TrainOptions& o, const PlannedHosts& hosts,
                 std::ostream& out, std::ostream& err) {
  const auto begin = std::chrono::steady_clock::now();
  validate_layout(o);
  const MeshExtents mesh = mesh_extents(o, static_cast<int>(hosts.ranks));
  require_axes_divide(o, mesh, hosts.ranks);
  const BatchShape shape = batch_shape(model, o, o.data.max_seq_length);
  const auto count = static_cast<size_t>(o.training.gradient_accumulation_steps);
  const CommunicationCheck found =
      check_communication({.model = model.model,
                           .parallel = parallel_config(model, o),
                           .optimizer = optimizer_of(o.training),
                           .mesh = mesh,
                           .coordinate = {},
                           .micro_batches = std::vector<MicroBatch>(count, micro_batch_of(shape)),
                           .device = hosts.card.device.empty() ? at::kCPU : at::kCUDA});
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const std::string what = concat("the ", found.operations, " operations of ", found.ranks,
                                  found.ranks == 1 ? " rank" : " ranks", " in two steps");
  const std::string how = concat(found.runs, found.runs == 1 ? " of them was" : " of them were",
                                 " run dry, in ", seconds_text(seconds));
  if (found.problems.empty()) {
    out << what << " fit together, and every gradient and parameter is what it has to be (" << how
        << ")\n";
    return 0;
  }
  for (size_t i = 0; i < std::min(found.problems.size(), kMostProblems); ++i) {
    err << "tessera-plan: " << to_text(found.problems[i]) << "\n";
  }
  err << "tessera-plan: " << found.problems.size() << " problems in " << what << " (" << how
      << ")\n";
  return exit_code(ErrorCode::kInternal);
}

}  // namespace tessera::programs
