#include "lib/run/model_files.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <set>

namespace tessera::programs {
namespace {

namespace fs = std::filesystem;

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

bool is_generation_file(const std::string& name) { return name == "generation_config.json"; }

// Files of the directory whose names are wanted, in the order of their names.
void add_files(HuggingFaceWriter& writer, const std::string& directory,
               const std::function<bool(const std::string&)>& wanted) {
  if (directory.empty()) return;
  // --tokenizer may name the file itself.
  const fs::path folder =
      fs::is_directory(directory) ? fs::path(directory) : fs::path(directory).parent_path();
  std::set<std::string> paths;
  for (const auto& entry : fs::directory_iterator(folder.empty() ? "." : folder)) {
    if (entry.is_regular_file() && wanted(entry.path().filename())) {
      paths.insert(entry.path().string());
    }
  }
  for (const std::string& path : paths) writer.add_file(path);
}

}  // namespace

void add_tokenizer_files(HuggingFaceWriter& writer, const std::string& directory,
                         bool chat_template) {
  add_files(writer, directory, [&](const std::string& name) {
    return is_tokenizer_file(name) && (chat_template || !is_template_file(name));
  });
}

void add_generation_files(HuggingFaceWriter& writer, const std::string& directory) {
  add_files(writer, directory, is_generation_file);
}

}  // namespace tessera::programs
