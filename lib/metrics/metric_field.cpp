// SPDX-License-Identifier: MIT
// Properties of a field, and the fields of a table or line.
#include <algorithm>
#include <functional>

#include "lib/metrics/field_table.h"
#include "tessera/core/error.h"
#include "tessera/core/json.h"

namespace tessera::metrics {
namespace {

using F = MetricField;

const char* json_type(F::Kind kind) {
  switch (kind) {
    case F::kText:
      return "string";
    case F::kTexts:
      return "array";
    case F::kObject:
      return "object";
    case F::kSwitch:
      return "boolean";
    case F::kInteger:
    case F::kCount:
    case F::kBytes:
      return "integer";
    case F::kNumber:
    case F::kSeconds:
    case F::kPerSecond:
    case F::kRatio:
      break;
  }
  return "number";
}

// Fields with a place, ordered by it.
std::vector<const F*> in_order(const std::function<int(const F&)>& position) {
  std::vector<const F*> fields;
  for (const F& field : field_table()) {
    if (position(field) > 0) fields.push_back(&field);
  }
  std::ranges::stable_sort(fields, {}, [&](const F* field) { return position(*field); });
  return fields;
}

bool is_signed(F::Kind kind) { return kind == F::kInteger || kind == F::kNumber; }

}  // namespace

const char* name_of(EventKind event) {
  constexpr const char* kNames[] = {"",           "run_start", "data",    "step",   "eval",
                                    "checkpoint", "resource",  "anomaly", "run_end"};
  return kNames[static_cast<size_t>(event)];
}

double MetricField::shown_scale() const {
  constexpr double kToMebibytes = 1.0 / (1 << 20);
  return more.scale.value_or(kind == kBytes ? kToMebibytes : kind == kRatio ? 100 : 1);
}

int MetricField::shown_decimals() const {
  return more.decimals.value_or(kind == kRatio ? 1 : kind == kCount ? 0 : -1);
}

std::string MetricField::json_schema() const {
  if (more.schema != nullptr) return more.schema;
  if (std::string(name) == "event") return concat(R"({"const": ")", name_of(event), "\"}");
  const std::string type = concat("\"", json_type(kind), "\"");
  std::string text = concat(R"({"type": )", more.null ? concat("[", type, ", \"null\"]") : type);
  if (kind == kTexts) text += R"(, "items": {"type": "string"})";
  const bool number = std::string(json_type(kind)) == "integer" || type == "\"number\"";
  if (number && (more.least || !is_signed(kind)))
    text += concat(R"(, "minimum": )", more.least.value_or(0));
  if (*more.about != '\0')
    text += concat(R"(, "description": )", JsonWriter().value(more.about).text());
  return text + "}";
}

std::vector<const MetricField*> fields_of(int MetricField::TablePositions::*position) {
  return in_order([&](const MetricField& field) { return field.more.positions.*position; });
}

std::vector<const MetricField*> console_fields(EventKind event) {
  return in_order([&](const MetricField& field) {
    return field.event == event ? field.more.console.position : 0;
  });
}

std::vector<const MetricField*> summary_fields() {
  return in_order([](const MetricField& field) { return field.more.summary.position; });
}

}  // namespace tessera::metrics
