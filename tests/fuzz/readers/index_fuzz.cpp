// SPDX-License-Identifier: MIT
// model.safetensors.index.json beside two shards, a link out of the folder and a file that is not a
// shard.
#include "tessera/checkpoint/huggingface.h"
#include "tests/fuzz/readers/reader_fuzz.h"

using namespace tessera;

namespace {

std::string shard(const std::string& first, const std::string& second) {
  std::string header = "{\"" + first + R"(":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},")" +
                       second + R"(":{"dtype":"I64","shape":[],"data_offsets":[8,16]}})";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + header +
         std::string(16, '\x3f');
}

std::string make_directory() {
  namespace fs = std::filesystem;
  const TempDir& folder = fuzz::folder();
  fs::create_directories(folder.path("model"));
  folder.write("model/a.safetensors", shard("w", "n"));
  folder.write("model/b.safetensors", shard("transformer.x", "y"));
  folder.write("model/c.safetensors", "no tensors");
  folder.write("d.safetensors", shard("u", "v"));
  fs::create_symlink("../d.safetensors", folder.path("model/d.safetensors"));
  return folder.path("model");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::string directory = make_directory();
  fuzz::folder().write("model/model.safetensors.index.json", fuzz::text_of(data, size));
  fuzz::accepts({ErrorCode::kDataLoss}, [&] {
    const HuggingFaceDirectory model(directory);
    for (const SafetensorsFile& file : model.files()) {
      fuzz::expect(!file.path().ends_with("d.safetensors"), "a shard outside the folder");
    }
    fuzz::accepts({}, [&] {
      for (const std::string& name : model.names()) {
        fuzz::expect(model.has(name), "a weight that is not there");
        const std::vector<int64_t> shape{2};
        model.read(name, name == "n" || name == "y" ? at::IntArrayRef() : at::IntArrayRef(shape));
      }
    });
  });
  return 0;
}
