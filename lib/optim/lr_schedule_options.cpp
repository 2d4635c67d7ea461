// SPDX-License-Identifier: MIT
#include <algorithm>
#include <variant>

#include "lib/optim/lr_schedule_kinds.h"
#include "tessera/core/error.h"
#include "tessera/core/json.h"
#include "tessera/optim/lr_schedule.h"

namespace tessera {
namespace {

using Kind = LrScheduleKind;
using Options = LrScheduleOptions;

using Member = std::variant<double Options::*, int64_t Options::*, std::string Options::*,
                            std::optional<double> Options::*, std::optional<int64_t> Options::*,
                            std::optional<std::string> Options::*>;

struct Key {
  const char* name;
  Member member;
  std::vector<Kind> kinds;
};

const std::vector<Key>& keys() {
  static const std::vector<Key> kKeys = {
      {"num_cycles",
       &Options::num_cycles,
       {Kind::kCosine, Kind::kCosineWithRestarts, Kind::kCosineWithMinLr,
        Kind::kCosineWarmupWithMinLr, Kind::kWarmupStableDecay}},
      {"min_lr",
       &Options::min_lr,
       {Kind::kCosineWithMinLr, Kind::kCosineWarmupWithMinLr, Kind::kReduceOnPlateau}},
      {"min_lr_rate",
       &Options::min_lr_rate,
       {Kind::kCosineWithMinLr, Kind::kCosineWarmupWithMinLr}},
      {"warmup_lr_rate", &Options::warmup_lr_rate, {Kind::kCosineWarmupWithMinLr}},
      {"lr_end", &Options::lr_end, {Kind::kPolynomial}},
      {"power", &Options::power, {Kind::kPolynomial}},
      {"timescale", &Options::timescale, {Kind::kInverseSqrt}},
      {"num_decay_steps", &Options::num_decay_steps, {Kind::kWarmupStableDecay}},
      {"num_stable_steps", &Options::num_stable_steps, {Kind::kWarmupStableDecay}},
      {"warmup_type",
       &Options::warmup_type,
       {Kind::kWarmupStableDecay, Kind::kWarmupLr, Kind::kWarmupDecayLr, Kind::kWarmupCosineLr}},
      {"decay_type", &Options::decay_type, {Kind::kWarmupStableDecay}},
      {"min_lr_ratio", &Options::min_lr_ratio, {Kind::kWarmupStableDecay}},
      {"factor", &Options::factor, {Kind::kReduceOnPlateau}},
      {"patience", &Options::patience, {Kind::kReduceOnPlateau}},
      {"threshold", &Options::threshold, {Kind::kReduceOnPlateau}},
      {"cooldown", &Options::cooldown, {Kind::kReduceOnPlateau}},
      {"eps", &Options::eps, {Kind::kReduceOnPlateau}},
      {"warmup_min_lr", &Options::warmup_min_lr, {Kind::kWarmupLr, Kind::kWarmupDecayLr}},
      {"total_num_steps", &Options::total_num_steps, {Kind::kWarmupDecayLr, Kind::kWarmupCosineLr}},
      {"warmup_min_ratio", &Options::warmup_min_ratio, {Kind::kWarmupCosineLr}},
      {"cos_min_ratio", &Options::cos_min_ratio, {Kind::kWarmupCosineLr}},
  };
  return kKeys;
}

bool reads(const Key& key, Kind kind) {
  return std::find(key.kinds.begin(), key.kinds.end(), kind) != key.kinds.end();
}

std::string keys_of(Kind kind) {
  std::string names;
  for (const Key& key : keys()) {
    if (reads(key, kind)) names += concat(names.empty() ? "" : ", ", key.name);
  }
  return names.empty() ? "it takes none" : "it takes " + names;
}

void require_curve(const std::string& type, const char* name) {
  check(type == "linear" || type == "cosine" || type == "1-sqrt", ErrorCode::kInvalidArgument,
        "warmup_stable_decay: ", name, " is '", type, "'; expected linear, cosine or 1-sqrt");
}

}  // namespace

std::vector<std::string> lr_schedule_names() {
  std::vector<std::string> names;
  for (const auto& [name, kind] : kNames<Kind>) names.emplace_back(name);
  return names;
}

LrScheduleKind parse_lr_schedule(const std::string& wanted) {
  std::string known;
  for (const auto& [name, kind] : kNames<Kind>) {
    if (wanted == name) return kind;
    known += concat(known.empty() ? "" : ", ", name);
  }
  fail(ErrorCode::kInvalidArgument, "learning-rate schedule \"", wanted,
       "\" is unknown; use one of ", known);
}

LrScheduleOptions parse_lr_schedule_options(LrScheduleKind kind, const std::string& json) {
  Options options;
  if (json.empty()) return options;
  const Json object = Json::parse(json, {.max_depth = 2, .error_code = ErrorCode::kInvalidArgument},
                                  "lr_scheduler_kwargs");
  for (const auto& [name, value] : object.members()) {
    const auto key = std::find_if(keys().begin(), keys().end(), [&, &name = name](const Key& k) {
      return k.name == name && reads(k, kind);
    });
    if (key == keys().end()) {
      value.fail(concat("schedule ", name_of(kind), " does not take this: ", keys_of(kind)));
    }
    const Json& given = value;
    std::visit(
        [&](auto member) {
          auto& target = options.*member;
          using T = std::remove_reference_t<decltype(target)>;
          if constexpr (std::is_same_v<T, std::string> ||
                        std::is_same_v<T, std::optional<std::string>>) {
            target = given.as_string();
          } else if constexpr (std::is_same_v<T, int64_t> ||
                               std::is_same_v<T, std::optional<int64_t>>) {
            target = given.as_int64(0, int64_t{1} << 40);
          } else {
            target = given.as_double();
          }
        },
        key->member);
  }
  return options;
}

std::optional<int64_t> LrSchedule::end() const {
  switch (kind) {
    case Kind::kConstant:
    case Kind::kConstantWithWarmup:
    case Kind::kInverseSqrt:
    case Kind::kReduceOnPlateau:
    case Kind::kWarmupLr:
      return std::nullopt;
    case Kind::kWarmupStableDecay:
      if (!options.num_stable_steps) break;
      return warmup_steps + *options.num_stable_steps + options.num_decay_steps.value_or(0);
    case Kind::kWarmupDecayLr:
    case Kind::kWarmupCosineLr:
      if (options.total_num_steps) return options.total_num_steps;
      break;
    default:
      break;
  }
  check(total_steps > 0, ErrorCode::kInvalidArgument, "schedule ", name_of(kind),
        ": the rate falls to an end that is not known. Set LrSchedule::total_steps or "
        "TrainerOptions::max_steps, or take the kind constant");
  return total_steps;
}

void LrSchedule::validate() const {
  const Options& o = options;
  const auto require = [&](bool condition, const auto&... parts) {
    check(condition, ErrorCode::kInvalidArgument, "schedule ", name_of(kind), ": ", parts...);
  };
  if (kind == Kind::kCosineWithMinLr || kind == Kind::kCosineWarmupWithMinLr) {
    require(o.min_lr.has_value() != o.min_lr_rate.has_value(),
            "give either min_lr or min_lr_rate in lr_scheduler_kwargs, such as "
            "{\"min_lr_rate\": 0.1}");
  }
  if (kind == Kind::kPolynomial) {
    require(o.lr_end < peak, "lr_end ", o.lr_end, " is not below the learning rate ", peak);
  }
  if (kind == Kind::kInverseSqrt) require(o.timescale != 0, "timescale is 0");
  if (kind == Kind::kReduceOnPlateau) {
    require(o.factor < 1, "factor is ", o.factor, "; it must be below 1");
  }
  if (kind == Kind::kWarmupStableDecay) {
    require(o.num_decay_steps.has_value(),
            "give num_decay_steps in lr_scheduler_kwargs, such as {\"num_decay_steps\": 100}");
    require_curve(o.warmup_type.value_or("linear"), "warmup_type");
    require_curve(o.decay_type, "decay_type");
  }
  if (kind == Kind::kWarmupLr || kind == Kind::kWarmupDecayLr || kind == Kind::kWarmupCosineLr) {
    const std::string type = o.warmup_type.value_or("log");
    require(type == "log" || type == "linear", "warmup_type is '", type,
            "'; expected log or linear");
    require(o.total_num_steps != 0, "total_num_steps is 0; leave it out for the run's own steps");
  }
}

}  // namespace tessera
