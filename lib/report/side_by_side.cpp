// SPDX-License-Identifier: MIT
// Two runs side by side.
#include <string_view>

#include "lib/report/tables.h"

namespace tessera::report {
namespace {

struct Result {
  const char *key, *title;
  double scale = 1;
  int decimals = -1;
};
constexpr Result kResults[] = {
    {"train_loss", "mean train loss", 1, 4},
    {"train_loss_final", "final train loss", 1, 4},
    {"eval_loss", "eval loss", 1, 4},
    {"eval_perplexity", "perplexity", 1, 3},
    {"eval_accuracy", "eval accuracy %", 100, 1},
    {"eval_exact_match", "exact match %", 1, 1},
    {"eval_f1", "F1 %", 1, 1},
    {"train_runtime", "runtime s"},
    {"train_samples_per_second", "train samples/s"},
    {"tokens_per_second_median", "median tokens/s"},
    {"step_time_median_s", "median step ms", 1e3},
    {"step_time_p99_s", "99 % of steps below, ms", 1e3},
    {"mfu_ratio", "MFU %", 100, 1},
    {"gpu_mem_allocated_peak_bytes", "peak GPU MiB, allocated", 1.0 / (1 << 20)},
    {"gpu_mem_used_peak_bytes", "peak GPU MiB, all of it", 1.0 / (1 << 20)},
    {"cpu_rss_tree_peak_bytes", "peak CPU MiB", 1.0 / (1 << 20)},
    {"gpu_util_mean_ratio", "mean GPU utilisation %", 100, 1},
    {"parameter_bytes", "parameters MiB", 1.0 / (1 << 20)},
    {"gradient_bytes", "gradients MiB", 1.0 / (1 << 20)},
    {"optimizer_bytes", "optimizer MiB", 1.0 / (1 << 20)},
    {"host_bytes", "on the host MiB", 1.0 / (1 << 20)},
    {"comm_bytes", "sent by rank 0 MiB", 1.0 / (1 << 20)}};

}  // namespace

std::vector<Table> side_by_side(const Study& study) {
  if (study.groups.size() != 2) return {};
  const Group& a = *study.baseline;
  const Group& b = &study.groups[0] == &a ? study.groups[1] : study.groups[0];
  Table settings{.id = "settings",
                 .title = "Where the configurations differ",
                 .columns = {{"setting", "setting", 1, -1, true},
                             {"baseline", a.name, 1, -1, true},
                             {"other", b.name, 1, -1, true}}};
  for (const Difference& one : configuration_differences(a.first(), b.first())) {
    settings.rows.push_back(
        {.cells = {{.text = one.what}, {.text = one.value}, {.text = one.baseline}}});
  }
  if (settings.rows.empty()) settings.notes = {"They are equal."};
  Table results{.id = "side_by_side",
                .title = "Side by side",
                .columns = {{"quantity", "quantity", 1, -1, true},
                            {"baseline", a.name},
                            {"other", b.name},
                            {"ratio", b.name + " / " + a.name}}};
  const std::string mark = study.marks.of(b.first());
  for (const Result& result : kResults) {
    const auto x = a.median(result.key), y = b.median(result.key);
    if (!x && !y) continue;
    const bool is_mfu = std::string_view(result.key) == "mfu_ratio";
    if (is_mfu && (a.text("mfu_formula") != b.text("mfu_formula") ||
                   a.text("peak_flops_per_second") != b.text("peak_flops_per_second"))) {
      continue;  // different quantities with one name
    }
    const auto cell = [&](const std::optional<double>& value) -> Cell {
      if (!value) return {};
      return {.number = value, .text = number_text(*value * result.scale, result.decimals)};
    };
    Row row{.cells = {{.text = result.title}, cell(x), cell(y), {}}, .mark = mark};
    if (x && y && *x != 0) row.cells[3] = {.number = *y / *x, .text = number_text(*y / *x, 3)};
    results.rows.push_back(std::move(row));
  }
  results.notes = study.marks.notes({mark});
  return {settings, results};
}

}  // namespace tessera::report
