// SPDX-License-Identifier: MIT
#pragma once
// Values of flags that are lists.
#include <sstream>
#include <string>
#include <vector>

namespace tessera::programs {

// "a,b" -> a and b; "" -> nothing.
inline std::vector<std::string> items_of(const std::string& list, char between = ',') {
  std::vector<std::string> items;
  std::istringstream in(list);
  for (std::string item; std::getline(in, item, between);) items.push_back(item);
  return items;
}

// Values of --report_to that are services, to which metrics.jsonl is sent while a run writes it.
inline bool is_tracker(const std::string& sink) { return sink == "wandb" || sink == "mlflow"; }

}  // namespace tessera::programs
