// SPDX-License-Identifier: MIT
#include "lib/compare/row.h"

#include "lib/settings/table.h"
#include "tessera/core/error.h"
#include "tessera/core/json.h"

namespace tessera::programs {
namespace {

std::optional<double> change(std::optional<double> value, std::optional<double> base) {
  if (!value || !base || *base == 0) return std::nullopt;
  return (*value - *base) / *base;
}

std::string shown(const Work& work, const std::string& name) {
  const auto found = work.find(name);
  return found == work.end() || found->second.empty() ? "none" : found->second;
}

}  // namespace

Work work_of(const FlagSet& flags) {
  Work work;
  const Json config = Json::parse(flags.config_json(/*indent=*/0), {}, "flags");
  for (const auto& [name, entry] : config.members()) {
    const settings::Setting* setting = settings::find(name);
    if (setting != nullptr && setting->changes != settings::Changes::kNumbers) continue;
    const Json value = entry.at("value");
    work[name] = value.is_string() ? value.as_string() : value.dump();
  }
  return work;
}

std::string difference(const Work& work, const Work& other) {
  std::string text;
  for (const auto& [name, value] : work) {
    if (shown(other, name) == shown(work, name)) continue;
    text += concat(text.empty() ? "" : "; ", name, " ", shown(work, name), ", not ",
                   shown(other, name));
  }
  return text;
}

std::optional<double> ComparisonRow::median(const std::string& key) const {
  const auto values = spread(runs, key);
  return values ? std::optional(values->median) : std::nullopt;
}

std::optional<double> ComparisonRow::peak_bytes() const {
  const auto gpu = median("gpu_mem_allocated_peak_bytes");
  return gpu ? gpu : median("cpu_rss_tree_peak_bytes");
}

bool ComparisonRow::failed() const {
  return outcome == RunOutcome::kFailed || (peer.empty() && parity && !parity->pass);
}

std::string ComparisonRow::verdict() const {
  if (outcome == RunOutcome::kOutOfMemory) return "out of memory";
  if (outcome == RunOutcome::kUnavailable) return "not available";
  if (outcome == RunOutcome::kFailed) return concat("failed, exit ", exit_code);
  if (runs.empty()) return "not run";
  if (!peer.empty()) return "peer";
  if (!parity || (compared_with == name && parity->pass)) return "reference";
  if (!parity->mismatch.empty()) return "FAIL: " + parity->mismatch;
  return parity->pass ? "PASS" : "FAIL";
}

std::optional<double> memory_savings(const ComparisonRow& row, const ComparisonRow& baseline) {
  const auto more = change(row.peak_bytes(), baseline.peak_bytes());
  return more ? std::optional(-*more) : std::nullopt;
}

std::optional<double> runtime_change(const ComparisonRow& row, const ComparisonRow& baseline) {
  return change(row.median("train_runtime"), baseline.median("train_runtime"));
}

std::optional<double> scaling_ratio(const ComparisonRow& row, const ComparisonRow& baseline) {
  const auto ours = row.median("tokens_per_second_median");
  const auto theirs = baseline.median("tokens_per_second_median");
  if (!ours || !theirs || *theirs == 0) return std::nullopt;
  return (*ours / static_cast<double>(row.ranks)) / (*theirs / static_cast<double>(baseline.ranks));
}

}  // namespace tessera::programs
