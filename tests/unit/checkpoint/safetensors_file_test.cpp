// SPDX-License-Identifier: MIT
#include <ATen/ATen.h>
#include <sys/stat.h>

#include <limits>
#include <thread>

#include "lib/core/file.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/core/error.h"
#include "tests/support/messages.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/support/test.hpp"
#include "tests/unit/checkpoint/safetensors_bytes.h"

using namespace tessera;
using tessera::test::contains;

TEST_CASE("a pointer of git-LFS is named as such, with what fetches the file") {
  const TempDir folder;
  const std::string path = folder.write(
      "model.safetensors",
      "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 2235731824\n");
  for (const std::string& said :
       {error_of(ErrorCode::kDataLoss, [&] { SafetensorsFile file(path); }),
        error_of(ErrorCode::kDataLoss, [&] { read_file(path); })}) {
    CHECK_THAT(said, contains(path + ": is a git-LFS pointer") && contains("git lfs pull"));
  }
}

TEST_CASE("tensors of every dtype come back as they were written") {
  const TempDir folder;
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  const at::Tensor values = at::arange(-3, 9).reshape({3, 4});
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble, at::kLong, at::kInt,
                          at::kShort, at::kChar, at::kByte, at::kBool, at::kUInt16}) {
    tensors.emplace_back(std::string("t.") + c10::toString(type), values.to(type));
  }
  tensors.emplace_back("scalar", at::full({}, 7.0));
  tensors.emplace_back("empty", at::empty({0, 5}));
  tensors.emplace_back("transposed \"\\\n\u00e9", at::arange(6).reshape({2, 3}).t());
  save_safetensors(folder.path("x"), tensors, {{"format", "pt"}, {"note", "\"quoted\""}});
  const SafetensorsFile file(folder.path("x"));
  CHECK(file.header().metadata.at("note") == "\"quoted\"");
  REQUIRE(file.header().entries.size() == tensors.size());
  for (const auto& [name, tensor] : tensors) {
    INFO(name);
    const at::Tensor back = file.read(name);
    CHECK(back.scalar_type() == tensor.scalar_type());
    CHECK(back.sizes() == tensor.sizes());
    CHECK(at::equal(back.to(at::kDouble), tensor.to(at::kDouble)));
  }
}

TEST_CASE("the writer streams tensors and pads its header with spaces") {
  const TempDir folder;
  {
    SafetensorsWriter writer(folder.path("x"), 2000);
    writer.add("a", at::ones({2, 2}));
    CHECK_THROWS_AS(writer.add("a", at::ones({1})), Error);
    CHECK(writer.has_room("b", at::ones({1})));
    CHECK_FALSE(writer.has_room(std::string(900, 'b'), at::ones({1})));
    writer.add("b", at::zeros({1}, at::kHalf));
    CHECK(writer.data_bytes() == 18);
    writer.finish();
  }
  const SafetensorsFile file(folder.path("x"));
  CHECK(std::filesystem::file_size(folder.path("x")) == 8 + 2000 + 18);
  CHECK(at::equal(file.read("a"), at::ones({2, 2})));
  CHECK(file.header().metadata.at("format") == "pt");
}

TEST_CASE("an unfinished file is not valid") {
  const TempDir folder;
  {
    SafetensorsWriter writer(folder.path("x"));
    writer.add("a", at::ones({4}));
  }
  CHECK_THAT(error_of([&] { SafetensorsFile file(folder.path("x")); }), contains("length is zero"));
}

TEST_CASE("NaN values are legal and counted") {
  const TempDir folder;
  at::Tensor values = at::zeros({3, 5});
  values[1][2] = std::numeric_limits<float>::quiet_NaN();
  values[2][4] = std::numeric_limits<float>::quiet_NaN();
  values[0][0] = std::numeric_limits<float>::infinity();
  save_safetensors(folder.path("x"),
                   {{"f", values}, {"h", values.to(at::kHalf)}, {"i", at::ones({2}, at::kInt)}});
  const SafetensorsFile file(folder.path("x"));
  CHECK(file.count_nan("f") == 2);
  CHECK(file.count_nan("h") == 2);
  CHECK(file.count_nan("i") == 0);
}

TEST_CASE("a file that shrinks after it was opened is an error, not a fault") {
  const TempDir folder;
  save_safetensors(folder.path("x"), {{"a", at::ones({1000})}});
  const SafetensorsFile file(folder.path("x"));
  std::filesystem::resize_file(folder.path("x"), file.find("a")->begin + 400);
  const std::string message = error_of([&] { file.read("a"); });
  CHECK_THAT(message, contains("byte " + std::to_string(file.find("a")->begin + 400)));
  CHECK_THAT(message, contains("shrunk"));
  CHECK_THAT(message, contains("\"a\""));
}

TEST_CASE("missing files, folders, pipes and tensors are named") {
  const TempDir folder;
  CHECK_THAT(error_of([&] { SafetensorsFile file(folder.path("absent")); }), contains("absent"));
  CHECK_THAT(error_of([&] { SafetensorsFile file(folder.path("")); }), contains("not a regular"));
  REQUIRE(::mkfifo((folder.path("pipe")).c_str(), 0600) == 0);
  CHECK_THAT(error_of([&] { SafetensorsFile file(folder.path("pipe")); }),
             contains("not a regular"));
  save_safetensors(folder.path("x"), {{"a", at::ones({1})}});
  const SafetensorsFile file(folder.path("x"));
  CHECK_THAT(error_of([&] { file.read("b"); }), contains("has no tensor \"b\""));
  CHECK_THAT(error_of([&] { SafetensorsWriter writer(folder.path("no/such/folder")); }),
             contains("cannot be created"));
}

TEST_CASE("bool bytes other than 0 and 1 read as true") {
  const TempDir folder;
  std::string bytes =
      safetensors_bytes(R"({"a":{"dtype":"BOOL","shape":[3],"data_offsets":[0,3]}})", 3);
  bytes.back() = '\x7f';
  bytes[bytes.size() - 2] = '\0';
  const SafetensorsFile file(folder.write("x", bytes));
  CHECK(at::equal(file.read("a"), at::tensor({1, 0, 1}).to(at::kBool)));
}

TEST_CASE("several threads read one file") {
  const TempDir folder;
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (int i = 0; i < 16; ++i) tensors.emplace_back(std::to_string(i), at::full({5000}, i));
  save_safetensors(folder.path("x"), tensors);
  const SafetensorsFile file(folder.path("x"));
  std::vector<int> wrong(4, 0);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 16; ++i) {
        if (!file.read(std::to_string(i)).eq(i).all().item<bool>()) ++wrong[t];
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(wrong == std::vector<int>(4, 0));
}
