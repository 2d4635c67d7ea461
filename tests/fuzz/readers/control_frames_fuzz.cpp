// SPDX-License-Identifier: MIT
// Bytes from a stranger at the control channel's port.
#include "lib/comm/control/wire.h"
#include "tests/fuzz/readers/reader_fuzz.h"

using namespace tessera;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string received(fuzz::text_of(data, size));
  fuzz::accepts({ErrorCode::kUnavailable}, [&] {
    while (const auto frame = control::take_frame(received)) {
      fuzz::accepts({ErrorCode::kUnavailable}, [&] {
        const auto list = control::unpack(frame->payload);
        fuzz::expect(control::pack(list) == frame->payload, "a list differs after it was read");
      });
      fuzz::accepts({ErrorCode::kUnavailable}, [&] { control::Hello::unpack(frame->payload); });
    }
  });
  return 0;
}
