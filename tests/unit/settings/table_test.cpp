// SPDX-License-Identifier: MIT
// The table of settings, and everything derived from it.
#include "lib/settings/table.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <set>

#include "lib/core/file.h"
#include "lib/settings/train_flags.h"
#include "tessera/core/error.h"
#include "tessera/core/json.h"
#include "tests/support/messages.hpp"
#include "tests/support/test.hpp"

using namespace tessera;
using namespace tessera::settings;

namespace {

// Other values of a setting: all other choices except auto, which a run resolves first; without
// choices one other value.
std::vector<TrainOptions> changed(const Setting& setting, const TrainOptions& options) {
  const std::string now = setting.text(options);
  std::vector<std::string> others;
  for (const std::string& choice : setting.facts.choices) {
    if (choice != now && choice != "auto") others.push_back(choice);
  }
  if (others.empty()) {
    const FieldRef field = setting.read(options);
    const auto* count = std::get_if<int64_t*>(&field);
    const auto* small = std::get_if<int*>(&field);
    others = {std::holds_alternative<bool*>(field)     ? (now == "true" ? "false" : "true")
              : count != nullptr                       ? std::to_string(**count + 1)
              : small != nullptr                       ? std::to_string(**small + 1)
              : std::holds_alternative<double*>(field) ? "0.5"
                                                       : now + "other"};
  }
  std::vector<TrainOptions> all;
  for (const std::string& text : others) {
    REQUIRE(set_text(setting.field(all.emplace_back(options)), text));
  }
  return all;
}

// A run in which every setting of its strategy may have an effect.
TrainOptions everything() {
  TrainOptions options;
  options.parallel.offload.what = Offload::kOptimizer;
  options.axes.pipeline = 2;
  options.parallel.pipeline.schedule = "interleaved";
  options.data.padding_free = PaddingFree::kFalse;
  return options;
}

TEST_CASE("names of runs follow the field's habit") {
  TrainOptions run{.parallel = {.strategy = "zero2", .precision = {.parameter = at::kHalf}}};
  CHECK(run_name(run, 4, true) == "zs2_fp16_gpus4_bs8_sl512");
  run.axes.tensor = run.axes.pipeline = 2;
  CHECK(run_name(run, 4, true) == "zs2_fp16_gpus4_bs8_sl512_tp2_pp2_1f1b");
  run.parallel.offload.what = Offload::kOptimizer;
  CHECK(run_name(run, 4, true) == "zs2_fp16_gpus4_bs8_sl512_tp2_pp2_1f1b_off_pin");
  const TrainOptions other{
      .data = {.packing = true},
      .training = {.gradient_accumulation_steps = 4},
      .parallel = {.precision = {.parameter = at::kBFloat16, .gradient = at::kFloat}}};
  CHECK(run_name(other, 1, false) == "single_bf16_cpus1_bs8_sl512_ga4_gfp32_pack");
}

TEST_CASE("whatever changes what a run costs changes its name") {
  const TrainOptions usual = everything();
  std::set<std::string> names{run_name(usual, 2, false), run_name(usual, 2, true),
                              run_name(usual, 4, false)};
  REQUIRE(names.size() == 3);
  for (const Setting& setting : table()) {
    if (setting.changes != Changes::kCost) continue;
    for (const TrainOptions& run : changed(setting, usual)) {
      INFO(setting.name << ": " << run_name(run, 2, false));
      CHECK(names.insert(run_name(run, 2, false)).second);
    }
  }
}

TEST_CASE("a name of a layout has no tag twice, and none of the defaults") {
  CHECK(layout_tags({}).empty());
  CHECK(tags({}).empty());
  std::set<std::string> tags;
  for (const Setting& setting : table()) {
    if (setting.facts.tag == nullptr) continue;
    CHECK((*setting.facts.tag == '\0' || tags.insert(setting.facts.tag).second));
  }
}

TEST_CASE("every program has a flag of a name once, with help") {
  for (const Program program :
       {Program::kSquad, Program::kText, Program::kClassification, Program::kChat}) {
    std::set<std::string> names;
    for (const Setting& setting : table()) {
      if (!setting.is_of(program)) continue;
      INFO(setting.name);
      CHECK(names.insert(setting.name).second);
      CHECK(setting.help.size() > 3);
    }
  }
}

TEST_CASE("defaults are within their ranges and choices; numbers out of them are refused by name") {
  check_ranges({});
  for (const Setting& setting : table()) {
    const std::vector<std::string>& choices = setting.facts.choices;
    CHECK((choices.empty() || std::ranges::count(choices, setting.text({})) == 1));
  }
  const auto refusal = [](TrainOptions options) {
    return error_of(ErrorCode::kInvalidArgument, [&] { check_ranges(options); });
  };
  CHECK(refusal({.parallel = {.bucket_bytes = 0}}) ==
        "--bucket_bytes is 0; it must be at least 1 and at most 2^40");
  CHECK(refusal({.parallel = {.prefetch_blocks = 70'000}}) ==
        "--prefetch_blocks is 70000; it must be at least 0 and at most 65536");
  CHECK(refusal({.training = {.weight_decay = -1}}) ==
        "--weight_decay is -1; it must be at least 0 and at most 1e+38");
  CHECK(refusal({.training = {.adam_beta1 = 1}}) ==
        "--adam_beta1 is 1; it must be at least 0 and below 1");
  CHECK(refusal({.lora = {.alpha = std::nan("")}}) ==
        "--lora_alpha is nan; it must be above 0 and at most 1e+38");
}

// Texts of a bound, and of the next number beyond it.
struct Bound {
  std::string at, beyond;
};
Bound bound_of(const Setting& setting, double limit, double side) {
  const FieldRef field = setting.read({});
  if (std::holds_alternative<double*>(field)) {
    const auto text = [](double number) { return JsonWriter().value(number).text(); };
    return {text(limit), text(std::nextafter(limit, side * kNoLimit))};
  }
  // Not an int64_t; the limit of unsigned settings.
  if (limit == 0x1p63) return {"9223372036854775808", "9223372036854775809"};
  const auto whole = static_cast<int64_t>(limit);
  return {std::to_string(whole), std::to_string(whole + (side > 0 ? 1 : -1))};
}

// Error of a program with this single flag and value; "": accepted.
std::string refusal_of(const Setting& setting, const std::string& text) {
  TrainOptions options;
  programs::FlagSet flags("program", "");
  programs::add_flags(flags, options, [&](const Setting& one) { return &one == &setting; });
  try {
    flags.parse({concat("--", setting.name, "=", text)});
    setting.check_range(options);
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kInvalidArgument);
    REQUIRE(*error.what() != '\0');
    return error.what();
  }
  return "";
}

TEST_CASE("every number has a range: its bounds are taken, what is beyond is refused with it") {
  size_t numbers = 0;
  for (const Setting& setting : table()) {
    const FieldFacts& facts = setting.facts;
    INFO(setting.name);
    if (!setting.is_number()) {
      CHECK(setting.range_text().empty());
      continue;
    }
    ++numbers;
    const bool from = std::isfinite(facts.least) != std::isfinite(facts.above);
    const bool to = std::isfinite(facts.most) != std::isfinite(facts.below);
    CHECK(from);  // a new row needs a lower and an upper bound
    CHECK(to);
    if (!from || !to) continue;
    const auto refused = [&](const std::string& text) {
      INFO(text);
      const std::string said = refusal_of(setting, text);
      CHECK(said.starts_with(concat("--", setting.name)));
      CHECK(said.find(setting.range_text()) != said.npos);
    };
    const auto taken = [&](const std::string& text) { CHECK(refusal_of(setting, text) == ""); };
    const bool above = std::isfinite(facts.above), below = std::isfinite(facts.below);
    const Bound low = bound_of(setting, above ? facts.above : facts.least, above ? 1 : -1);
    const Bound high = bound_of(setting, below ? facts.below : facts.most, below ? -1 : 1);
    above ? refused(low.at) : taken(low.at);
    above ? taken(low.beyond) : refused(low.beyond);
    below ? refused(high.at) : taken(high.at);
    below&& facts.below < 0x1p63 ? taken(high.beyond) : refused(high.beyond);
    for (const char* text : {"nan", "-nan", "inf", "-inf", "infinity", "1e400", "-1e400", "1e",
                             "99999999999999999999", "-99999999999999999999", ""}) {
      const bool number = std::string(text).find("99") != std::string::npos;
      if (number && facts.most >= 1e20) continue;
      refused(text);
    }
    for (const char* text : {"-1", "1e18"}) {
      const std::string said = refusal_of(setting, text);
      CHECK((said.empty() || said.find(setting.range_text()) != said.npos));
    }
  }
  CHECK(numbers > 40);
}

TEST_CASE("epochs and warm-up become steps; more steps than an integer counts are refused") {
  using programs::steps_of;
  TrainingOptions o{.num_train_epochs = 2.5};
  CHECK(steps_of(o, 3) == 8);
  o.warmup_steps = 0.3;
  CHECK(programs::warmup_steps_of(o, 8) == 3);
  o.warmup_steps = 5;
  CHECK(programs::warmup_steps_of(o, 8) == 5);
  o.num_train_epochs = 1e9;
  CHECK(steps_of(o, 1000) == 1'000'000'000'000);
  CHECK(error_of(ErrorCode::kInvalidArgument, [&] { steps_of(o, int64_t{1} << 40); }) ==
        "--num_train_epochs 1e+09 of 1099511627776 steps each: a run has at most 2^40 steps");
  o.max_steps = 7;
  CHECK(steps_of(o, int64_t{1} << 40) == 7);
}

TEST_CASE("records say what a run was told that changes its cost; the schema knows their names") {
  const TrainOptions options{.data = {.padding_free = PaddingFree::kTrue},
                             .parallel = {.offload = {.what = Offload::kOptimizer}}};
  const metrics::Event event{"run_start", record(options, Program::kText)};
  CHECK(event.text("offload") == "optimizer");
  CHECK(*event.find("pin_memory") == metrics::Value(true));
  CHECK(*event.find("padding_free") == metrics::Value(true));
  CHECK(*event.find("pipeline_schedule") == metrics::Value());  // no pipeline
  CHECK(*event.find("supervise") == metrics::Value());          // not a setting of this program
  CHECK(event.number("bucket_bytes") == 25 << 20);
  const std::string path = TESSERA_METRICS_SCHEMA;
  const Json schema = Json::parse(read_file(path, 1 << 20), {}, path);
  const Json run_start = schema.at("$defs").at("run_start");
  std::set<std::string> required;
  for (const Json& name : run_start.at("required").items()) required.insert(name.as_string());
  for (const std::string& name : recorded_names()) {
    INFO(name);
    CHECK(required.contains(name));
    CHECK(run_start.at("properties").contains(name));
  }
}

// With TESSERA_WRITE_DOCS=1 writes the page.
TEST_CASE("docs/reference/flags.md says what the table says") {
  const std::string head =
      "# Flags of the training programs\n\n"
      "Written from the table in `lib/settings` (CONTRIBUTING.md says how). \"Changes\" says what "
      "another value changes:\nnumbers (losses and weights), cost (time, memory or traffic) or "
      "output (what is written, and when a run ends).\n";
  if (std::getenv("TESSERA_WRITE_DOCS") != nullptr) {
    std::ofstream(TESSERA_FLAGS_PAGE) << head << to_markdown();
  }
  CHECK(read_file(TESSERA_FLAGS_PAGE, 1 << 20) == head + to_markdown());
}

}  // namespace
