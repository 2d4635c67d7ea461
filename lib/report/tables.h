// SPDX-License-Identifier: MIT
#pragma once
// The tables of this field, filled from runs.
#include <string>
#include <vector>

#include "lib/metrics/field_table.h"
#include "lib/report/likeness.h"
#include "lib/report/table.h"

namespace tessera::report {

// Runs, repeats put together, and the one that the others are compared with.
struct Study {
  std::vector<Run> runs;
  std::vector<Group> groups;
  const Group* baseline = nullptr;
  Marks marks;

  Study(std::vector<Run> all, const std::string& baseline_name);
  // The name with its mark, for plots: "zero2-4 [a]".
  std::string marked_name(const Group& group) const;
  Study(const Study&) = delete;
  Study& operator=(const Study&) = delete;
};

// Every table that these runs fill: "1" to "4", "5a", "5b", "6", "7a" to "7e". wanted: only these,
// where "5" means 5a and 5b; one that stays empty then says what it needs. Throws
// Error(kInvalidArgument) for a table that does not exist.
std::vector<Table> make_tables(const Study& study, const std::vector<std::string>& wanted = {});

// "GPU" or "CPU": whose memory these groups can be compared by, and its peak in bytes. GPUs:
// allocated by tensors; CPUs: resident in the process tree.
bool compares_gpu_memory(const std::vector<Group>& groups);
std::optional<double> peak_bytes(const Group& group, bool gpu);

// What one rank, that which held most, has of tensors, by category, in bytes.
struct TensorBytes {
  const char *key, *title;
  int color;  // in plots
};
inline constexpr TensorBytes kHeldBytes[] = {{"parameter_bytes", "parameters", 0},
                                             {"gradient_bytes", "gradients", 1},
                                             {"optimizer_bytes", "optimizer", 2},
                                             {"buffer_bytes", "buffers", 6}};
// In this order, then activations and workspace, and the host's. gpu: what the peak on a GPU has
// beyond the first are activations.
std::vector<double> tensor_parts(const Group& group, bool gpu);
// Their sum; nothing where the run does not say what it held.
std::optional<double> tensor_bytes(const Group& group);

// Tokens per second: how far the numbers of one configuration lie apart, as table 6 prints it.
// repeated: some configuration has repeats, so it is over these; else over the steps.
std::optional<double> rate_deviation(const Group& group, bool repeated);

// Runs that differ in the number of ranks, fewest first: at one batch per rank (weak) or at one
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

// What was compared with what: of each run that another one is the reference of, the largest
// differences, the tolerance, and what both ran on. Without rows where no run was compared.
Table certificate_table(const Study& study);

// |value - reference| / |reference|.
double relative_difference(double value, double reference);

// Largest |a - b| / |b| over the steps that both have; none where they have not the same steps, or
// a number is not finite.
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
