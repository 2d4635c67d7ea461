// SPDX-License-Identifier: MIT
#include "lib/data/template_files.h"

#include <filesystem>

#include "lib/core/file.h"
#include "lib/core/folder_file.h"
#include "tessera/core/json.h"

namespace tessera {
namespace {

std::optional<Json> file_of(const std::string& directory, const char* name) {
  const std::string path = file_in(directory, name);
  if (!std::filesystem::exists(path)) return std::nullopt;
  return Json::parse_file(path);
}

}  // namespace

Variables special_tokens(const std::string& directory) {
  Variables tokens;
  const std::optional<Json> files[] = {file_of(directory, "tokenizer_config.json"),
                                       file_of(directory, "special_tokens_map.json")};
  for (const char* kind : {"bos", "eos", "unk", "sep", "pad", "cls", "mask"}) {
    const std::string name = std::string(kind) + "_token";
    for (const auto& file : files) {
      const auto token = file ? file->find(name) : std::nullopt;
      if (!token) continue;
      tokens.emplace_back(
          name, token->is_object() ? token->at("content").as_string() : token->as_string());
      break;
    }
  }
  return tokens;
}

NamedTemplates templates_of(const std::string& directory) {
  NamedTemplates templates;
  const auto add = [&](const std::string& name, const std::string& text,
                       const std::string& origin) { templates.emplace_back(name, text, origin); };
  const std::string file = file_in(directory, "chat_template.jinja");
  if (std::filesystem::exists(file)) add("default", read_file(file, kMaxTemplateBytes), file);
  const std::filesystem::path more = directory + "/additional_chat_templates";
  if (std::filesystem::is_directory(more)) {
    for (const auto& entry : std::filesystem::directory_iterator(more)) {
      if (entry.path().extension() != ".jinja") continue;
      const std::string path = file_in(directory, more.filename() / entry.path().filename());
      add(entry.path().stem().string(), read_file(path, kMaxTemplateBytes), path);
    }
  }
  const auto config = file_of(directory, "tokenizer_config.json");
  const auto written = config ? config->find("chat_template") : std::nullopt;
  if (!templates.empty() || !written) return templates;
  const std::string origin = config->origin() + ": chat_template";
  if (!written->is_array()) {
    add("default", written->as_string(), origin);
    return templates;
  }
  for (const Json& one : written->items()) {
    const std::string name = one.at("name").as_string();
    add(name, one.at("template").as_string(), origin + " \"" + name + "\"");
  }
  return templates;
}

}  // namespace tessera
