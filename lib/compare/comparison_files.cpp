// SPDX-License-Identifier: MIT
#include <cmath>
#include <tuple>

#include "lib/compare/comparison_table.h"
#include "lib/core/joined.h"
#include "lib/metrics/field_table.h"
#include "lib/run/output.h"
#include "lib/settings/table.h"
#include "tessera/core/error.h"
#include "tessera/core/json.h"
#include "tessera/metrics/event.h"

namespace tessera::programs {
namespace {

using metrics::Fields;
using metrics::Value;

// Whole numbers, such as bytes and counts, are written as integers.
Value value_of(const std::optional<double>& number) {
  if (!number) return {};
  const bool whole = std::floor(*number) == *number && std::abs(*number) < 9e15;
  return whole ? Value(static_cast<int64_t>(*number)) : Value(*number);
}

Value text_or_null(const std::string& text) { return text.empty() ? Value() : Value(text); }

void add_what(Fields& fields, const ComparisonRow& row) {
  const TrainOptions& o = row.options;
  const auto add = [&](const char* key, Value value) {
    fields.emplace_back(key, std::move(value));
  };
  add("row", row.name);
  add("peer", text_or_null(row.peer));
  add("world_size", row.ranks);
  add("pp", static_cast<int64_t>(row.mesh().pipeline));
  add("dp", static_cast<int64_t>(row.mesh().data));
  add("tp", static_cast<int64_t>(row.mesh().tensor));
  add("cp", static_cast<int64_t>(row.mesh().context));
  for (auto& [name, value] : settings::record(o, row.prepared->program)) {
    fields.emplace_back(name, std::move(value));
  }
  add("model", row.prepared->model.name);
  add("num_parameters", parameter_count(row.prepared->model).all);
  const PrecisionConfig& precision = o.parallel.precision;
  add("parameter_dtype", name_of(precision.parameter));
  add("gradient_dtype", name_of(precision.gradient_dtype()));
  add("reduce_dtype", name_of(precision.reduce_dtype()));
  add("global_batch_size", o.global_batch_size(row.mesh().data));
  add("dataset", row.prepared->train_path);
  add("dataset_sha256", text_or_null(row.prepared->dataset_sha256));
  add("num_train_samples", row.prepared->train.size());
  add("flags", joined(row.flags, " "));
}

void add_measured(Fields& fields, const ComparisonRow& row) {
  const auto add = [&](const std::string& key) {
    fields.emplace_back(key, value_of(row.median(key)));
  };
  const auto add_spread = [&](const metrics::MetricField& field) {
    const std::string stem = field.more.repeat_stem, unit = field.more.repeat_unit;
    const auto values = spread(row.runs, field.name);
    fields.emplace_back(field.name, values ? Value(values->median) : Value());
    fields.emplace_back(stem + "_repeat_std" + unit,
                        values && values->std ? Value(*values->std) : Value());
    fields.emplace_back(stem + "_repeat_min" + unit, values ? Value(values->min) : Value());
  };
  const std::string device = row.runs.empty() ? "" : row.runs.front().text("device");
  fields.emplace_back("device", text_or_null(device));
  fields.emplace_back("repeats", static_cast<int64_t>(row.runs.size()));
  using TablePositions = metrics::MetricField::TablePositions;
  for (const metrics::MetricField* field : metrics::fields_of(&TablePositions::comparison)) {
    field->more.repeat_stem != nullptr ? add_spread(*field) : add(field->name);
  }
  const std::tuple<const char*, const char*, double> beside[] = {
      {"parameter_bytes", "parameter_formula_bytes", row.formula.parameter_bytes},
      {"gradient_bytes", "gradient_formula_bytes", row.formula.gradient_bytes},
      {"optimizer_bytes", "optimizer_formula_bytes", row.formula.optimizer_bytes},
      {"buffer_bytes", "buffer_formula_bytes", row.formula.buffer_bytes},
      {"host_bytes", "host_formula_bytes", row.formula.host_bytes},
      {"comm_bytes_per_step", "comm_formula_bytes_per_step", row.formula.comm_bytes_per_step}};
  for (const auto& [measured, formula, bytes] : beside) {
    add(measured);
    const bool known = row.finished() && row.peer.empty();
    fields.emplace_back(formula, known ? value_of(bytes) : Value());
  }
  add("pinned_bytes");
}

void add_outcome(Fields& fields, const ComparisonRow& row, const ComparisonRow& base) {
  const auto add = [&](const char* key, Value value) {
    fields.emplace_back(key, std::move(value));
  };
  add("memory_savings_ratio", value_of(memory_savings(row, base)));
  add("runtime_change_ratio", value_of(runtime_change(row, base)));
  add("scaling_ratio", value_of(scaling_ratio(row, base)));
  add("largest_batch_size", row.largest ? Value(row.largest->fits) : Value());
  add("out_of_memory_batch_size",
      row.largest && row.largest->does_not_fit ? Value(*row.largest->does_not_fit) : Value());
  const bool compared = row.parity && row.parity->mismatch.empty();
  const auto when = [&](auto value) { return compared ? Value(value()) : Value(); };
  add("reference", text_or_null(row.compared_with));
  add("loss_difference_ratio", when([&] { return row.parity->loss; }));
  add("grad_norm_difference_ratio", when([&] { return row.parity->grad_norm; }));
  add("parameter_difference_ratio",
      row.peer.empty() ? when([&] { return row.parity->parameters; }) : Value());
  add("tolerance", when([&] { return row.tolerance; }));
  add("worst_parameter", when([&] { return row.parity->worst_parameter; }));
  add("wall_s", row.wall_s);
  add("exit_code", static_cast<int64_t>(row.exit_code));
  add("verdict", row.verdict());
  add("mark", text_or_null(row.mark));
  add("message", text_or_null(row.message));
}

Fields fields_of(const ComparisonRow& row, const ComparisonRow& base) {
  Fields fields;
  add_what(fields, row);
  add_measured(fields, row);
  add_outcome(fields, row, base);
  return fields;
}

void write(JsonWriter& json, const Value& value) {
  if (std::holds_alternative<std::monostate>(value)) json.null();
  if (const auto* v = std::get_if<bool>(&value)) json.value(*v);
  if (const auto* v = std::get_if<int64_t>(&value)) json.value(*v);
  if (const auto* v = std::get_if<double>(&value)) json.value(*v);
  if (const auto* v = std::get_if<std::string>(&value)) json.value(*v);
}

}  // namespace

std::string comparison_csv(const ComparisonView& view) {
  std::string text;
  for (const ComparisonRow& row : view.rows) {
    std::string header, values;
    for (const auto& [key, value] : fields_of(row, view.baseline)) {
      header += concat(header.empty() ? "" : ",", key);
      values += concat(values.empty() ? "" : ",", metrics::to_csv(value));
    }
    text += (text.empty() ? header + "\n" : "") + values + "\n";
  }
  return text;
}

std::string comparison_json(const ComparisonView& view) {
  JsonWriter json(/*indent=*/1);
  json.begin_object().field("schema", "tessera.compare/1");
  metrics::RunStartRecord versions;
  fill_versions(versions);
  json.field("tessera_version", versions.tessera_version).field("git_sha", versions.git_sha);
  json.field("baseline", view.baseline.name).field("scaling", view.scaling);
  json.field("repeat", view.repeat).key("rows").begin_array();
  for (const ComparisonRow& row : view.rows) {
    json.begin_object();
    for (const auto& [key, value] : fields_of(row, view.baseline)) {
      json.key(key);
      write(json, value);
    }
    json.key("runs").begin_array();  // folders beside this file
    for (const RunResult& run : row.runs) {
      json.value(run.directory.substr(run.directory.rfind('/') + 1));
    }
    json.end_array().end_object();
  }
  return json.end_array().end_object().text() + "\n";
}

}  // namespace tessera::programs
