// SPDX-License-Identifier: MIT
#include "lib/run/run_state.h"

#include <cmath>
#include <limits>
#include <map>

#include "tessera/core/error.h"
#include "tessera/core/json.h"

namespace tessera::programs {
namespace {

// True for fields that checkpoints have held since the first version: missing ones differ.
bool is_old(const std::string& name) {
  return name != kTrainingRows && name != kTemplateDate && name != kValidationRows &&
         name != kTokenizer;
}

std::vector<std::string> differences(const std::map<std::string, std::string>& then,
                                     const DataIdentity& now) {
  std::vector<std::string> texts;
  for (const auto& [name, value] : now) {
    const auto known = then.find(name);
    if (known == then.end() && !is_old(name)) continue;
    const std::string before = known == then.end() ? "" : known->second;
    if (before != value) texts.push_back(concat(name, " ", before, " -> ", value));
  }
  return texts;
}

DataIdentity values_of(const std::string& settings, const std::string& origin) {
  DataIdentity values;
  for (const auto& [name, setting] : Json::parse(settings, {}, origin).members()) {
    values.emplace_back("--" + name, setting.at("value").dump());
  }
  return values;
}

}  // namespace

std::string RunState::to_json() const {
  JsonWriter json;
  json.begin_object();
  json.key("trainer").scalar(trainer.to_json());
  json.key("data").begin_object().field("epoch", data.epoch).field("consumed", data.consumed);
  json.key("of").begin_object();
  for (const auto& [name, value] : of) json.field(name, value);
  json.end_object().end_object();
  json.key("evaluation").begin_object();
  for (const auto& [name, value] : evaluation) json.field(name, value);
  json.end_object();
  if (best) {
    json.key("best").begin_object().field("step", best->step);
    json.field("metric", best->metric).end_object();
  }
  if (!id.empty()) json.field("id", id);
  if (!fp8_layers.empty()) json.field("fp8_layers", fp8_layers);
  json.key("settings").scalar(settings);
  json.key("model").begin_object().key("config").scalar(model);
  if (!names.empty()) json.key("names").scalar(names);
  json.end_object();
  if (!adapter.empty()) json.key("adapter").scalar(adapter);
  if (!base.empty()) json.field("base", base);
  return json.end_object().text();
}

RunState RunState::from_json(const std::string& text, const std::string& origin) {
  const Json json = Json::parse(text, {}, origin);
  const Json data = json.at("data");
  // Limits that keep sums in range.
  constexpr int64_t kMost = int64_t{1} << 53, kMostEpochs = int64_t{1} << 32;
  RunState state{.trainer = TrainerState::from_json(json.at("trainer")),
                 .data = {.epoch = data.at("epoch").as_int64(0, kMostEpochs),
                          .consumed = data.at("consumed").as_int64(0, kMost)},
                 .settings = json.at("settings").dump(),
                 .model = json.at("model").at("config").dump()};
  if (const auto names = json.at("model").find("names")) state.names = names->dump();
  for (const auto& [name, value] : data.at("of").members()) {
    state.of.emplace_back(name, value.as_string());
  }
  if (const auto evaluation = json.find("evaluation")) {
    for (const auto& [name, value] : evaluation->members()) {
      state.evaluation.emplace_back(name, value.as_string());
    }
  }
  if (const auto adapter = json.find("adapter")) state.adapter = adapter->dump();
  state.base = json.get("base", "");
  state.id = json.get("id", "");
  state.fp8_layers = json.get("fp8_layers", "");
  // null: the evaluation was NaN, which is never the best. Earlier versions also stored a path.
  if (const auto best = json.find("best"); best && !best->at("metric").is_null()) {
    state.best = {best->at("step").as_int64(0, kMost), best->at("metric").as_double()};
  }
  return state;
}

bool is_better(const RunState::Best& now, const std::optional<RunState::Best>& best, bool less) {
  if (!std::isfinite(now.metric)) return false;
  if (!best || !std::isfinite(best->metric)) return true;
  return less ? now.metric < best->metric : now.metric > best->metric;
}

bool RunState::is_best_of(const std::string& run, const Best& wanted) const {
  return (id.empty() || id == run) && trainer.steps == wanted.step && best &&
         best->step == wanted.step && best->metric == wanted.metric;
}

std::vector<std::string> RunState::other_data(const DataIdentity& now) const {
  return differences({of.begin(), of.end()}, now);
}

std::vector<std::string> RunState::other_evaluation(const DataIdentity& now) const {
  return differences({evaluation.begin(), evaluation.end()}, now);
}

std::vector<std::string> RunState::other_settings(const std::string& now) const {
  const DataIdentity then = values_of(settings, "the checkpoint's settings");
  DataIdentity today = values_of(now, "the settings");
  // Resuming itself is not a difference.
  std::erase_if(today, [](const auto& one) { return one.first == "--resume_from_checkpoint"; });
  return differences({then.begin(), then.end()}, today);
}

}  // namespace tessera::programs
