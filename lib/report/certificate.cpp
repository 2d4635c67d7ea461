// SPDX-License-Identifier: MIT
// Certificate: which runs were compared, and on which hardware.
#include <algorithm>
#include <cmath>

#include "lib/core/number_text.h"
#include "lib/report/tables.h"
#include "tessera/core/error.h"

namespace tessera::report {
namespace {

const Run* reference_of(const Study& study, const Run& run) {
  if (!run.parity || run.parity->verdict == "reference") return nullptr;
  const std::string path = run.parity->folder + "/" + run.parity->reference;
  for (const Run& other : study.runs) {
    if (other.path == path || other.path.starts_with(path + "/")) return &other;
  }
  return nullptr;
}

Cell difference_cell(const std::optional<double>& value) {
  if (!value) return {};
  return {.number = value, .text = *value == 0 ? "0" : printed("%.1e", *value)};
}

std::string first_of(const std::string& text) { return text.substr(0, 12); }

std::string versions_of(const Run& run) {
  std::string text = "tessera " + run.text("tessera_version");
  if (const std::string sha = run.text("git_sha"); !sha.empty()) text += " " + sha;
  text += ", LibTorch " + run.text("torch_version");
  if (const std::string cuda = run.text("cuda_version"); !cuda.empty()) text += ", CUDA " + cuda;
  if (const std::string driver = run.text("driver_version"); !driver.empty()) {
    text += ", driver " + driver;
  }
  return text;
}

}  // namespace

double relative_difference(double value, double reference) {
  return std::abs(value - reference) / std::max(std::abs(reference), 1e-30);
}

std::optional<double> largest_difference(const Run& run, const Run& reference,
                                         const std::string& key) {
  const auto steps = run.steps.column("step");
  if (steps.empty() || steps != reference.steps.column("step")) return std::nullopt;
  const auto a = run.steps.column(key), b = reference.steps.column(key);
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!std::isfinite(a[i]) || !std::isfinite(b[i])) return std::nullopt;
    if (a[i] == b[i]) continue;
    largest = std::max(largest, relative_difference(a[i], b[i]));
  }
  return largest;
}

Table certificate_table(const Study& study) {
  Table table{.id = "certificate",
              .title = "Certificate",
              .about =
                  "What was compared with what. Differences are the largest relative ones: of loss "
                  "and gradient norm over all steps, |a - b| / |b|; of parameters over all blocks "
                  "of the exported models, ||a - b|| / ||b||. \"from the steps\": computed here "
                  "from metrics.jsonl of both runs.",
              .columns = {{"run", "run", 1, -1, true},
                          {"reference", "compared with", 1, -1, true},
                          {"verdict", "verdict", 1, -1, true},
                          {"tolerance", "tolerance"},
                          {"steps", "steps", 1, 0},
                          {"loss_difference_ratio", "loss"},
                          {"grad_norm_difference_ratio", "gradient norm"},
                          {"parameter_difference_ratio", "parameters"},
                          {"worst_parameter", "worst parameter", 1, -1, true},
                          {"loss_difference_from_steps_ratio", "loss, from the steps"},
                          {"grad_norm_difference_from_steps_ratio", "norm, from the steps"},
                          {"seeds", "seeds", 1, -1, true},
                          {"data_sha256", "data", 1, -1, true},
                          {"param_hashes", "parameter hashes", 1, -1, true},
                          {"versions", "versions", 1, -1, true},
                          {"device", "device", 1, -1, true}}};
  std::vector<std::string> marks;
  for (const Run& run : study.runs) {
    const Run* reference = reference_of(study, run);
    if (reference == nullptr || run.outcome != RunOutcome::kFinished) continue;
    const ParityCheck& c = *run.parity;
    const auto both = [&](const char* key, auto shown) {
      const std::string mine = shown(run.text(key)), theirs = shown(reference->text(key));
      return Cell{.text = mine == theirs ? mine : mine + " / " + theirs};
    };
    const auto as_is = [](const std::string& text) { return text; };
    Cell versions{.text = versions_of(run)};
    if (versions_of(*reference) != versions.text) versions.text += " / " + versions_of(*reference);
    table.rows.push_back(
        {.cells = {{.text = run.name},
                   {.text = reference->name},
                   {.text = c.verdict},
                   difference_cell(c.tolerance),
                   {static_cast<double>(run.steps.size()), ""},
                   difference_cell(c.loss),
                   difference_cell(c.grad_norm),
                   difference_cell(c.parameters),
                   {.text = c.worst_parameter},
                   difference_cell(largest_difference(run, *reference, "loss")),
                   difference_cell(largest_difference(run, *reference, "grad_norm")),
                   both("seed", as_is),
                   both("dataset_sha256", first_of),
                   both("param_hash_final", first_of),
                   versions,
                   both("device", as_is)},
         .mark = study.marks.of(run)});
    marks.push_back(study.marks.of(run));
  }
  table.notes = study.marks.notes(marks);
  return table;
}

}  // namespace tessera::report
