// SPDX-License-Identifier: MIT
#include "tessera/checkpoint/huggingface.h"

#include <ATen/ATen.h>

#include "tessera/core/error.h"
#include "tessera/core/json.h"
#include "tests/support/messages.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/support/test.hpp"

using namespace tessera;
using tessera::test::contains;
namespace fs = std::filesystem;

namespace {

std::string open_message(const std::string& directory) {
  return error_of(ErrorCode::kDataLoss, [&] { HuggingFaceDirectory opened(directory); });
}

// Two shards, "a" in the first and "b" in the second, and an index with this weight_map.
void write_sharded(const TempDir& folder, const std::string& weight_map) {
  save_safetensors(folder.path("one.safetensors"), {{"a", at::ones({2})}});
  save_safetensors(folder.path("two.safetensors"), {{"b", at::ones({3})}});
  folder.write("model.safetensors.index.json",
               concat("{\"metadata\":{},\"weight_map\":", weight_map, "}"));
}

}  // namespace

TEST_CASE("names are found with and without the base model's prefix") {
  const TempDir bare, prefixed;
  save_safetensors(bare.path("model.safetensors"),
                   {{"h.0.x", at::ones({2})}, {"lm_head.weight", at::ones({1})}});
  save_safetensors(prefixed.path("model.safetensors"), {{"transformer.h.0.x", at::ones({2})}});
  const HuggingFaceDirectory a(bare.path("")), b(prefixed.path(""));
  for (const auto* directory : {&a, &b}) {
    CHECK(directory->has("transformer.h.0.x"));
    CHECK(directory->has("h.0.x"));
    CHECK(at::equal(directory->read("transformer.h.0.x", {2}), at::ones({2})));
    CHECK_FALSE(directory->has("h.1.x"));
  }
  CHECK(a.has("lm_head.weight"));
  CHECK_FALSE(b.has("lm_head.weight"));
  CHECK(a.names() == std::vector<std::string>{"h.0.x", "lm_head.weight"});
}

TEST_CASE("16-bit weights are read in their own dtype") {
  const TempDir folder;
  save_safetensors(folder.path("model.safetensors"), {{"a", at::ones({2}, at::kBFloat16)},
                                                      {"b", at::ones({2}, at::kHalf)},
                                                      {"c", at::ones({2}, at::kInt)}});
  const HuggingFaceDirectory directory(folder.path(""));
  CHECK(directory.read("a", {2}).scalar_type() == at::kBFloat16);
  CHECK(directory.read("b", {2}).scalar_type() == at::kHalf);
  CHECK_THAT(error_of(ErrorCode::kDataLoss, [&] { directory.read("c", {2}); }),
             contains("floating-point"));
}

TEST_CASE("missing weights and other shapes are named with file and byte") {
  const TempDir folder;
  save_safetensors(folder.path("model.safetensors"), {{"a", at::ones({2, 3})}});
  const HuggingFaceDirectory directory(folder.path(""));
  CHECK_THAT(error_of(ErrorCode::kDataLoss, [&] { directory.read("b", {1}); }),
             contains("\"b\" is missing"));
  const std::string message = error_of(ErrorCode::kDataLoss, [&] { directory.read("a", {3, 2}); });
  CHECK_THAT(message, contains("shape [2, 3]"));
  CHECK_THAT(message, contains("[3, 2]"));
  CHECK_THAT(message, contains("model.safetensors: byte "));
}

TEST_CASE("experts stored one by one are read as one tensor") {
  const TempDir folder;
  const std::string layer = "model.layers.0.mlp.experts.";
  std::vector<std::pair<std::string, at::Tensor>> stored;
  std::vector<at::Tensor> all;
  for (int64_t expert = 0; expert < 5; ++expert) {
    for (const std::string part : {".gate_proj", ".up_proj"}) {
      all.push_back(at::randn({3, 4}).to(at::kBFloat16));
      // Another dtype in between.
      const bool wide = expert == 2 && part == ".gate_proj";
      stored.emplace_back(concat(layer, expert, part, ".weight"),
                          wide ? all.back().to(at::kFloat) : all.back());
    }
  }
  save_safetensors(folder.path("model.safetensors"), stored);
  const HuggingFaceDirectory directory(folder.path(""));
  const std::string name = layer + "gate_up_proj";
  const at::Tensor read = directory.read(name, {5, 6, 4});
  CHECK(read.scalar_type() == at::kBFloat16);
  CHECK(at::equal(read, at::cat(all).view({5, 6, 4})));
  CHECK_THAT(error_of(ErrorCode::kDataLoss,
                      [&] {
                        directory.read(name, {6, 6, 4});
                      }),
             contains("experts.5.gate_proj.weight\" is missing"));
  CHECK_THAT(error_of(ErrorCode::kDataLoss,
                      [&] {
                        directory.read(name, {5, 6, 3});
                      }),
             contains("config.json asks for [3, 3]"));
}

