// SPDX-License-Identifier: MIT
#pragma once
// Flag values that are lists.
#include <sstream>
#include <string>
#include <vector>

namespace tessera::programs {

// "a,b" -> a and b; "" -> empty.
inline std::vector<std::string> items_of(const std::string& list, char between = ',') {
  std::vector<std::string> items;
  std::istringstream in(list);
  for (std::string item; std::getline(in, item, between);) items.push_back(item);
  return items;
}

// True for values of --report_to that are services; metrics.jsonl is forwarded to them during the
// run.
inline bool is_tracker(const std::string& sink) { return sink == "wandb" || sink == "mlflow"; }

}  // namespace tessera::programs
