#include "examples/compare/comparison_table.h"

#include <algorithm>
#include <cstdio>

#include "tessera/core/error.h"
#include "tessera/metrics/event.h"

namespace tessera::programs {
namespace {

template <typename... Arguments>
std::string format(const char* pattern, Arguments... arguments) {
  char buffer[160];
  std::snprintf(buffer, sizeof(buffer), pattern, arguments...);
  return buffer;
}

// Measured beside formula, in MiB.
std::string mebibyte_pair(const std::optional<int64_t>& measured, double formula) {
  if (!measured) return format("- / %.3f", formula / 1048576);
  return format("%.3f / %.3f", static_cast<double>(*measured) / 1048576, formula / 1048576);
}

std::string text_of(const char* pattern, const std::optional<double>& value) {
  return value ? format(pattern, *value) : "-";
}

std::vector<std::string> cells_of(const ComparisonRow& row) {
  const MeshExtents mesh = row.mesh();
  std::vector<std::string> cells{row.name, concat(mesh.pipeline, "x", mesh.data, "x", mesh.tensor)};
  if (row.outcome != Outcome::kFinished) {
    cells.insert(cells.end(), 10, "-");
  } else {
    const RunResult& run = row.run;
    cells.push_back(run.losses.empty() ? "-" : format("%.4f", run.losses.front()));
    cells.push_back(text_of("%.6f", run.train_loss_final));
    cells.push_back(text_of("%.0f", run.tokens_per_second));
    cells.push_back(mebibyte_pair(run.parameter_bytes, row.formula.parameter_bytes));
    cells.push_back(mebibyte_pair(run.gradient_bytes, row.formula.gradient_bytes));
    cells.push_back(mebibyte_pair(run.optimizer_bytes, row.formula.optimizer_bytes));
    cells.push_back(mebibyte_pair(run.host_bytes, row.formula.host_bytes));
    cells.push_back(mebibyte_pair(run.comm_bytes_per_step, row.formula.comm_bytes_per_step));
    const std::optional<int64_t>& peak =
        run.gpu_peak_bytes ? run.gpu_peak_bytes : run.cpu_peak_bytes;
    cells.push_back(peak ? format("%.0f", static_cast<double>(*peak) / 1048576) : "-");
    cells.push_back(
        row.judged && row.parity.mismatch.empty()
            ? format("%.1e %.1e %.1e", row.parity.loss, row.parity.grad_norm, row.parity.parameters)
            : "-");
  }
  cells.push_back(row.verdict());
  return cells;
}

}  // namespace

bool ComparisonRow::failed() const {
  return outcome == Outcome::kFailed || (judged && !parity.pass);
}

std::string ComparisonRow::verdict() const {
  if (outcome == Outcome::kOutOfMemory) return "out of memory";
  if (outcome == Outcome::kFailed) return concat("failed, exit ", exit_code);
  if (is_reference) return "reference";
  if (!judged) return "no reference";
  if (!parity.mismatch.empty()) return "FAIL: " + parity.mismatch;
  return parity.pass ? "PASS" : "FAIL";
}

std::string comparison_text(const std::vector<ComparisonRow>& rows, double tolerance) {
  std::vector<std::vector<std::string>> table{
      {"row", "mesh", "first loss", "final loss", "tokens/s", "parameters", "gradients",
       "optimizer", "on the host", "sent per step", "peak", "loss, norm, parameters", "verdict"}};
  for (const ComparisonRow& row : rows) table.push_back(cells_of(row));
  std::vector<size_t> widths(table[0].size(), 0);
  for (const auto& line : table) {
    for (size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  }
  std::string text;
  for (const auto& line : table) {
    for (size_t i = 0; i + 1 < line.size(); ++i) {
      const std::string fill(widths[i] - line[i].size(), ' ');
      text += (i == 0 ? line[i] + fill : fill + line[i]) + "  ";
    }
    text += line.back() + "\n";
  }
  text += concat(
      "MiB of the largest rank, measured / formula (docs/strategies.md). mesh: pipeline x data x "
      "tensor ranks. sent per step: what rank 0 hands to the wire. peak: allocated on the GPU, or\n"
      "resident in all ranks' processes together. The three differences are the largest relative "
      "ones to the reference; PASS: all within ",
      tolerance, ".\n");
  return text;
}

std::string comparison_csv(const std::vector<ComparisonRow>& rows) {
  using metrics::Value;
  auto optional = [](const auto& value) { return value ? Value(*value) : Value(); };
  std::string text;
  for (const ComparisonRow& row : rows) {
    const bool ran = row.outcome == Outcome::kFinished;
    const bool compared = ran && row.judged && row.parity.mismatch.empty();
    auto when = [](bool condition, Value value) { return condition ? value : Value(); };
    const metrics::Fields fields{
        {"row", row.name},
        {"strategy", row.options.strategy},
        {"world_size", row.ranks},
        {"pp", static_cast<int64_t>(row.mesh().pipeline)},
        {"dp", static_cast<int64_t>(row.mesh().data)},
        {"tp", static_cast<int64_t>(row.mesh().tensor)},
        {"gradient_accumulation_steps", row.options.gradient_accumulation_steps},
        {"train_loss_final", optional(row.run.train_loss_final)},
        {"eval_loss", optional(row.run.eval_loss)},
        {"tokens_per_second_median", optional(row.run.tokens_per_second)},
        {"parameter_bytes", optional(row.run.parameter_bytes)},
        {"parameter_formula_bytes", row.formula.parameter_bytes},
        {"gradient_bytes", optional(row.run.gradient_bytes)},
        {"gradient_formula_bytes", row.formula.gradient_bytes},
        {"optimizer_bytes", optional(row.run.optimizer_bytes)},
        {"optimizer_formula_bytes", row.formula.optimizer_bytes},
        {"buffer_bytes", optional(row.run.buffer_bytes)},
        {"buffer_formula_bytes", row.formula.buffer_bytes},
        {"host_bytes", optional(row.run.host_bytes)},
        {"host_formula_bytes", row.formula.host_bytes},
        {"pinned_bytes", optional(row.run.pinned_bytes)},
        {"comm_bytes_per_step", optional(row.run.comm_bytes_per_step)},
        {"comm_formula_bytes_per_step", row.formula.comm_bytes_per_step},
        {"gpu_mem_allocated_peak_bytes", optional(row.run.gpu_peak_bytes)},
        {"cpu_rss_tree_peak_bytes", optional(row.run.cpu_peak_bytes)},
        {"loss_difference_ratio", when(compared, row.parity.loss)},
        {"grad_norm_difference_ratio", when(compared, row.parity.grad_norm)},
        {"parameter_difference_ratio", when(compared, row.parity.parameters)},
        {"worst_parameter", when(compared, row.parity.worst_parameter)},
        {"wall_s", row.wall_s},
        {"exit_code", static_cast<int64_t>(row.exit_code)},
        {"verdict", row.verdict()},
        {"message", row.message}};
    std::string header, values;
    for (size_t i = 0; i < fields.size(); ++i) {
      header += concat(i == 0 ? "" : ",", fields[i].first);
      values += concat(i == 0 ? "" : ",", metrics::to_csv(fields[i].second));
    }
    text += (text.empty() ? header + "\n" : "") + values + "\n";
  }
  return text;
}

}  // namespace tessera::programs
