// SPDX-License-Identifier: MIT
#include "tessera/train/trainer_state.h"

#include <limits>

namespace tessera {
namespace {

int64_t count_of(const Json& json, const char* key) {
  return json.at(key).as_int64(0, int64_t{1} << 53);  // far below overflow of sums
}

}  // namespace

std::string TrainerState::to_json() const {
  JsonWriter json;
  json.begin_object();
  json.field("steps", steps).field("updates", updates);
  json.field("skipped_in_a_row", skipped_in_a_row);
  if (loss_scaler) {
    json.key("loss_scaler").begin_object();
    json.field("scale", loss_scaler->scale).field("good_steps", loss_scaler->good_steps);
    json.end_object();
  }
  if (plateau) {
    json.key("plateau").begin_object();
    json.field("rate", plateau->rate).field("best", plateau->best);  // null: nothing observed
    json.field("bad", plateau->bad).field("cooldown_left", plateau->cooldown_left);
    json.end_object();
  }
  if (early_stopping) {
    json.key("early_stopping").begin_object();
    json.field("best", early_stopping->best).field("bad", early_stopping->bad);  // null: none yet
    json.end_object();
  }
  return json.end_object().text();
}

TrainerState TrainerState::from_json(const Json& json) {
  TrainerState state;
  state.steps = count_of(json, "steps");
  state.updates = count_of(json, "updates");
  state.skipped_in_a_row = count_of(json, "skipped_in_a_row");
  if (const auto scaler = json.find("loss_scaler")) {
    state.loss_scaler = {scaler->at("scale").as_double(), count_of(*scaler, "good_steps")};
  }
  if (const auto plateau = json.find("plateau")) {
    state.plateau = {.rate = plateau->at("rate").as_double(),
                     .best = plateau->get("best", std::numeric_limits<double>::infinity()),
                     .bad = count_of(*plateau, "bad"),
                     .cooldown_left = count_of(*plateau, "cooldown_left")};
  }
  if (const auto stopping = json.find("early_stopping")) {
    state.early_stopping = {.best = stopping->get("best", std::numeric_limits<double>::infinity()),
                            .bad = count_of(*stopping, "bad")};
  }
  return state;
}

}  // namespace tessera
