// SPDX-License-Identifier: MIT
// The table of fields and the events say the same names.
#include "lib/metrics/field_table.h"

#include <map>
#include <set>

#include "tessera/core/json.h"
#include "tessera/metrics/event.h"
#include "tests/support/test.hpp"

using namespace tessera;
using namespace tessera::metrics;

namespace {

std::set<std::string> names_in(const Event& event) {
  std::set<std::string> names;
  for (const auto& [name, value] : event.fields) names.insert(name);
  return names;
}

std::set<std::string> names_of(EventKind event) {
  std::set<std::string> names;
  for (const MetricField& field : field_table()) {
    if (field.event == event) CHECK(names.insert(field.name).second);
  }
  return names;
}

}  // namespace

TEST_CASE("events have the fields of the table, and no others") {
  CHECK(names_in(to_event(RunStartRecord{})) == names_of(EventKind::kRunStart));
  CHECK(names_in(to_event(DataRecord{})) == names_of(EventKind::kData));
  CHECK(names_in(to_event(StepRecord{.expert_tokens = {1}})) == names_of(EventKind::kStep));
  CHECK(names_in(to_event(CheckpointRecord{})) == names_of(EventKind::kCheckpoint));
  CHECK(names_in(to_event(ResourceRecord{})) == names_of(EventKind::kResource));
  CHECK(names_in(to_event(AnomalyRecord{})) == names_of(EventKind::kAnomaly));
  const EvalRecord all{.eval_perplexity = 1,
                       .eval_accuracy = 1,
                       .eval_f1_macro = 1,
                       .eval_f1_weighted = 1,
                       .eval_exact_match = 1,
                       .eval_f1 = 1};
  CHECK(names_in(to_event(all)) == names_of(EventKind::kEval));
  std::set<std::string> always = names_of(EventKind::kEval);
  for (const MetricField& field : field_table()) {
    if (field.event == EventKind::kEval && field.more.optional) always.erase(field.name);
  }
  CHECK(names_in(to_event(EvalRecord{})) == always);
}

TEST_CASE("a place in a table belongs to one field, and that has a title") {
  using TablePositions = MetricField::TablePositions;
  for (int TablePositions::*position : {&TablePositions::comparison, &TablePositions::results,
                                        &TablePositions::memory, &TablePositions::side_by_side}) {
    int number = 0;
    for (const MetricField* field : fields_of(position)) {
      INFO(field->name);
      CHECK(field->more.positions.*position == ++number);
      CHECK((position == &TablePositions::comparison || *field->more.title != '\0'));
    }
    CHECK(number > 0);
  }
  for (const MetricField& field : field_table()) {
    INFO(field.name);
    CHECK_NOTHROW(Json::parse(field.json_schema(), {}, field.name));
  }
}
