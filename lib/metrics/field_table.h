// SPDX-License-Identifier: MIT
#pragma once
// THE table of what events say. docs/schema/metrics.schema.json, the columns of results.csv and
// resources.csv, the measured fields of tessera-compare's files, tables of reports, and which runs
// did the same work follow from it.
#include <optional>
#include <string>
#include <vector>

namespace tessera::metrics {

// kEvery: fields that all events have.
enum class EventKind {
  kEvery,
  kRunStart,
  kData,
  kStep,
  kEval,
  kCheckpoint,
  kResource,
  kAnomaly,
  kRunEnd
};
const char* name_of(EventKind event);

struct MetricField {
  // JSON's type, the least value, and how tables show it: bytes in MiB, ratios in percent.
  enum Kind {
    kText,
    kTexts,
    kObject,
    kSwitch,
    kInteger,  // also below 0
    kCount,
    kBytes,
    kNumber,  // also below 0
    kSeconds,
    kPerSecond,
    kRatio
  };
  // A field on the console: before, its value, after. The value is its kind's text, or the
  // pattern's of the number that tables show.
  struct ConsoleText {
    int position = 0;  // in the line or block, from 1; 0: it is not there
    const char* before = "";
    const char* pattern = nullptr;  // of printf
    const char* after = "";
    const char* unknown = nullptr;  // the value's text where it is unknown; null: nothing is shown
    int width = 0;                  // columns that it takes at least
    int weight = 100;               // narrow windows drop the lightest parts of steps' lines
    const char* row = nullptr;      // of the block at a run's end
  };
  // Positions in tables, from 1; 0: it is not there.
  struct TablePositions {
    int comparison = 0;    // among the measured fields of comparison.csv and compare.json
    int results = 0;       // table 1 of reports: loss, rate and runtime
    int memory = 0;        // table 2 of reports
    int side_by_side = 0;  // two runs in a report
  };

  const char* name;
  EventKind event;
  Kind kind;
  struct More {
    bool null = false;                 // where it is unknown
    bool optional = false;             // the event may lack it
    std::optional<double> least = {};  // instead of the kind's
    const char* schema = nullptr;      // instead of what follows from the kind
    const char* about = "";            // description in the schema
    bool column = false;               // of results.csv
    TablePositions positions = {};
    const char* title = "";
    const char* title_beside = nullptr;  // of two runs side by side; null: title
    std::optional<double> scale = {};    // of tables, instead of the kind's
    std::optional<int> decimals = {};    // of tables, instead of the kind's
    std::vector<const char*> same = {};  // facts of run_start in which runs must agree
    // Files of comparisons also have "stem_repeat_std" and "stem_repeat_min" with this unit behind.
    const char *repeat_stem = nullptr, *repeat_unit = "";
    bool median_of_steps = false;  // of run_end: the median of the steps' field of this name
    bool layout = false;           // says how the work is spread
    const char* work = nullptr;    // runs that differ in it did other work; its title there
    ConsoleText console = {};      // in the line of its event: kStep, kEval
    ConsoleText summary = {};      // in the block at a run's end: kRunEnd, kEval
  } more = {};

  double shown_scale() const;
  int shown_decimals() const;  // -1: three significant digits
  std::string json_schema() const;
};

// Columns of files are in this order; those of a run's settings follow kBeforeSettings.
const std::vector<MetricField>& field_table();
inline constexpr const char* kBeforeSettings = "global_batch_size";

// Fields that have this place, in its order.
std::vector<const MetricField*> fields_of(int MetricField::TablePositions::*position);
// Fields of the event's line on the console, and of the block at a run's end, in order.
std::vector<const MetricField*> console_fields(EventKind event);
std::vector<const MetricField*> summary_fields();

}  // namespace tessera::metrics
