// SPDX-License-Identifier: MIT
#include "lib/compare/work.h"

#include <algorithm>

#include "lib/settings/table.h"
#include "tessera/core/error.h"
#include "tessera/core/json.h"

namespace tessera::programs {
namespace {

std::string shown(const Work& work, const std::string& name) {
  const auto found = work.find(name);
  return found == work.end() || found->second.empty() ? "none" : found->second;
}

}  // namespace

Work work_of(const FlagSet& flags) {
  Work work;
  const Json config = Json::parse(flags.config_json(/*indent=*/0), {}, "flags");
  for (const auto& [name, entry] : config.members()) {
    const settings::Setting* setting = settings::find(name);
    if (setting != nullptr && setting->changes != settings::Changes::kNumbers) continue;
    const Json value = entry.at("value");
    work[name] = value.is_string() ? value.as_string() : value.dump();
  }
  return work;
}

std::string difference(const Work& work, const Work& other) {
  std::string text;
  for (const auto& [name, value] : work) {
    if (shown(other, name) == shown(work, name)) continue;
    text += concat(text.empty() ? "" : "; ", name, " ", shown(work, name), ", not ",
                   shown(other, name));
  }
  return text;
}

}  // namespace tessera::programs
