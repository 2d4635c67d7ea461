// SPDX-License-Identifier: MIT
#include "tessera/checkpoint/manifest.h"

#include <algorithm>
#include <functional>

#include "lib/checkpoint/manifest_seal.h"
#include "tests/support/messages.hpp"
#include "tests/support/mutate.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/support/test.hpp"
#include "tests/unit/checkpoint/states.h"

using namespace tessera;
using namespace tessera::test;
using tessera::test::contains;

namespace {

// Two pieces of a sliced tensor and a scalar, in two files.
Manifest example() {
  Manifest manifest;
  manifest.step = 4;
  manifest.block_bytes = 64;
  manifest.libraries = {{"torch", "2.11.0"}};
  manifest.run = R"({"seed":1.5,"name":"\u00e9"})";
  manifest.files = {{"rank-0.safetensors", 4096 + 96, 4096, 7},
                    {"rank-1.safetensors", 4192, 4096, 8}};
  SavedTensor& weight = manifest.tensors[{"w", "parameter"}];
  weight.shape = {4, 12};
  for (int64_t rank : {0, 1}) {
    const TensorSlice slice{.shape = {4, 12},
                            .dim = 1,
                            .local_size = 6,
                            .intervals = {{0, 3 * rank, 3}, {3, 6 + 3 * rank, 3}},
                            .end = 24};
    weight.pieces.push_back({static_cast<size_t>(rank), 4096, slice, {1, ~uint64_t{0}}});
  }
  return manifest;
}

std::string parse_error(const std::string& text) {
  return error_of(ErrorCode::kDataLoss, [&] { Manifest::parse(text, "manifest.json"); });
}

// The text after an edit with a corrected seal.
std::string edited(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  REQUIRE(at != text.npos);
  text.replace(at, from.size(), to);
  return sealed(text.substr(0, text.rfind(",\"xxh3\":")) + "}");
}

}  // namespace

TEST_CASE("a manifest reads back as it was written") {
  const std::string text = example().to_json();
  const Manifest manifest = Manifest::parse(text, "manifest.json");
  CHECK(manifest.to_json() == text);
  CHECK(manifest.step == 4);
  CHECK(manifest.total_bytes() == 2 * 4192);
  const SavedTensor& weight = manifest.tensors.at({"w", "parameter"});
  CHECK(weight.pieces[1].slice == example().tensors.at({"w", "parameter"}).pieces[1].slice);
  CHECK(weight.pieces[1].hashes[1] == ~uint64_t{0});
}

