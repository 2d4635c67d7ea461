// SPDX-License-Identifier: MIT
#pragma once
// Tables of distributed-training results, filled from runs.
#include <string>
#include <vector>

#include "lib/metrics/field_table.h"
#include "lib/report/comparability.h"
#include "lib/report/table.h"

namespace tessera::report {

// Runs grouped into repeats, and the baseline.
struct Study {
  std::vector<Run> runs;
  std::vector<Group> groups;
  const Group* baseline = nullptr;
  Marks marks;

  Study(std::vector<Run> all, const std::string& baseline_name);
  // Name and mark for plots: "zero2-4 [a]".
  std::string marked_name(const Group& group) const;
  Study(const Study&) = delete;
  Study& operator=(const Study&) = delete;
};

// All tables that these runs fill: "1" to "4", "5a", "5b", "6", "7a" to "7e". wanted: only these,
// where "5" means 5a and 5b; an empty one then tells its requirements. Throws
// Error(kInvalidArgument) for an unknown table.
std::vector<Table> make_tables(const Study& study, const std::vector<std::string>& wanted = {});

// True if these groups can be compared by GPU memory; and the peak in bytes. GPU: allocated by
// tensors; CPU: resident in the process tree.
bool compares_gpu_memory(const std::vector<Group>& groups);
std::optional<double> peak_bytes(const Group& group, bool gpu);

// Bytes of tensors by category on the rank that holds most.
struct TensorBytes {
  const char *key, *title;
  int color;  // in plots
};
inline constexpr TensorBytes kHeldBytes[] = {{"parameter_bytes", "parameters", 0},
                                             {"gradient_bytes", "gradients", 1},
                                             {"optimizer_bytes", "optimizer", 2},
                                             {"buffer_bytes", "buffers", 6}};
// In this order, then activations and workspace, and host memory. gpu: the rest of a GPU's peak
// counts as activations.
std::vector<double> tensor_parts(const Group& group, bool gpu);
// Their sum; empty if the run did not record them.
std::optional<double> tensor_bytes(const Group& group);

// Deviation of tokens per second as in table 6. repeated: over repeats of a configuration; else
// over steps.
std::optional<double> rate_deviation(const Group& group, bool repeated);

// Runs that differ in the number of ranks, fewest first: with one batch per rank (weak) or one
// global batch (strong).
struct Scaling {
  std::string name;
  std::vector<const Group*> groups;
};
std::vector<Scaling> scaling_series(const Study& study);

// Whether numbers of this field are of one kind in both.
bool comparable(const metrics::MetricField& field, const Group& a, const Group& b);

// For two groups: their configurations where they differ, and their results with the ratio.
std::vector<Table> side_by_side(const Study& study);

// Per comparison with a reference: largest differences, tolerance, and the hardware of both. Empty
// if no run was compared.
Table certificate_table(const Study& study);

// |value - reference| / |reference|.
double relative_difference(double value, double reference);

// Largest |a - b| / |b| over common steps. Empty if the steps differ or a number is not finite.
std::optional<double> largest_difference(const Run& run, const Run& reference,
                                         const std::string& key);

Table baseline_table(const Study& study);
Table memory_table(const Study& study);
Table pinned_table(const Study& study);
Table offload_table(const Study& study);
Table weak_scaling_table(const Study& study);
Table strong_scaling_table(const Study& study);
Table dtype_table(const Study& study);
Table stages_by_batch_table(const Study& study);
Table zero_fsdp_table(const Study& study);
Table schedules_table(const Study& study);
Table offload_by_ranks_table(const Study& study);
Table largest_batch_table(const Study& study);

}  // namespace tessera::report
