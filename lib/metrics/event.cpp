// SPDX-License-Identifier: MIT
#include "tessera/metrics/event.h"

#include <algorithm>
#include <cmath>

#include "lib/core/file.h"
#include "tessera/core/error.h"
#include "tessera/core/json.h"

namespace tessera::metrics {
namespace {

template <typename T>
Value value_of(const std::optional<T>& value) {
  return value ? Value(*value) : Value();
}

Value rate(double count, double seconds) { return seconds > 0 ? Value(count / seconds) : Value(); }

Value text_or_null(const std::string& text) { return text.empty() ? Value() : Value(text); }

// Shortest text that reads back as the same number.
std::string exact_number(double number) { return JsonWriter().value(number).text(); }

JsonText json_list(const std::vector<std::string>& items) {
  JsonWriter writer;
  writer.begin_array();
  for (const std::string& item : items) writer.value(utf8_text(item));
  return {writer.end_array().text()};
}

}  // namespace

const Value* Event::find(const std::string& key) const {
  auto found =
      std::find_if(fields.begin(), fields.end(), [&](const auto& f) { return f.first == key; });
  return found == fields.end() ? nullptr : &found->second;
}

std::optional<double> Event::number(const std::string& key) const {
  const Value* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (const auto* number = std::get_if<double>(value)) return *number;
  if (const auto* integer = std::get_if<int64_t>(value)) return static_cast<double>(*integer);
  return std::nullopt;
}

std::string Event::text(const std::string& key) const {
  const Value* value = find(key);
  const auto* text = value == nullptr ? nullptr : std::get_if<std::string>(value);
  return text == nullptr ? "" : *text;
}

Event to_event(const RunStartRecord& r) {
  Event event{"run_start",
              {{"exp", r.exp},
               {"argv", json_list(r.argv)},
               {"flags", r.flags},
               {"config", r.config},
               {"world_size", r.world_size},
               {"dp", r.dp},
               {"tp", r.tp},
               {"pp", r.pp},
               {"cp", r.cp},
               {"global_batch_size", r.global_batch_size}}};
  Fields& fields = event.fields;
  fields.insert(fields.end(), r.settings.begin(), r.settings.end());
  const Fields facts{{"parameter_dtype", r.parameter_dtype},
                     {"gradient_dtype", r.gradient_dtype},
                     {"reduce_dtype", r.reduce_dtype},
                     {"master_dtype", r.master_dtype},
                     {"moment_dtype", r.moment_dtype},
                     {"model", r.model},
                     {"num_parameters", r.num_parameters},
                     {"num_trainable_parameters", r.num_trainable_parameters},
                     {"recomputed_blocks", value_of(r.recomputed_blocks)},
                     {"recomputed_by_stage", text_or_null(r.recomputed_by_stage)},
                     {"activation_limit_bytes", value_of(r.activation_limit_bytes)},
                     {"dataset", r.dataset},
                     {"dataset_sha256", text_or_null(r.dataset_sha256)},
                     {"num_train_samples", r.num_train_samples},
                     {"num_train_steps", r.num_train_steps},
                     {"seed", static_cast<int64_t>(r.seed)},
                     {"mfu_formula", text_or_null(r.mfu_formula)},
                     {"peak_flops_per_second", value_of(r.peak_flops_per_second)},
                     {"device", r.device},
                     {"transport", r.transport},
                     {"launcher", r.launcher},
                     {"driver_version", text_or_null(r.driver_version)},
                     {"cuda_version", text_or_null(r.cuda_version)},
                     {"torch_version", r.torch_version},
                     {"tessera_version", r.tessera_version},
                     {"git_sha", text_or_null(r.git_sha)}};
  fields.insert(fields.end(), facts.begin(), facts.end());
  return event;
}

Event to_event(const DataRecord& r) {
  JsonWriter issues;
  issues.begin_array();
  for (const DataRecord::Issue& issue : r.issues) {
    issues.begin_object().field("reason", utf8_text(issue.reason)).field("count", issue.count);
    issues.key("places").scalar(json_list(issue.places).text).end_object();
  }
  return {"data",
          {{"file", r.file},
           {"role", r.role},
           {"rows", r.rows},
           {"examples", r.examples},
           {"skipped_rows", r.skipped_rows},
           {"issues", JsonText{issues.end_array().text()}},
           {"text_columns", json_list(r.text_columns)},
           {"label_columns", json_list(r.label_columns)},
           {"cut_contexts", value_of(r.cut_contexts)},
           {"windows", value_of(r.windows)},
           {"cut_rows", value_of(r.cut_rows)},
           {"dropped_tokens", value_of(r.dropped_tokens)}}};
}

Event to_event(const StepRecord& r) {
  Event event{"step",
              {{"step", r.step},
               {"epoch", r.epoch},
               {"loss", r.loss},
               {"learning_rate", r.learning_rate},
               {"grad_norm", value_of(r.grad_norm)},
               {"clip_coefficient", value_of(r.clip_coefficient)},
               {"loss_scale", value_of(r.loss_scale)},
               {"skipped", r.skipped},
               {"step_time_s", r.step_time_s},
               {"data_time_s", value_of(r.data_time_s)},
               {"forward_s", value_of(r.forward_s)},
               {"backward_s", value_of(r.backward_s)},
               {"comm_exposed_s", value_of(r.comm_exposed_s)},
               {"optimizer_s", value_of(r.optimizer_s)},
               {"h2d_d2h_s", value_of(r.h2d_d2h_s)},
               {"samples", r.samples},
               {"tokens", r.tokens},
               {"supervised_tokens", r.supervised_tokens},
               {"tokens_per_second", rate(static_cast<double>(r.tokens), r.step_time_s)},
               {"mfu_ratio", value_of(r.mfu_ratio)},
               {"gpu_mem_allocated_bytes", value_of(r.gpu_mem_allocated_bytes)},
               {"gpu_mem_reserved_bytes", value_of(r.gpu_mem_reserved_bytes)},
               {"comm_bytes", value_of(r.comm_bytes)},
               {"slowest_rank", value_of(r.slowest_rank)}}};
  if (r.expert_tokens.empty()) return event;
  JsonWriter tokens;
  tokens.begin_array();
  for (const int64_t count : r.expert_tokens) tokens.value(count);
  event.fields.insert(event.fields.end(),
                      {{"router_balance_loss", value_of(r.router_balance_loss)},
                       {"router_z_loss", value_of(r.router_z_loss)},
                       {"expert_load_entropy_ratio", value_of(r.expert_load_entropy_ratio)},
                       {"expert_least_load_ratio", value_of(r.expert_least_load_ratio)},
                       {"expert_dropped_ratio", value_of(r.expert_dropped_ratio)},
                       {"expert_tokens", JsonText{tokens.end_array().text()}}});
  return event;
}

Event to_event(const EvalRecord& r) {
  Event event{"eval",
              {{"step", r.step},
               {"epoch", r.epoch},
               {"eval_loss", r.eval_loss},
               {"eval_runtime", r.eval_runtime_s},
               {"eval_samples_per_second", rate(static_cast<double>(r.samples), r.eval_runtime_s)},
               {"eval_steps_per_second", rate(static_cast<double>(r.steps), r.eval_runtime_s)}}};
  if (r.eval_perplexity) event.fields.emplace_back("eval_perplexity", *r.eval_perplexity);
  if (r.eval_accuracy) event.fields.emplace_back("eval_accuracy", *r.eval_accuracy);
  if (r.eval_f1_macro) event.fields.emplace_back("eval_f1_macro", *r.eval_f1_macro);
  if (r.eval_f1_weighted) event.fields.emplace_back("eval_f1_weighted", *r.eval_f1_weighted);
  if (r.eval_exact_match) event.fields.emplace_back("eval_exact_match", *r.eval_exact_match);
  if (r.eval_f1) event.fields.emplace_back("eval_f1", *r.eval_f1);
  return event;
}

Event to_event(const CheckpointRecord& r) {
  return {"checkpoint",
          {{"path", r.path},
           {"bytes", r.bytes},
           {"write_s", r.write_s},
           {"stall_s", r.stall_s},
           {"waited_s", r.waited_s},
           {"restored_from", text_or_null(r.restored_from)}}};
}

Event to_event(const ResourceRecord& r) {
  return {"resource",
          {{"gpu", value_of(r.gpu)},
           {"gpu_mem_used_bytes", value_of(r.gpu_mem_used_bytes)},
           {"gpu_util_ratio", value_of(r.gpu_util_ratio)},
           {"gpu_power_w", value_of(r.gpu_power_w)},
           {"cpu_rss_tree_bytes", r.cpu_rss_tree_bytes},
           {"cpu_pss_tree_bytes", value_of(r.cpu_pss_tree_bytes)},
           {"pinned_bytes", value_of(r.pinned_bytes)},
           {"cpu_util_ratio", value_of(r.cpu_util_ratio)}}};
}

Event to_event(const AnomalyRecord& r) {
  return {"anomaly",
          {{"kind", r.kind},
           {"detail", r.detail},
           {"tensor", text_or_null(r.tensor)},
           {"rank_culprit", value_of(r.rank_culprit)}}};
}

std::string to_json(const Event& event) {
  JsonWriter writer;
  writer.begin_object();
  for (const auto& [key, value] : event.fields) {
    writer.key(key);
    if (const auto* raw = std::get_if<JsonText>(&value)) {
      writer.scalar(raw->text);
    } else if (const auto* text = std::get_if<std::string>(&value)) {
      writer.value(utf8_text(*text));
    } else if (const auto* flag = std::get_if<bool>(&value)) {
      writer.value(*flag);
    } else if (const auto* integer = std::get_if<int64_t>(&value)) {
      writer.value(*integer);
    } else if (const auto* number = std::get_if<double>(&value)) {
      writer.value(*number);
    } else {
      writer.null();
    }
  }
  return writer.end_object().text();
}

std::string to_csv(const Value& value) {
  std::string cell;
  if (const auto* flag = std::get_if<bool>(&value)) return *flag ? "true" : "false";
  if (const auto* integer = std::get_if<int64_t>(&value)) return std::to_string(*integer);
  if (const auto* number = std::get_if<double>(&value)) {
    return std::isfinite(*number) ? exact_number(*number) : "";
  }
  if (const auto* text = std::get_if<std::string>(&value)) cell = *text;
  if (const auto* raw = std::get_if<JsonText>(&value)) cell = raw->text;
  const bool formula = !cell.empty() && std::string("=+-@").find(cell[0]) != std::string::npos;
  if (formula) cell.insert(cell.begin(), '\'');
  if (!formula && cell.find_first_of(",\"\r\n") == std::string::npos) return cell;
  std::string quoted = "\"";
  for (char c : cell) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

}  // namespace tessera::metrics