TEST_CASE("sharded weights are read through their index") {
  const TempDir folder;
  write_sharded(folder, R"({"a":"one.safetensors","b":"two.safetensors"})");
  const HuggingFaceDirectory directory(folder.path(""));
  CHECK(directory.files().size() == 2);
  CHECK(at::equal(directory.read("b", {3}), at::ones({3})));
}

TEST_CASE("an index cannot name a path") {
  for (const std::string name : {"../one.safetensors", "/etc/passwd", "sub/one.safetensors", "..",
                                 "", "a\\\\b.safetensors", "one\\u0000.safetensors"}) {
    INFO(name);
    const TempDir folder;
    write_sharded(folder, R"({"b":"two.safetensors","a":")" + name + "\"}");
    const std::string message = open_message(folder.path(""));
    CHECK_THAT(message, contains("plain name"));
    CHECK_THAT(message, contains("index.json"));
    CHECK_THAT(message, contains("byte "));
  }
}

TEST_CASE(
    "a shard that is a link out of the directory is refused, unless into a Hub cache's blobs") {
  const TempDir folder, outside;
  write_sharded(folder, R"({"a":"one.safetensors","b":"two.safetensors"})");
  fs::rename(folder.path("one.safetensors"), outside.path("one.safetensors"));
  fs::create_symlink(outside.path("one.safetensors"), folder.path("one.safetensors"));
  CHECK_THAT(open_message(folder.path("")), contains("link out of the directory"));

  const TempDir cache;
  fs::create_directories(cache.path("blobs"));
  fs::create_directories(cache.path("snapshots/0123"));
  fs::rename(outside.path("one.safetensors"), cache.path("blobs/aaaa"));
  fs::rename(folder.path("two.safetensors"), cache.path("blobs/bbbb"));
  fs::rename(folder.path("model.safetensors.index.json"),
             cache.path("snapshots/0123/model.safetensors.index.json"));
  fs::create_symlink("../../blobs/aaaa", cache.path("snapshots/0123/one.safetensors"));
  fs::create_symlink("../../blobs/bbbb", cache.path("snapshots/0123/two.safetensors"));
  CHECK(HuggingFaceDirectory(cache.path("snapshots/0123")).has("a"));
}

TEST_CASE("weights in one file are no link out of the directory either") {
  const TempDir outside, folder, cache;
  save_safetensors(outside.path("w"), {{"a", at::ones({2})}});
  fs::create_symlink(outside.path("w"), folder.path("model.safetensors"));
  CHECK_THAT(open_message(folder.path("")), contains("model.safetensors: is a link out of"));
  fs::create_directories(cache.path("blobs"));
  fs::create_directories(cache.path("snapshots/0123"));
  fs::copy(outside.path("w"), cache.path("blobs/aaaa"));
  fs::create_symlink("../../blobs/aaaa", cache.path("snapshots/0123/model.safetensors"));
  CHECK(HuggingFaceDirectory(cache.path("snapshots/0123")).has("a"));
}

TEST_CASE("a missing shard is named") {
  const TempDir folder;
  write_sharded(folder, R"({"a":"one.safetensors","b":"three.safetensors"})");
  CHECK_THAT(open_message(folder.path("")), contains("\"three.safetensors\" is missing"));
}

TEST_CASE("a weight in no shard, in two shards, or outside the index is named") {
  const TempDir none, two, unlisted;
  write_sharded(none, R"({"a":"one.safetensors","b":"two.safetensors","c":"two.safetensors"})");
  CHECK_THAT(open_message(none.path("")), contains("\"c\" is in no shard"));
  write_sharded(two, R"({"a":"one.safetensors","b":"two.safetensors"})");
  save_safetensors(two.path("two.safetensors"), {{"b", at::ones({3})}, {"a", at::ones({2})}});
  CHECK_THAT(open_message(two.path("")), contains("\"a\" is in two shards"));
  write_sharded(unlisted, R"({"a":"one.safetensors"})");
  save_safetensors(unlisted.path("one.safetensors"), {{"a", at::ones({2})}, {"z", at::ones({2})}});
  CHECK_THAT(open_message(unlisted.path("")), contains("\"z\" is not in"));
}