TEST_CASE("a manifest that says what cannot be is refused with the place") {
  const std::string good = example().to_json();
  const auto error = [&](const char* from, const char* to) {
    return parse_error(edited(good, from, to));
  };
  REQUIRE(error("\"step\":4", "\"step\":5") == "no error");
  CHECK_THAT(error("tessera.checkpoint", "other"), contains("not the manifest"));
  CHECK_THAT(error("\"format_version\":1", "\"format_version\":2"),
             contains("written by a newer tessera: this one reads format versions up to 1"));
  CHECK_THAT(error("\"step\":4", "\"step\":-4"), contains("step"));
  CHECK_THAT(error("\"step\":4", "\"step\":4.0"), contains("integer"));
  for (const char* name :
       {"../rank-0.safetensors", "/rank-0.safetensors", "rank-0.pt", "rank-a/b.safetensors"}) {
    CHECK_THAT(error("rank-0.safetensors", name), contains("lie in the directory"));
  }
  CHECK_THAT(error("rank-1.safetensors", "rank-0.safetensors"), contains("twice"));
  CHECK_THAT(error("\"bytes\":4192", "\"bytes\":4200"),
             contains("byte 4192 of rank-0.safetensors belongs to no piece"));
  CHECK_THAT(error("\"bytes\":4192", "\"bytes\":4191"), contains("reaches past the end"));
  CHECK_THAT(error("\"header_bytes\":4096", "\"header_bytes\":4088"), contains("byte 4088 of "));
  CHECK_THAT(error("\"file\":1", "\"file\":0"), contains("belongs to two pieces"));
  CHECK_THAT(error("\"file\":1", "\"file\":2"), contains("file"));
  CHECK_THAT(error("[0,3,3]", "[0,0,3]"), contains("w (parameter)") && contains("two pieces"));
  CHECK_THAT(error("[3,9,3]", "[3,10,3]"), contains("leaves the tensor"));
  CHECK_THAT(error("[3,9,3]", "[3,9]"), contains("expected [local, global, size]"));
  CHECK_THAT(error("[[0,3,3],[3,9,3]]", "[[0,3,3]]"), contains("are in no piece"));
  CHECK_THAT(error("\"shape\":[4,12]", "\"shape\":[4,11]"), contains("tensors[0]"));
  CHECK_THAT(error("\"shape\":[4,12]", "\"shape\":[4,9223372036854775807]"), contains("overflows"));
  CHECK_THAT(error("\"dtype\":\"F32\"", "\"dtype\":\"F31\""), contains("unknown dtype"));
  CHECK_THAT(error("\"dtype\":\"F32\"", "\"dtype\":\"F64\""), contains("past the end"));
  CHECK_THAT(error("\"0000000000000001\",", ""), contains("1 hashes, its 96 bytes need 2"));
  CHECK_THAT(error("\"0000000000000001\"", "\"000000000000000g\""), contains("hexadecimal"));
  CHECK_THAT(error("\"block_bytes\":64", "\"block_bytes\":0"), contains("block_bytes"));
  CHECK_THAT(error("\"run\":{\"seed\":1.5,\"name\":\"é\"}", "\"run\":3"), contains("run"));
}

TEST_CASE("no bytes make the reader of manifests crash, or accept pieces outside their files") {
  const std::string seed = example().to_json();
  const std::string body = seed.substr(0, seed.rfind(",\"xxh3\":"));
  const std::string_view alphabet = "{}[]:,\"\\0123456789-eE.u";
  std::mt19937_64 random(9);
  int accepted = 0, refused = 0;
  for (int round = 0; round < 20'000; ++round) {
    const std::string text = sealed(mutated(body, alphabet, random) + "}");
    try {
      const Manifest manifest = Manifest::parse(text, "x");
      for (const auto& [key, tensor] : manifest.tensors) {
        for (const SavedPiece& piece : tensor.pieces) {
          const SavedFile& file = manifest.files.at(piece.file);
          const auto width = static_cast<int64_t>(c10::elementSize(tensor.dtype));
          REQUIRE(piece.offset >= file.header_bytes);
          REQUIRE(piece.offset + piece.slice.numel() * width <= file.bytes);
        }
      }
      ++accepted;
    } catch (const Error& error) {
      REQUIRE(error.code() == ErrorCode::kDataLoss);
      ++refused;
    }
  }
  CHECK(accepted > 100);
  CHECK(refused > 10'000);
}

TEST_CASE("the checkpoint of format version 1 that was kept loads") {
  const Checkpoint checkpoint(TESSERA_CHECKPOINT_V1);
  CHECK(checkpoint.verify() == std::vector<std::string>{});
  CHECK(checkpoint.manifest().step == 6);
  CHECK(checkpoint.run() == R"({"kept":"for ever"})");
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const auto expected = state_of(small_model(), 0, 1, 6, seed);
    const auto loaded = filled(expected, -1);
    const LoadReport report = checkpoint.load(loaded);
    require_equal(loaded, expected);
    CHECK(report.unused == std::vector<std::string>{"count (buffer)", "half (parameter)"});
  }
  CHECK(checkpoint.read({"count", "buffer"}).item<int64_t>() == 7);
  CHECK(at::equal(checkpoint.read({"half", "parameter"}), at::arange(5).to(at::kBFloat16)));
}
