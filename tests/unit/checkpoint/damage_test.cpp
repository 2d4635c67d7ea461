// SPDX-License-Identifier: MIT
// Files modified or truncated after writing.
#include "tests/support/messages.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/support/test.hpp"
#include "tests/unit/checkpoint/states.h"

using namespace tessera;
using namespace tessera::test;
using tessera::test::contains;

namespace {

Model model() { return {{"large", {40, 300}}, {"h.0.bias", {18}}, {"scale", {}}}; }

void save(const std::string& directory, int64_t step) {
  run_ranks(2, [&](Communicator& world) {
    save_checkpoint(world, directory, step, state_of(model(), world.rank(), 2, 1, 3), "{}");
  });
}

std::vector<std::string> files_of(const std::string& checkpoint) {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(checkpoint)) {
    files.push_back(entry.path());
  }
  std::ranges::sort(files);
  return files;
}

// Error of opening and loading; "no error" if both succeed.
std::string load_error(const std::string& path) {
  return error_of(ErrorCode::kDataLoss, [&] { require_loads(path, 1, model()); });
}

// True if the message names a tensor with this byte.
bool names_tensor_at(const std::string& message, const Manifest& manifest, const std::string& file,
                     int64_t byte) {
  for (const auto& [key, tensor] : manifest.tensors) {
    const auto width = static_cast<int64_t>(c10::elementSize(tensor.dtype));
    for (const SavedPiece& piece : tensor.pieces) {
      const int64_t end = piece.offset + piece.slice.numel() * width;
      if (file.ends_with("/" + manifest.files[piece.file].name) && byte >= piece.offset &&
          byte < end) {
        return message.find(key.title()) != std::string::npos;
      }
    }
  }
  return message.find("header") != std::string::npos;
}

}  // namespace

TEST_CASE("every one of 1,000 flipped bits is noticed, and the tensor named") {
  const TempDir folder;
  save(folder.path("run"), 1);
  const std::string path = folder.path("run/checkpoint-1");
  const auto files = files_of(path);
  REQUIRE(files.size() == 3);
  const Manifest manifest = Checkpoint(path).manifest();
  REQUIRE(load_error(path) == "no error");
  std::mt19937_64 random(2);
  for (int round = 0; round < 1000; ++round) {
    const std::string& file = files[random() % files.size()];
    const std::string good = bytes_of(file);
    std::string bad = good;
    const size_t byte = random() % bad.size();
    bad[byte] = static_cast<char>(bad[byte] ^ (1 << random() % 8));
    overwrite(file, bad);
    const std::string said = load_error(path);
    INFO(file << " byte " << byte << ": " << said);
    REQUIRE_THAT(said, contains(path));
    if (!file.ends_with("manifest.json")) {
      REQUIRE_THAT(said, contains(file + ": byte "));
      REQUIRE(names_tensor_at(said, manifest, file, static_cast<int64_t>(byte)));
      REQUIRE(Checkpoint(path).verify().size() >= 1);
    }
    overwrite(file, good);
  }
  REQUIRE(load_error(path) == "no error");
}

TEST_CASE("a file cut anywhere is noticed, and the checkpoint before it is found") {
  const TempDir folder;
  save(folder.path("run"), 1);
  save(folder.path("run"), 2);
  const std::string path = folder.path("run/checkpoint-2");
  int cuts = 0;
  for (const std::string& file : files_of(path)) {
    const std::string good = bytes_of(file);
    const size_t stride = file.ends_with("manifest.json") ? 64 : 4096;
    for (size_t size = 0; size < good.size(); size += stride, ++cuts) {
      overwrite(file, good.substr(0, size));
      INFO(file << " cut to " << size);
      REQUIRE_THAT(load_error(path), contains(file));
      const FoundCheckpoint found = find_checkpoint(folder.path("run"));
      REQUIRE(found.path == folder.path("run/checkpoint-1"));
      REQUIRE(found.skipped.size() == 1);
      REQUIRE_THAT(found.skipped[0], contains(file));
    }
    overwrite(file, good + "x");
    REQUIRE_THAT(load_error(path), contains(file));
    overwrite(file, good);
  }
  CHECK(cuts > 60);
}

TEST_CASE("what is no checkpoint is skipped with the reason, or refused by name") {
  const TempDir folder;
  namespace fs = std::filesystem;
  const std::string run = folder.path("run");
  CHECK(find_checkpoint(run).path == "");
  save(run, 4);
  save(run, 9);
  CHECK(find_checkpoint(run).path == run + "/checkpoint-9");
  CHECK(find_checkpoint(run, 9).path == run + "/checkpoint-4");
  CHECK(find_checkpoint(run, 4).path == "");
  fs::create_directories(run + "/checkpoint-12.tmp");
  fs::create_directories(run + "/checkpoint-10");  // as left by another program
  fs::create_directories(run + "/checkpoint-011");
  fs::create_directories(run + "/checkpoint-99.old");
  const FoundCheckpoint found = find_checkpoint(run);
  CHECK(found.path == run + "/checkpoint-9");
  REQUIRE(found.skipped.size() == 2);
  CHECK_THAT(found.skipped[0], contains("checkpoint-12.tmp: was not finished"));
  CHECK_THAT(found.skipped[1], contains("checkpoint-10: not a complete checkpoint"));

  const std::string path = run + "/checkpoint-9";
  CHECK_THAT(error_of([&] { Checkpoint(run + "/checkpoint-7"); }), contains("does not exist"));
  fs::rename(path + "/rank-1.safetensors", path + "/away");
  CHECK_THAT(load_error(path), contains("rank-1.safetensors: is missing"));
  fs::create_symlink(path + "/away", path + "/rank-1.safetensors");
  CHECK_THAT(load_error(path), contains("rank-1.safetensors: is missing, or no regular file"));
  fs::remove(path + "/rank-1.safetensors");
  fs::rename(path + "/away", path + "/rank-1.safetensors");
  fs::copy(path + "/rank-1.safetensors", path + "/rank-2.safetensors");
  CHECK_THAT(load_error(path), contains("rank-2.safetensors: does not belong to this checkpoint"));
}