TEST_CASE("a damaged index is refused") {
  const TempDir folder;
  write_sharded(folder, R"({"a":"one.safetensors","a":"two.safetensors"})");
  CHECK_THAT(open_message(folder.path("")), contains("appears twice"));
  write_sharded(folder, R"({"a":1})");
  CHECK_THAT(open_message(folder.path("")), contains("string"));
  write_sharded(folder, "{}");
  CHECK_THAT(open_message(folder.path("")), contains("empty"));
  folder.write("model.safetensors.index.json", "{}");
  CHECK_THAT(open_message(folder.path("")), contains("weight_map"));
}

TEST_CASE("pickled weights are refused with the way to convert them") {
  const TempDir folder;
  folder.write("pytorch_model.bin", "x");
  CHECK_THAT(open_message(folder.path("")), contains("save_pretrained"));
  const TempDir empty;
  CHECK_THAT(open_message(empty.path("")), contains("neither model.safetensors nor"));
  CHECK_THAT(open_message(empty.path("absent")), contains("not a directory"));
}

TEST_CASE("a written directory appears complete, in the dtype asked for") {
  const TempDir folder;
  const std::string tokenizer = folder.write("tokenizer.json", "{}");
  {
    HuggingFaceWriter writer(folder.path("final/"), {.dtype = at::kBFloat16});
    writer.add("a", at::full({2, 3}, 1.5));
    writer.add_text("config.json", "{}\n");
    writer.add_file(tokenizer);
    CHECK_FALSE(fs::exists(folder.path("final")));
    writer.commit();
  }
  CHECK_FALSE(fs::exists(folder.path("final.tessera.tmp")));
  CHECK(std::distance(fs::directory_iterator(folder.path("final")), {}) == 3);
  CHECK(fs::exists(folder.path("final/tokenizer.json")));
  CHECK(fs::exists(folder.path("final/config.json")));
  const HuggingFaceDirectory directory(folder.path("final"));
  CHECK(at::equal(directory.read("a", {2, 3}), at::full({2, 3}, 1.5, at::kBFloat16)));
  CHECK(directory.files()[0].header().metadata.at("format") == "pt");
}

TEST_CASE("buffers are written and read in their own dtype, whatever that of the weights") {
  const TempDir folder;
  HuggingFaceWriter writer(folder.path("final"), {.dtype = at::kBFloat16});
  const at::Tensor statistics = at::tensor({1.001, 2.002}, at::kFloat);
  const at::Tensor count = at::full({}, (int64_t{1} << 40) + 1, at::kLong);
  writer.add("weight", statistics);
  writer.add_buffer("running_mean", statistics);
  writer.add_buffer("num_batches_tracked", count);
  writer.commit();
  const HuggingFaceDirectory directory(folder.path("final"));
  CHECK(directory.read("weight", {2}).scalar_type() == at::kBFloat16);
  CHECK(at::equal(directory.read("running_mean", {2}), statistics));
  CHECK(at::equal(directory.read("num_batches_tracked", {}), count));
}

TEST_CASE("a large model is written as shards with an index") {
  const TempDir folder;
  HuggingFaceWriter writer(folder.path("final"), {.max_shard_bytes = 100});
  for (int i = 0; i < 7; ++i) writer.add(concat("t", i), at::full({10}, i));
  writer.add("big", at::full({100}, 7));  // larger than a shard by itself
  writer.commit();
  CHECK(fs::exists(folder.path("final/model-00001-of-00005.safetensors")));
  const HuggingFaceDirectory directory(folder.path("final"));
  CHECK(directory.files().size() == 5);
  for (int i = 0; i < 7; ++i) {
    CHECK(at::equal(directory.read(concat("t", i), {10}), at::full({10}, float(i))));
  }
  CHECK(directory.read("big", {100}).eq(7).all().item<bool>());
  const Json index = Json::parse_file(folder.path("final/model.safetensors.index.json"));
  CHECK(index.at("metadata").at("total_size").as_int64() == 7 * 40 + 400);
}

TEST_CASE("a model's fingerprint is of its values, not of its files") {
  const TempDir folder;
  const auto fingerprint = [&](const std::string& name, int64_t shard_bytes, double last) {
    HuggingFaceWriter writer(folder.path(name), {.max_shard_bytes = shard_bytes});
    for (int i = 0; i < 3; ++i) writer.add(concat("t", i), at::full({10}, i < 2 ? i : last));
    writer.commit();
    return HuggingFaceDirectory(folder.path(name)).fingerprint();
  };
  const std::string one = fingerprint("one", 1000, 2);
  CHECK(one.size() == 32);
  CHECK(fingerprint("several", 50, 2) == one);
  CHECK(fingerprint("other", 1000, 3) != one);
}

