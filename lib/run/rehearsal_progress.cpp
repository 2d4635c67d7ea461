// SPDX-License-Identifier: MIT
#include "lib/run/rehearsal_progress.h"

#include <cmath>
#include <fstream>

namespace tessera::programs {

RehearsalProgress rehearsal_progress(const std::string& output_dir) {
  RehearsalProgress progress;
  std::ifstream file(output_dir + "/metrics.jsonl");
  for (std::string line; std::getline(file, line) && !file.eof();) {
    const Json event = Json::parse(line, {}, output_dir + "/metrics.jsonl");
    const std::string kind = event.at("event").as_string();
    if (kind == "run_start") progress = {};
    if (kind == "step") {
      const auto loss = event.find("loss");
      progress.steps[event.at("step").as_int64()] = {loss ? loss->as_double() : std::nan(""),
                                                     event.at("step_time_s").as_double()};
    }
    const bool restored = kind == "checkpoint" && event.find("restored_from");
    if (kind == "checkpoint" && !restored && !progress.saved) progress.saved = event;
  }
  return progress;
}

}  // namespace tessera::programs
