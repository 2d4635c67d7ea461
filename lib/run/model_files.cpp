// SPDX-License-Identifier: MIT
#include "lib/run/model_files.h"

#include <algorithm>
#include <filesystem>
#include <optional>

#include "lib/core/folder_file.h"
#include "lib/data/foreign_input.h"
#include "tessera/core/error.h"
#include "tessera/core/json.h"
#include "tessera/core/log.h"

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

void warn_of(const std::vector<std::string>& skipped) {
  for (const std::string& text : skipped) log(LogLevel::kWarning, "not copied: ", text);
}

std::optional<Json> generation_config(const std::string& directory) {
  if (directory.empty()) return std::nullopt;
  const std::string path = file_in(folder_of(directory), kGeneration);
  if (!fs::exists(path)) return std::nullopt;
  return Json::parse_file(path);
}

}  // namespace

void check_model_directory(const std::string& path, const std::string& remedy) {
  if (fs::is_regular_file(path)) refuse_foreign_file(path);
  check(!fs::is_regular_file(path), ErrorCode::kDataLoss, "--model ", path,
        ": is a file; expected a directory with config.json and model.safetensors");
  check(fs::is_directory(path), ErrorCode::kDataLoss, "--model ", path,
        ": no such directory; expected one with config.json and model.safetensors", remedy);
  if (fs::exists(fs::path(path) / "config.json")) return;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(path, error)) {
    if (entry.path().extension() == ".gguf") refuse_foreign_file(entry.path().string());
  }
}

FilesToCopy files_to_copy(const std::string& folder,
                          const std::function<bool(const std::string& name)>& wanted,
                          const std::string& home) {
  FilesToCopy files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string path = entry.path();
    if (!entry.is_regular_file() || !wanted(entry.path().filename())) continue;
    const std::string target = leads_out_of(home.empty() ? folder : home, path);
    if (target.empty()) {
      files.paths.push_back(path);
    } else {
      files.skipped.push_back(concat(path, " is a link out of the folder, to ", target));
    }
  }
  std::ranges::sort(files.paths);
  std::ranges::sort(files.skipped);
  return files;
}

void add_tokenizer_files(HuggingFaceWriter& writer, const std::string& directory,
                         bool chat_template) {
  if (directory.empty()) return;
  const auto wanted = [&](const std::string& name) {
    return is_tokenizer_file(name) && (chat_template || !is_template_file(name));
  };
  // A file named by the user may be a link.
  const std::string named =
      fs::is_directory(directory) ? "" : fs::path(directory).filename().string();
  if (wanted(named)) writer.add_file(directory);
  const FilesToCopy files = files_to_copy(
      folder_of(directory), [&](const std::string& name) { return name != named && wanted(name); });
  for (const std::string& path : files.paths) writer.add_file(path);
  warn_of(files.skipped);
  if (chat_template) warn_of(add_more_templates(writer, directory));
}

std::vector<std::string> add_more_templates(HuggingFaceWriter& writer,
                                            const std::string& directory) {
  const fs::path home = folder_of(directory), more = home / kMoreTemplates;
  if (!fs::is_directory(more)) return {};
  const FilesToCopy files = files_to_copy(
      more, [](const std::string& name) { return name.ends_with(".jinja"); }, home);
  for (const std::string& path : files.paths) writer.add_file(path, kMoreTemplates);
  return files.skipped;
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
