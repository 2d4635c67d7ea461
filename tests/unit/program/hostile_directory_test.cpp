// SPDX-License-Identifier: MIT
// Directories of programs whose files do not belong together, or end too early.
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lib/core/file.h"
#include "tests/support/ranks.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/support/test.hpp"
#include "tests/unit/program/committed.h"

using namespace tessera;
using namespace tessera::test;

namespace {

// A change of one file of the committed decoder.
struct Broken {
  const char* what;
  const char* file;
  std::function<std::string(std::string)> change;
  const char* reason;
};

std::function<std::string(std::string)> replaced(std::string from, std::string to) {
  return [from = std::move(from), to = std::move(to)](std::string text) {
    const size_t at = text.find(from);
    INFO(from);
    REQUIRE(at != std::string::npos);
    return text.replace(at, from.size(), to);
  };
}

std::function<std::string(std::string)> shorter(size_t bytes) {
  return [bytes](const std::string& text) { return text.substr(0, text.size() - bytes); };
}

constexpr const char* kManifest = "program.json";
constexpr const char* kProgram = "program.float32.train.json";
constexpr const char* kWeights = "model.safetensors";
constexpr const char* kConstants = "program.constants.safetensors";

std::vector<Broken> broken_files() {
  return {
      {"a program that is cut off", kProgram, shorter(1000), kProgram},
      {"a manifest that is cut off", kManifest, shorter(100), kManifest},
      {"constants that are cut off", kConstants, shorter(4), kConstants},
      {"constants without a header", kConstants, [](std::string) { return "{}"; }, kConstants},
      {"a header of many terabytes", kConstants,
       [](const std::string& text) {
         return std::string("\xff\xff\xff\xff\xff\x0f\0\0", 8) + text.substr(8);
       },
       kConstants},
      {"weights that are cut off", kWeights, shorter(64), kWeights},
      {"another format", kManifest, replaced("tessera.program", "tessera.problem"), "format"},
      {"a program elsewhere", kManifest, replaced(kProgram, "../program.json"), "no file of"},
      {"a file that is not there", kManifest, replaced(kProgram, "absent.json"), "absent.json"},
      {"weights of another shape", kWeights, replaced("[96,32]", "[32,96]"), "shape"},
      {"weights of integers", kWeights, replaced("\"F32\"", "\"I32\""), "neither of a floating"},
      {"a weight that is not there", kWeights, replaced("embed_tokens", "embed_tocens"), "embed"},
      {"a parameter of another shape", kManifest,
       replaced("\"shape\": [96, 32]", "\"shape\": [95, 32]"), "shape"},
  };
}

std::string refusal_of(const std::string& directory) {
  try {
    LoadedModel loaded(directory);
  } catch (const Error& error) {
    CHECK((error.code() == ErrorCode::kDataLoss || error.code() == ErrorCode::kInvalidArgument));
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("directories of programs whose files are broken are refused with the file") {
  for (const Broken& broken : broken_files()) {
    INFO(broken.what);
    const TempDir directory;
    const std::string root = directory.path("");
    for (const auto& entry : std::filesystem::directory_iterator(program_directory("llama"))) {
      std::filesystem::copy(entry.path(), root + entry.path().filename().string());
    }
    CHECK(refusal_of(root).empty());
    directory.write(broken.file, broken.change(read_file(root + broken.file)));
    const std::string message = refusal_of(root);
    INFO(message);
    CHECK_THAT(message, contains(broken.reason));
    CHECK_THAT(message, contains(".json") || contains(".safetensors"));
  }
}
