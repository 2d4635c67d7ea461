// SPDX-License-Identifier: MIT
// A safetensors file and all its tensors. An input that starts with '{' is a header; the bytes
// after its first NUL are the data. The header's length is prepended.
#include <cstring>

#include "tessera/checkpoint/safetensors.h"
#include "tests/fuzz/readers/reader_fuzz.h"

using namespace tessera;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string bytes(fuzz::text_of(data, size));
  if (bytes.starts_with('{')) {
    const auto parts = fuzz::parts_of(bytes, 2);
    uint64_t length = parts[0].size();
    bytes.assign(reinterpret_cast<const char*>(&length), sizeof(length));
    bytes += parts[0] + parts[1];
  }
  const std::string path = fuzz::folder().write("model.safetensors", bytes);
  fuzz::accepts({ErrorCode::kDataLoss}, [&] {
    const SafetensorsFile file(path);
    fuzz::accepts({}, [&] {
      for (const SafetensorsEntry& entry : file.header().entries) {
        const at::Tensor tensor = file.read(entry.name);
        fuzz::expect(tensor.sizes() == at::IntArrayRef(entry.shape), "another shape");
        fuzz::expect(static_cast<int64_t>(tensor.nbytes()) == entry.end - entry.begin,
                     "another number of bytes");
        fuzz::expect(file.count_nan(entry.name) <= tensor.numel(), "more NaN than elements");
      }
    });
  });
  return 0;
}
