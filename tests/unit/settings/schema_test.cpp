// SPDX-License-Identifier: MIT
// docs/schema/metrics.schema.json follows from the table of metrics and the table of settings.
#include <cstdlib>
#include <fstream>

#include "lib/core/field.h"
#include "lib/core/file.h"
#include "lib/core/joined.h"
#include "lib/metrics/field_table.h"
#include "lib/settings/table.h"
#include "tessera/core/error.h"
#include "tessera/core/json.h"
#include "tests/support/test.hpp"

using namespace tessera;
using metrics::EventKind;
using metrics::MetricField;
using settings::Setting;

namespace {

struct Property {
  std::string name, schema;
  bool required = true;
};

std::string in_quotes(const std::string& text) { return "\"" + text + "\""; }

// A setting's property in records of runs.
std::string schema_of(const Setting& setting) {
  const TrainOptions options;
  const FieldRef field = setting.read(options);
  const bool records = setting.more.record != nullptr;  // a value that is not the option's
  const metrics::Value value = records ? setting.more.record(options) : settings::value_of(field);
  const bool is_switch = std::holds_alternative<bool>(value);
  const bool whole = !records && std::holds_alternative<int64_t>(value);
  const bool null = (records && !is_switch) || !setting.is_of(Program::kOwn);
  const bool number = std::holds_alternative<double>(value);
  std::string type = in_quotes(is_switch ? "boolean"
                               : whole   ? "integer"
                               : number  ? "number"
                                         : "string");
  std::string text = concat("{\"type\": ", null ? concat("[", type, ", \"null\"]") : type);
  if (std::holds_alternative<Choice>(field) && !records && !null) {
    std::vector<std::string> names;
    for (const std::string& name : names_of(field)) names.push_back(in_quotes(name));
    text = concat("{\"enum\": [", joined(names), "]");
  }
  if (whole && setting.facts.least >= 0) text += concat(", \"minimum\": ", setting.facts.least);
  return text + concat(", \"description\": ", JsonWriter().value(setting.help).text(), "}");
}

std::vector<Property> properties_of(EventKind event) {
  std::vector<Property> all;
  const std::vector<std::string> recorded = settings::recorded_names();
  for (const MetricField& field : metrics::field_table()) {
    if (field.event != event && field.event != EventKind::kEvery) continue;
    const bool is_event = std::string(field.name) == "event";
    all.push_back(
        {field.name,
         is_event ? concat("{\"const\": ", in_quotes(name_of(event)), "}") : field.json_schema(),
         !field.more.optional});
    if (std::string(field.name) != metrics::kBeforeSettings) continue;
    for (const std::string& name : recorded) {
      all.push_back({name, schema_of(*settings::find(name))});
    }
  }
  return all;
}

std::string definition(EventKind event) {
  std::vector<std::string> required, lines;
  for (const Property& one : properties_of(event)) {
    if (one.required) required.push_back(in_quotes(one.name));
    lines.push_back(concat("    ", in_quotes(one.name), ": ", one.schema));
  }
  return concat("  ", in_quotes(name_of(event)),
                ": {\n   \"type\": \"object\",\n   \"required\": [", joined(required),
                "],\n   \"properties\": {\n", joined(lines, ",\n"),
                "\n   },\n   \"additionalProperties\": false\n  }");
}

std::string schema() {
  std::vector<std::string> names, definitions, references;
  for (const EventKind event :
       {EventKind::kRunStart, EventKind::kData, EventKind::kStep, EventKind::kEval,
        EventKind::kCheckpoint, EventKind::kResource, EventKind::kAnomaly, EventKind::kRunEnd}) {
    names.push_back(in_quotes(name_of(event)));
    definitions.push_back(definition(event));
    references.push_back(concat("  {\"$ref\": \"#/$defs/", name_of(event), "\"}"));
  }
  return concat(
      "{\n \"$schema\": \"https://json-schema.org/draft/2020-12/schema\",\n"
      " \"title\": \"One line of metrics.jsonl\",\n"
      " \"description\": \"SI base units with the unit in the name; null where a value is unknown. "
      "tokens count padding, supervised_tokens do not.\",\n"
      " \"type\": \"object\",\n \"required\": [\"event\"],\n \"properties\": {\n"
      "  \"event\": {\"enum\": [",
      joined(names), "]}\n },\n \"$defs\": {\n", joined(definitions, ",\n"),
      "\n },\n \"oneOf\": [\n", joined(references, ",\n"), "\n ]\n}\n");
}

}  // namespace

// TESSERA_WRITE_DOCS=1 writes the file instead.
TEST_CASE("docs/schema/metrics.schema.json says what the tables say") {
  if (std::getenv("TESSERA_WRITE_DOCS") != nullptr) {
    std::ofstream(TESSERA_METRICS_SCHEMA) << schema();
  }
  CHECK(read_file(TESSERA_METRICS_SCHEMA, 1 << 20) == schema());
}
