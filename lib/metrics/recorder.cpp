// SPDX-License-Identifier: MIT
#include "tessera/metrics/recorder.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <random>
#include <string>

#include "lib/metrics/field_table.h"
#include "lib/metrics/statistics.h"
#include "lib/metrics/watches.h"
#include "tessera/core/error.h"
#include "tessera/core/log.h"

namespace tessera::metrics {
namespace {

using Clock = std::chrono::steady_clock;

double unix_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string random_run_id() {
  std::random_device device;
  std::string id;
  for (int i = 0; i < 12; ++i) id += "0123456789abcdef"[device() % 16];
  return id;
}

Value value_of(const std::optional<int64_t>& value) { return value ? Value(*value) : Value(); }

}  // namespace

struct Recorder::Totals {
  Clock::time_point created = Clock::now();
  Clock::time_point started = created;
  std::optional<Clock::time_point> trained;
  SpikeWatch losses;
  Samples step_times, token_rates;
  std::map<std::string, Samples> of_steps;  // of which the end says the median
  double loss_sum = 0, loss_last = 0;
  int64_t steps = 0, samples = 0, tokens = 0, skipped = 0;
  Track gpu_allocated, gpu_reserved;
  ResourceSummary resources;
  bool begun = false, finished = false;
  struct Lost {
    int64_t records = 0;
    std::string reason;
  };
  std::map<size_t, Lost> lost;  // by sink
};

Recorder::Recorder(std::vector<std::unique_ptr<Sink>> sinks, int64_t logging_steps, int64_t rank)
    : sinks_(std::move(sinks)),
      run_id_(random_run_id()),
      logging_steps_(std::max<int64_t>(1, logging_steps)),
      rank_(rank),
      totals_(std::make_unique<Totals>()) {}

Recorder::~Recorder() = default;

void Recorder::emit(Event event) {
  if (totals_->finished) return;
  Fields common{
      {"schema", std::string("tessera.metrics/1")},
      {"event", event.name},
      {"time_unix_s", unix_seconds()},
      {"elapsed_s", std::chrono::duration<double>(Clock::now() - totals_->created).count()},
      {"run_id", run_id_},
      {"rank", rank_}};
  event.fields.insert(event.fields.begin(), common.begin(), common.end());
  for (size_t i = 0; i < sinks_.size(); ++i) {
    try {
      sinks_[i]->write(event);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kDataLoss || !totals_->begun) throw;
      lose(i, error.what());
    }
  }
}

// Drops the sink: a failing log must not end training.
void Recorder::lose(size_t sink, const std::string& reason) {
  Totals::Lost& lost = totals_->lost[sink];
  if (lost.records++ > 0) return;
  lost.reason = reason;
  log(LogLevel::kWarning, reason, "; training goes on, and what is not logged is counted");
}

void Recorder::start(const RunStartRecord& record) {
  std::lock_guard lock(mutex_);
  totals_->started = Clock::now();
  emit(to_event(record));
  totals_->begun = true;
}

void Recorder::step(const StepRecord& record) {
  std::lock_guard lock(mutex_);
  Totals& t = *totals_;
  ++t.steps;
  t.loss_sum += record.loss;
  t.loss_last = record.loss;
  t.samples += record.samples;
  t.tokens += record.tokens;
  t.skipped += record.skipped ? 1 : 0;
  t.step_times.add(record.step_time_s);
  if (record.step_time_s > 0) {
    t.token_rates.add(static_cast<double>(record.tokens) / record.step_time_s);
  }
  const Event event = to_event(record);
  for (const MetricField& field : field_table()) {
    if (!field.more.median_of_steps) continue;
    if (const auto number = event.number(field.name)) t.of_steps[field.name].add(*number);
  }
  t.gpu_allocated.add(record.gpu_mem_allocated_bytes);
  t.gpu_reserved.add(record.gpu_mem_reserved_bytes);
  if (!std::isfinite(record.loss)) {
    emit(to_event(AnomalyRecord{
        .kind = "nan", .detail = concat("the loss of step ", record.step, " is not finite")}));
  }
  if (const auto usual = t.losses.add(record.loss)) {
    emit(to_event(AnomalyRecord{.kind = "spike",
                                .detail = concat("the loss of step ", record.step, " is ",
                                                 record.loss, "; it was about ", *usual)}));
  }
  if (record.step == 1 || record.step % logging_steps_ == 0) return emit(event);
  if (t.finished) return;
  for (auto& sink : sinks_) sink->pass_over(event);
}

void Recorder::eval(const EvalRecord& record) {
  std::lock_guard lock(mutex_);
  emit(to_event(record));
}

