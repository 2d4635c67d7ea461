// SPDX-License-Identifier: MIT
#include "lib/run/model_files.h"

#include <ATen/ATen.h>

#include <set>

#include "tessera/core/error.h"
#include "tessera/data/chat_template.h"
#include "tessera/data/tokenizer.h"
#include "tessera/models/language_model.h"
#include "tests/support/messages.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/support/test.hpp"

using namespace tessera;
using namespace tessera::programs;
using tessera::test::contains;
namespace fs = std::filesystem;

namespace {

std::set<std::string> copied(const std::string& tokenizer) {
  const TempDir out;
  HuggingFaceWriter writer(out.path("final"));
  writer.add("a", at::ones({1}));
  add_tokenizer_files(writer, tokenizer);
  writer.commit();
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(out.path("final"))) {
    if (entry.path().filename() != "model.safetensors") names.insert(entry.path().filename());
  }
  return names;
}

}  // namespace

TEST_CASE("model files: links out of a stranger's folder are neither read nor copied") {
  const TempDir place;
  fs::create_directory(place.path("tok"));
  const std::string folder = place.path("tok"), secret = place.write("id_rsa", "key");
  place.write("tok/tokenizer.json", "{}");
  place.write("tok/merges.txt", "a b");
  fs::create_symlink("../id_rsa", folder + "/vocab.txt");
  fs::create_symlink("merges.txt", folder + "/tokenizer_config.json");
  CHECK(copied(folder) ==
        std::set<std::string>{"merges.txt", "tokenizer.json", "tokenizer_config.json"});

  // A path named by the user may be a link.
  fs::create_directory(place.path("named"));
  fs::create_symlink("../tok/tokenizer.json", place.path("named/tokenizer.json"));
  CHECK(copied(place.path("named/tokenizer.json")) == std::set<std::string>{"tokenizer.json"});
  CHECK(copied(place.path("named")).empty());

  const auto refused = [&](const std::string& name, const auto& read) {
    fs::remove(folder + "/" + name);
    fs::create_symlink(secret, folder + "/" + name);
    CHECK_THAT(error_of(ErrorCode::kDataLoss, read),
               contains(concat(folder, "/", name, ": is a link out of the folder")));
  };
  refused("tokenizer.json", [&] { Tokenizer::load(folder); });
  refused("config.json", [&] { LanguageModel::from_directory(folder); });
  refused("generation_config.json", [&] { generation_end_tokens(folder); });
  refused("chat_template.jinja", [&] { ChatTemplate::load(folder); });
}

TEST_CASE("model files: what is no directory of a model is named") {
  const TempDir place;
  const auto refused = [&](ErrorCode code, const std::string& path) {
    return error_of(code, [&] { check_model_directory(path, "; fetch it"); });
  };
  const std::string gguf = place.write("m.gguf", "GGUF\x03");
  CHECK_THAT(refused(ErrorCode::kInvalidArgument, gguf),
             contains("m.gguf: GGUF is not read; give the model's Hugging Face directory"));
  fs::create_directory(place.path("only"));
  place.write("only/m-q4.gguf", "GGUF\x03");
  CHECK_THAT(refused(ErrorCode::kInvalidArgument, place.path("only")),
             contains("GGUF is not read"));
  CHECK_THAT(refused(ErrorCode::kDataLoss, place.write("m.safetensors", "\x08")),
             contains("is a file; expected a directory with config.json"));
  CHECK_THAT(refused(ErrorCode::kDataLoss, place.path("none")),
             contains("no such directory; expected one with config.json and model.safetensors; "
                      "fetch it"));
  place.write("only/config.json", "{}");
  check_model_directory(place.path("only"));
}

TEST_CASE("model files: a snapshot in the Hub's cache is copied as files") {
  const TempDir place;
  fs::create_directories(place.path("blobs"));
  fs::create_directories(place.path("snapshots/0123/additional_chat_templates"));
  place.write("blobs/aaaa", "{}");
  fs::create_symlink("../../blobs/aaaa", place.path("snapshots/0123/tokenizer.json"));
  fs::create_symlink("../../../blobs/aaaa",
                     place.path("snapshots/0123/additional_chat_templates/a.jinja"));
  CHECK(copied(place.path("snapshots/0123")) ==
        std::set<std::string>{"additional_chat_templates", "tokenizer.json"});
}
