// SPDX-License-Identifier: MIT
#include "lib/run/model_files.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>

#include "tessera/core/json.h"

namespace tessera::programs {
namespace {

namespace fs = std::filesystem;

constexpr const char* kGeneration = "generation_config.json";
constexpr const char* kMoreTemplates = "additional_chat_templates";

bool is_template_file(const std::string& name) { return name.starts_with("chat_template"); }

bool is_tokenizer_file(const std::string& name) {
  constexpr const char* kNames[] = {"special_tokens_map.json",
                                    "added_tokens.json",
                                    "vocab.json",
                                    "vocab.txt",
                                    "merges.txt",
                                    "spiece.model",
                                    "sentencepiece.bpe.model",
                                    "processor_config.json",
                                    "preprocessor_config.json"};
  return name.starts_with("tokenizer") || name.starts_with("tokenization_") ||
         is_template_file(name) || name == "tekken.json" ||
         std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

// --tokenizer may name the file itself.
fs::path folder_of(const std::string& directory) {
  const fs::path path(directory), folder = fs::is_directory(path) ? path : path.parent_path();
  return folder.empty() ? fs::path(".") : folder;
}

// Files of the folder whose names are wanted, in the order of their names, into one of that name.
void add_files(HuggingFaceWriter& writer, const fs::path& folder,
               const std::function<bool(const std::string&)>& wanted,
               const std::string& into = "") {
  std::set<std::string> paths;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.is_regular_file() && wanted(entry.path().filename())) {
      paths.insert(entry.path().string());
    }
  }
  for (const std::string& path : paths) writer.add_file(path, into);
}

std::optional<Json> generation_config(const std::string& directory) {
  const std::string path = directory.empty() ? "" : folder_of(directory) / kGeneration;
  if (path.empty() || !fs::exists(path)) return std::nullopt;
  return Json::parse_file(path);
}

}  // namespace

void add_tokenizer_files(HuggingFaceWriter& writer, const std::string& directory,
                         bool chat_template) {
  if (directory.empty()) return;
  add_files(writer, folder_of(directory), [&](const std::string& name) {
    return is_tokenizer_file(name) && (chat_template || !is_template_file(name));
  });
  if (chat_template) add_more_templates(writer, directory);
}

void add_more_templates(HuggingFaceWriter& writer, const std::string& directory) {
  const fs::path more = folder_of(directory) / kMoreTemplates;
  if (!fs::is_directory(more)) return;
  add_files(
      writer, more, [](const std::string& name) { return name.ends_with(".jinja"); },
      kMoreTemplates);
}

std::vector<int64_t> generation_end_tokens(const std::string& directory) {
  const auto config = generation_config(directory);
  const auto given = config ? config->find("eos_token_id") : std::nullopt;
  if (!given) return {};
  if (!given->is_array()) return {given->as_int64()};
  std::vector<int64_t> tokens;
  for (const Json& token : given->items()) tokens.push_back(token.as_int64());
  return tokens;
}

void add_generation_file(HuggingFaceWriter& writer, const std::string& directory,
                         const std::vector<int64_t>& end_tokens) {
  const auto config = generation_config(directory);
  if (end_tokens.empty()) {
    if (config) writer.add_file(folder_of(directory) / kGeneration);
    return;
  }
  JsonWriter out(/*indent=*/2);
  out.begin_object();
  if (config) {
    for (const auto& [key, value] : config->members()) {
      if (key != "eos_token_id") out.field(key, value);
    }
  }
  out.field("eos_token_id", end_tokens).end_object();
  writer.add_text(kGeneration, out.text() + "\n");
}

}  // namespace tessera::programs