void Recorder::checkpoint(const CheckpointRecord& record) {
  std::lock_guard lock(mutex_);
  emit(to_event(record));
}

void Recorder::data(const DataRecord& record) {
  std::lock_guard lock(mutex_);
  emit(to_event(record));
}

void Recorder::resource(const ResourceRecord& record) {
  std::lock_guard lock(mutex_);
  totals_->resources.add(record);
  emit(to_event(record));
}

void Recorder::other_node(const ResourceSummary& node) {
  std::lock_guard lock(mutex_);
  totals_->resources.add(node);
}

void Recorder::anomaly(const AnomalyRecord& record) {
  std::lock_guard lock(mutex_);
  emit(to_event(record));
}

void Recorder::end_of_training() {
  std::lock_guard lock(mutex_);
  totals_->trained = Clock::now();
}

void Recorder::finish(const RunEndInfo& info) {
  std::lock_guard lock(mutex_);
  emit(summary(info));
  totals_->finished = true;
  for (const auto& [sink, lost] : totals_->lost) {
    log(LogLevel::kWarning, lost.records, lost.records == 1 ? " record was" : " records were",
        " not logged: ", lost.reason);
  }
}

Event Recorder::summary(const RunEndInfo& info) const {
  const Totals& t = *totals_;
  const Clock::time_point end = t.trained.value_or(Clock::now());
  const double runtime = std::chrono::duration<double>(end - t.started).count();
  auto per_second = [&](int64_t count) { return Value(static_cast<double>(count) / runtime); };
  const int64_t excluded = warmup_steps(t.steps);
  const Distribution time = t.step_times.describe(excluded);
  const Distribution rate = t.token_rates.describe(excluded);
  auto mean = [](double sum, int64_t count) {
    return count ? Value(sum / static_cast<double>(count)) : Value();
  };
  auto peak_or = [](const std::optional<int64_t>& given, const Track& track) {
    return given ? value_of(given) : track.peak_value();
  };
  Event event{
      "run_end",
      {{"train_runtime", runtime},
       {"train_samples_per_second", per_second(t.samples)},
       {"train_steps_per_second", per_second(t.steps)},
       {"train_tokens_per_second", per_second(t.tokens)},
       {"train_loss", mean(t.loss_sum, t.steps)},
       {"train_loss_final", t.steps ? Value(t.loss_last) : Value()},
       {"train_steps", t.steps},
       {"train_samples", t.samples},
       {"train_tokens", t.tokens},
       {"step_time_mean_s", time.mean},
       {"step_time_median_s", time.median},
       {"step_time_std_s", time.std},
       {"step_time_p90_s", time.p90},
       {"step_time_p99_s", time.p99},
       {"tokens_per_second_median", rate.median},
       {"tokens_per_second_std", rate.std},
       {"warmup_steps_excluded", excluded},
       {"gpu_mem_used_peak_bytes", t.resources.gpu_used.peak_value()},
       {"gpu_mem_used_mean_bytes", t.resources.gpu_used.mean_value()},
       {"gpu_mem_used_min_bytes", t.resources.gpu_used.least_value()},
       {"gpu_mem_allocated_peak_bytes",
        peak_or(info.gpu_mem_allocated_peak_bytes, t.gpu_allocated)},
       {"gpu_mem_reserved_peak_bytes", peak_or(info.gpu_mem_reserved_peak_bytes, t.gpu_reserved)},
       {"gpu_util_mean_ratio", mean(t.resources.gpu_util_sum, t.resources.gpu_util_count)},
       {"cpu_rss_tree_peak_bytes", t.resources.cpu_rss.peak_value()},
       {"cpu_rss_tree_mean_bytes", t.resources.cpu_rss.mean_value()},
       {"cpu_pss_tree_peak_bytes", t.resources.cpu_pss.peak_value()},
       {"pinned_peak_bytes", peak_or(info.pinned_peak_bytes, t.resources.pinned)},
       {"num_skipped_steps", t.skipped}}};
  for (const MetricField& field : field_table()) {
    if (!field.more.median_of_steps) continue;
    const auto found = t.of_steps.find(field.name);
    const bool known = found != t.of_steps.end();
    event.fields.emplace_back(field.name,
                              known ? Value(found->second.describe(excluded).median) : Value());
  }
  event.fields.emplace_back("exit_code", static_cast<int64_t>(info.exit_code));
  event.fields.emplace_back("param_hash_final",
                            info.param_hash_final ? Value(*info.param_hash_final) : Value());
  event.fields.insert(event.fields.end(), info.extra.begin(), info.extra.end());
  return event;
}

}  // namespace tessera::metrics
