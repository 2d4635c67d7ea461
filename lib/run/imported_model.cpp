// SPDX-License-Identifier: MIT
#include "lib/run/imported_model.h"

#include <algorithm>
#include <filesystem>
#include <optional>

#include "lib/core/folder_file.h"
#include "lib/core/hash.h"
#include "lib/run/model_files.h"
#include "tessera/core/error.h"
#include "tessera/core/json.h"

namespace tessera::programs {
namespace {

// Models that see pictures, too, keep what is of the text apart.
Json text_part(const Json& config) {
  const auto text = config.find("text_config");
  return text ? *text : config;
}

// The first of several, where there are any.
std::optional<int64_t> token_of(const Json& config, const char* name) {
  const auto given = config.find(name);
  if (!given) return std::nullopt;
  if (!given->is_array()) return given->as_int64();
  if (given->size() == 0) return std::nullopt;
  return given->at(size_t{0}).as_int64();
}

std::vector<std::string> labels_of(const Json& config) {
  const auto given = config.find("id2label");
  if (!given) return {};
  std::vector<std::string> labels;
  for (size_t i = 0; i < given->size(); ++i) {
    labels.push_back(given->at(std::to_string(i)).as_string());
  }
  return labels;
}

bool is_program_file(const std::string& name) {
  return name == "config.json" || (name.starts_with("program.") &&
                                   (name.ends_with(".json") || name.ends_with(".safetensors")));
}

}  // namespace

DecoderConfig described_by(const std::string& directory) {
  const Json config = Json::parse_file(file_in(directory, "config.json"));
  const Json text = text_part(config);
  DecoderConfig described;
  described.model_type = config.get("model_type", "");
  described.name = Json::parse_file(file_in(directory, "program.json")).at("name").as_string();
  described.vocabulary = text.get("vocab_size", int64_t{0});
  described.hidden = text.get("hidden_size", described.hidden);
  described.layers = text.get("num_hidden_layers", described.layers);
  described.heads = std::max<int64_t>(text.get("num_attention_heads", described.heads), 1);
  described.max_positions = text.get("max_position_embeddings", int64_t{0});
  described.bos_token = token_of(text, "bos_token_id");
  described.eos_token = token_of(text, "eos_token_id");
  described.pad_token = token_of(text, "pad_token_id");
  described.labels = labels_of(config);
  return described;
}

ModelSpec make_imported(const std::string& directory, ModelHead head, int64_t num_labels,
                        const ProgramOptions& options) {
  const Json manifest = Json::parse_file(file_in(directory, "program.json"));
  const std::string loss = manifest.at("loss").as_string();
  const std::string wanted = head == ModelHead::kCausal ? "causal" : "classification";
  check(loss == wanted, ErrorCode::kInvalidArgument, "--model ", directory,
        ": was exported for the loss \"", loss, "\", but this program trains \"", wanted,
        "\"; export it with --task ", wanted);
  const auto classes =
      static_cast<int64_t>(labels_of(Json::parse_file(file_in(directory, "config.json"))).size());
  check(head == ModelHead::kCausal || classes == 0 || num_labels <= classes,
        ErrorCode::kInvalidArgument, "--model ", directory, ": was exported for ", classes,
        " classes, but the rows have ", num_labels);
  return from_program(directory, options);
}

std::string programs_hash(const std::string& directory) {
  if (directory.empty()) return "";
  std::string hashes;
  // Links are followed wherever they lead, as the loader does.
  for (const std::string& path : files_to_copy(directory, is_program_file, "/").paths) {
    hashes += concat(hashes.empty() ? "" : " ", hash_file(path).hex());
  }
  return hashes;
}

void add_program_files(HuggingFaceWriter& writer, const std::string& directory) {
  const FilesToCopy files = files_to_copy(directory, is_program_file);
  for (const std::string& path : files.paths) writer.add_file(path);
}

}  // namespace tessera::programs
