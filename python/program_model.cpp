// SPDX-License-Identifier: MIT
#include "python/program_model.h"

#include <algorithm>
#include <filesystem>

#include "lib/core/hash.h"
#include "tessera/core/error.h"
#include "tessera/core/json.h"
#include "tessera/program/from_program.h"

namespace tessera::python {

bool ProgramModel::takes(const std::string& input) const {
  return std::ranges::find(inputs, input) != inputs.end();
}

std::shared_ptr<const ProgramModel> read_program(const std::string& directory, bool with_values,
                                                 std::optional<int> running_statistics_of_rank) {
  check(has_program(directory), ErrorCode::kInvalidArgument, directory,
        " holds no exported program (program.json); write one with tessera.export");
  const std::string file = (std::filesystem::path(directory) / "program.json").string();
  const Json manifest = Json::parse_file(file);
  auto model = std::make_shared<ProgramModel>();
  model->directory = directory;
  model->spec = from_program(directory, {.running_statistics_of_rank = running_statistics_of_rank});
  model->loss = manifest.at("loss").as_string();
  for (const Json& input : manifest.at("inputs").items()) {
    model->inputs.push_back(input.at("name").as_string());
  }
  for (const Json& parameter : manifest.at("parameters").items()) {
    const Json same_as = parameter.at("same_as");
    if (!same_as.is_null()) {
      model->same_as[parameter.at("name").as_string()] = same_as.as_string();
    }
  }
  for (const Json& buffer : manifest.at("buffers").items()) {
    model->buffers.push_back(buffer.at("name").as_string());
  }
  model->identity = hash_file(file).hex();
  if (with_values) {
    const auto values = std::filesystem::path(directory) / "model.safetensors";
    model->identity += " " + hash_file(values.string()).hex();
  }
  return model;
}

}  // namespace tessera::python
