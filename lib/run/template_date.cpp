// SPDX-License-Identifier: MIT
#include "lib/run/template_date.h"

#include <algorithm>
#include <filesystem>

#include "lib/run/run_state.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/core/error.h"

namespace tessera::programs {
namespace {

std::string date_of_checkpoint(const TrainOptions& options) {
  const std::string& from = options.run.resume_from_checkpoint;
  if (from == "none") return "";
  const bool is_checkpoint = from != "auto" && std::filesystem::exists(from + "/manifest.json");
  try {
    const std::string path =
        is_checkpoint ? from
                      : find_checkpoint(from == "auto" ? options.output.output_dir : from).path;
    if (path.empty()) return "";
    const DataIdentity data = RunState::from_json(Checkpoint(path).run(), path).of;
    const auto date = std::ranges::find(data, kTemplateDate, &DataIdentity::value_type::first);
    return date == data.end() ? "" : date->second;
  } catch (const Error&) {  // reported when the run resumes from it
    return "";
  }
}

}  // namespace

std::string template_date(const TrainOptions& options) {
  const std::string& given = options.data.template_date;
  return given.empty() ? date_of_checkpoint(options) : given;
}

}  // namespace tessera::programs
