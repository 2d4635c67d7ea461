// SPDX-License-Identifier: MIT
#pragma once
// Observations of a DeepSpeedJob's run: metrics, bytes in memory and sent.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tessera/core/json.h"
#include "tests/support/test.hpp"

namespace tessera::programs {

class Seen {
 public:
  explicit Seen(const std::string& directory)
      : directory(directory), config(Json::parse_file(directory + "/config.json")) {
    std::ifstream events(directory + "/metrics.jsonl");
    for (std::string line; std::getline(events, line);) {
      const Json event = Json::parse(line, {}, directory);
      const std::string name = event.at("event").as_string();
      if (name == "run_start") start = event;
      if (name == "step") steps.push_back(event);
      if (name == "run_end") end = event;
    }
  }
  double step(size_t number, const char* key) const {
    return steps.at(number - 1).at(key).as_double();
  }
  double bytes(const char* what) const { return end.at(std::string(what) + "_bytes").as_double(); }
  const Json value(const char* flag) const { return config.at(flag).at("value"); }
  double number(const char* flag) const { return value(flag).as_double(); }
  std::string text(const char* flag) const { return value(flag).as_string(); }

  const std::string directory;
  Json config, start = Json::parse("{}", {}, "none"), end = start;
  std::vector<Json> steps;
};

// The first step's rate; during warm-up it is the least.
inline double first_rate(const Seen& run) {
  const std::string kind = run.text("lr_scheduler_type"), kwargs = run.text("lr_scheduler_kwargs");
  const double peak = run.number("learning_rate");
  const Json options = Json::parse(kwargs.empty() ? "{}" : kwargs, {}, "kwargs");
  if (kind == "WarmupCosineLR") return 0;
  if (kind.starts_with("Warmup")) return options.get("warmup_min_lr", 0.0);
  return peak;  // linear, here without warm-up
}

// Checks two steps of a model of 7,936 elements plus padding, for any layout.
inline void check_seen(const Seen& run) {
  REQUIRE(run.steps.size() == 2);
  const double dp = run.start.at("dp").as_double(), tp = run.start.at("tp").as_double(),
               pp = run.start.at("pp").as_double();
  const bool half = run.text("dtype") != "fp32";
  for (size_t s = 1; s <= 2; ++s) {
    CHECK(run.step(s, "samples") == run.number("per_device_train_batch_size") *
                                        run.number("gradient_accumulation_steps") * dp);
    const double most = run.number("max_grad_norm"), norm = run.step(s, "grad_norm");
    CHECK(run.step(s, "clip_coefficient") ==
          Approx(most == 0 ? 1 : std::min(1.0, most / norm)).epsilon(1e-3));
    const Json scale = run.steps[s - 1].at("loss_scale");
    const double fixed = run.number("loss_scale");
    CHECK(scale.is_null() == (run.text("dtype") != "fp16"));
    if (!scale.is_null()) {
      CHECK(scale.as_double() == (fixed > 0 ? fixed : run.number("initial_loss_scale")));
    }
  }
  CHECK(run.step(1, "learning_rate") == Approx(first_rate(run)));
  CHECK(std::filesystem::exists(run.directory + "/tensorboard") ==
        (run.text("report_to").find("tensorboard") != std::string::npos));

  const std::string strategy = run.text("strategy"), offload = run.text("offload");
  const double model = 7936 / (tp * pp),
               stage = strategy.starts_with("zero") ? strategy[4] - '0' : 0;
  const auto about = [&](double elements, double size) {  // shards and padding are uneven
    return Approx(elements * size).epsilon(tp * pp > 1 ? 0.5 : 0.02);
  };
  const double size = half ? 2 : 4, shards = stage >= 1 ? dp : 1;
  const double gradient_size = run.text("gradient_dtype") == "fp32" ? 4 : size;
  CHECK(run.bytes("gradient") == about(model / (stage >= 2 ? dp : 1), gradient_size));
  // In bf16 the parameter is half of the master.
  const double state = !half ? 8 : run.text("dtype") == "bf16" ? 10 : 12;
  CHECK(run.bytes("optimizer") == (offload == "none" ? about(model / shards, state) : Approx(0)));
  CHECK((run.bytes("host") > 0) == (offload != "none"));
  const double parameters = run.bytes("parameter");
  if (stage < 3) {
    CHECK(parameters == about(model, size));
  } else {  // every parameter here is below the default threshold and stays unsharded
    const bool whole = run.number("persistence_threshold") >= 1000;
    CHECK(whole == (parameters >= 0.98 * model * size));
  }
}

}  // namespace tessera::programs