TEST_CASE("more tensors than a header has room for go into the next shard") {
  const TempDir folder;
  HuggingFaceWriter writer(folder.path("final"), {});
  for (int i = 0; i < 1000; ++i) {
    writer.add("transformer.h.0.self_attention.query_key_value." + std::to_string(i),
               at::ones({1}));
  }
  writer.commit();
  const HuggingFaceDirectory directory(folder.path("final"));
  CHECK(directory.files().size() > 1);
  CHECK(directory.names().size() == 1000);
}

TEST_CASE("nothing is overwritten and nothing half-written stays") {
  const TempDir folder;
  fs::create_directory(folder.path("final"));
  folder.write("final/keep", "x");
  CHECK_THAT(error_of(ErrorCode::kInvalidArgument,
                      [&] { HuggingFaceWriter writer(folder.path("final")); }),
             contains("already exists"));
  CHECK(fs::exists(folder.path("final/keep")));
  {
    HuggingFaceWriter writer(folder.path("other"));
    writer.add("a", at::ones({2}));
    CHECK_THAT(error_of(ErrorCode::kInvalidArgument, [&] { writer.add("a", at::ones({2})); }),
               contains("twice"));
    CHECK(fs::exists(folder.path("other.tessera.tmp")));
    CHECK_THAT(
        error_of(ErrorCode::kDataLoss, [&] { HuggingFaceWriter second(folder.path("other")); }),
        contains("another process writes it"));
  }
  CHECK_FALSE(fs::exists(folder.path("other")));
  CHECK_FALSE(fs::exists(folder.path("other.tessera.tmp")));
}

TEST_CASE("a writer removes what a killed one left, and nothing of anybody else") {
  const TempDir folder;
  const auto write = [&] {
    fs::remove_all(folder.path("final"));
    HuggingFaceWriter writer(folder.path("final"));
    writer.add("a", at::ones({2}));
    writer.commit();
  };
  fs::create_directory(folder.path("final.tmp"));
  folder.write("final.tmp/thesis.tex", "x");
  write();
  CHECK(fs::exists(folder.path("final.tmp/thesis.tex")));
  fs::create_directory(folder.path("final.tessera.tmp"));
  write();  // a kill may leave it empty
  fs::create_directory(folder.path("final.tessera.tmp"));
  folder.write("final.tessera.tmp/.tessera-unfinished", "");
  folder.write("final.tessera.tmp/shard-0", "x");
  write();
  CHECK_FALSE(fs::exists(folder.path("final.tessera.tmp")));
  fs::create_directory(folder.path("final.tessera.tmp"));
  folder.write("final.tessera.tmp/thesis.tex", "x");
  CHECK_THAT(error_of(ErrorCode::kInvalidArgument, write), contains("move it away"));
  CHECK(fs::exists(folder.path("final.tessera.tmp/thesis.tex")));
}

TEST_CASE("a directory that appears meanwhile is not overwritten") {
  const TempDir folder;
  HuggingFaceWriter writer(folder.path("final"));
  writer.add("a", at::ones({2}));
  fs::create_directory(folder.path("final"));
  folder.write("final/keep", "x");
  CHECK_THAT(error_of(ErrorCode::kDataLoss, [&] { writer.commit(); }),
             contains("cannot be renamed"));
  CHECK(fs::exists(folder.path("final/keep")));
}

TEST_CASE("an older directory is replaced when the new one is complete, and not before") {
  const TempDir folder;
  fs::create_directory(folder.path("final"));
  folder.write("final/older", "x");
  {
    HuggingFaceWriter writer(folder.path("final"), {.replaces = true});
    writer.add("a", at::ones({2}));
  }
  CHECK(fs::exists(folder.path("final/older")));
  HuggingFaceWriter writer(folder.path("final"), {.replaces = true});
  writer.add("a", at::ones({2}));
  CHECK(fs::exists(folder.path("final/older")));
  writer.commit();
  CHECK(HuggingFaceDirectory(folder.path("final")).has("a"));
  CHECK_FALSE(fs::exists(folder.path("final/older")));
  CHECK(std::distance(fs::directory_iterator(folder.path("")), {}) == 1);
}
