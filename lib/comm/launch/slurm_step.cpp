// SPDX-License-Identifier: MIT
#include "lib/comm/launch/slurm_step.h"

#include <algorithm>
#include <charconv>

#include "lib/core/hash.h"

namespace tessera::slurm {
namespace {

constexpr int kFirstPort = 20000, kPorts = 12000, kAttempts = 8;

// Removes a number from the front of the text; -1 when there is none.
int take_number(std::string_view& text) {
  int value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return -1;
  text.remove_prefix(end - text.data());
  return value;
}

bool take(std::string_view& text, std::string_view expected) {
  if (!text.starts_with(expected)) return false;
  text.remove_prefix(expected.size());
  return true;
}

}  // namespace

std::string first_host(const std::string& node_list) {
  const size_t end = node_list.find_first_of(",[");
  std::string host = node_list.substr(0, end);
  if (end == std::string::npos || node_list[end] == ',') return host;
  const size_t number_end = node_list.find_first_of("-,]", end);
  host += node_list.substr(end + 1, number_end - end - 1);
  const size_t close = node_list.find(']', end);
  if (close == std::string::npos) return host;
  return host + first_host(node_list.substr(close + 1));  // "rack[1-2]node[1-9]", or a suffix
}

int tasks_on_node(const std::string& tasks_per_node, int node) {
  std::string_view text = tasks_per_node;
  while (!text.empty()) {
    const int tasks = take_number(text);
    int nodes = 1;
    if (take(text, "(x")) {
      nodes = take_number(text);
      if (!take(text, ")")) return 0;
    }
    if (tasks < 1 || nodes < 1) return 0;
    if (node < nodes) return tasks;
    node -= nodes;
    if (!take(text, ",")) return 0;
  }
  return 0;
}

std::vector<int> ports_of(const std::string& job_and_step) {
  std::vector<int> ports;
  for (uint64_t attempt = 0; ports.size() < kAttempts; ++attempt) {
    const uint64_t hash = xxh3_64(job_and_step.data(), job_and_step.size(), attempt);
    const int port = kFirstPort + static_cast<int>(hash % kPorts);
    if (std::find(ports.begin(), ports.end(), port) == ports.end()) ports.push_back(port);
  }
  return ports;
}

}  // namespace tessera::slurm
