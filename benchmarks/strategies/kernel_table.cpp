// SPDX-License-Identifier: MIT
#include "benchmarks/strategies/kernel_table.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

namespace tessera::bench {
namespace {

// Removes text between '<' and '>'; the first remaining '(' ends the name.
std::string without_arguments(std::string_view text) {
  std::string name;
  int depth = 0;
  for (const char c : text) {
    if (c == '<') ++depth;
    if (depth == 0 && c == '(') break;
    if (depth == 0) name += c;
    if (c == '>') --depth;
  }
  return name;
}

// Drops the return type and namespaces.
std::string_view last_word(std::string_view text) {
  const size_t space = text.find_last_of(' ');
  if (space != std::string_view::npos) text.remove_prefix(space + 1);
  const size_t colon = text.rfind("::");
  if (colon != std::string_view::npos) text.remove_prefix(colon + 2);
  return text;
}

void add(std::optional<double>& sum, double number) {
  if (number <= 0) sum.reset();
  if (sum) *sum += number;
}

}  // namespace

std::string short_name(const std::string& kernel) {
  std::string text = kernel;
  for (std::string_view unnamed : {"(anonymous namespace)::", "<unnamed>::"}) {
    for (size_t at = text.find(unnamed); at != std::string::npos; at = text.find(unnamed)) {
      text.erase(at, unnamed.size());
    }
  }
  if (text.starts_with("Mem")) return text;  // "Memcpy DtoH (Device -> Pinned)"
  const std::string head = without_arguments(text);
  const std::string name(last_word(head));
  if (name.empty()) return text;
  const size_t arguments = text.find(name + "<");
  const bool wraps = name == "Kernel" || name == "Kernel2" || name == "device_kernel";
  if (!wraps || arguments == std::string::npos) return name;
  const std::string_view first = std::string_view(text).substr(arguments + name.size() + 1);
  return std::string(last_word(first.substr(0, first.find_first_of("<>(,"))));
}

std::vector<KernelRow> kernel_rows(const std::vector<KernelCall>& calls, int steps, double step_s,
                                   const Ceilings& ceilings, double least_share) {
  std::map<std::pair<std::string, std::string>, KernelRow> groups;
  for (const KernelCall& call : calls) {
    KernelRow& row = groups[{call.name, call.operation}];
    if (row.calls == 0) {
      row.name = call.name;
      row.operation = call.operation;
      row.flops = row.bytes = 0;
    }
    ++row.calls;
    row.seconds += call.seconds;
    add(row.flops, call.work.flops);
    add(row.bytes, call.work.bytes);
  }
  std::vector<KernelRow> rows;
  KernelRow others{.name = "others"};
  for (auto& [key, row] : groups) {
    row.calls /= steps;
    row.seconds /= steps;
    row.share = step_s > 0 ? row.seconds / step_s : 0;
    if (row.share < least_share) {
      others.calls += row.calls;
      others.seconds += row.seconds;
      others.share += row.share;
      continue;
    }
    const auto consider = [&](std::optional<double>& work, double ceiling) {
      if (!work) return;
      *work /= steps;
      if (ceiling <= 0 || row.seconds <= 0) return;
      row.of_ceiling = std::max(row.of_ceiling.value_or(0), *work / row.seconds / ceiling);
    };
    consider(row.flops, ceilings.flops_per_s);
    consider(row.bytes, ceilings.bytes_per_s);
    rows.push_back(row);
  }
  std::ranges::stable_sort(rows, std::ranges::greater{}, &KernelRow::seconds);
  if (others.calls > 0) rows.push_back(others);
  return rows;
}

}  // namespace tessera::bench
