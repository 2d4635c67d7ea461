// SPDX-License-Identifier: MIT
#include "lib/core/file.h"

#include "tests/support/messages.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/support/test.hpp"

using namespace tessera;

TEST_CASE(
    "read_file returns all bytes and refuses what is not a readable file of the allowed size") {
  const TempDir dir;
  const std::string bytes("a\0b\r\n\xff", 6);
  const std::string path = dir.write("x.bin", bytes);
  CHECK(read_file(path) == bytes);
  CHECK(read_file(path, 6) == bytes);
  CHECK(read_file(dir.write("empty", "")).empty());
  CHECK(error_of([&] { read_file(path, 5); }) == path + ": 6 bytes, at most 5 are accepted here");
  CHECK(error_of([&] { read_file(dir.path("none")); }) ==
        dir.path("none") + ": cannot be opened: No such file or directory");
  CHECK(error_of([&] { read_file(dir.path("")); }) == dir.path("") + ": not a regular file");
}

TEST_CASE("utf8_valid_prefix accepts exactly the well-formed sequences") {
  // Every 1-, 2- and 3-byte string over the bytes where the rules change, against decoding by
  // definition.
  const auto well_formed = [](const std::string& s) {
    size_t at = 0;
    while (at < s.size()) {
      const auto byte = [&](size_t i) { return static_cast<unsigned char>(s[i]); };
      const unsigned lead = byte(at);
      const size_t length = lead < 0x80       ? 1
                            : lead >> 5 == 6  ? 2
                            : lead >> 4 == 14 ? 3
                            : lead >> 3 == 30 ? 4
                                              : 0;
      if (length == 0 || at + length > s.size()) return false;
      uint32_t code = length == 1 ? lead : lead & (0x7F >> length);
      for (size_t i = 1; i < length; ++i) {
        if (byte(at + i) >> 6 != 2) return false;
        code = code << 6 | (byte(at + i) & 63);
      }
      constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
      if (code < kLeast[length] || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
        return false;
      at += length;
    }
    return true;
  };
  const std::string edges(
      "\x00\x41\x7f\x80\x8f\x90\x9f\xa0\xbf\xc0\xc1\xc2\xdf\xe0\xe1\xec\xed\xee\xef\xf0\xf1\xf3\xf4"
      "\xf5\xff",
      25);
  size_t compared = 0, accepted = 0;
  for (const char a : edges) {
    for (const char b : edges) {
      for (const char c : edges) {
        for (const char d : edges) {
          const std::string text = {a, b, c, d};
          const bool good = utf8_valid_prefix(text) == text.size();
          if (good != well_formed(text)) {
            CAPTURE(int(a), int(b), int(c), int(d));
            FAIL("differs from the definition");
          }
          accepted += good;
          ++compared;
        }
      }
    }
  }
  CHECK(compared == 390625);
  CHECK(accepted > 100);
  CHECK(error_of([] { check_utf8("ab\xED\xA0\x80", "f.csv"); }) ==
        "f.csv: byte 2: not valid UTF-8; convert the file to UTF-8");
}

TEST_CASE("a file comes whole in pieces, whatever its size") {
  const TempDir dir;
  std::string bytes;
  for (int i = 0; bytes.size() < (size_t{9} << 20); ++i) bytes += std::to_string(i) + "\n";
  for (const std::string& text : {bytes, std::string("x"), std::string(size_t{4} << 20, 'a')}) {
    std::string joined;
    size_t pieces = 0;
    for_each_piece(dir.write("file", text), [&](std::string_view piece) {
      joined += piece;
      ++pieces;
    });
    CHECK((joined == text));
    CHECK(pieces == (text.size() + (size_t{4} << 20) - 1) / (size_t{4} << 20));
  }
  for_each_piece(dir.write("empty", ""), [](std::string_view) { FAIL("no piece expected"); });
  CHECK_THROWS_AS(for_each_piece(dir.path("none"), [](std::string_view) {}), Error);
}

TEST_CASE("text for JSON keeps what is UTF-8 and replaces each byte that is not") {
  CHECK(utf8_text("caf\xC3\xA9") == "caf\xC3\xA9");
  CHECK(utf8_text("a\xFF\xC3z") == "a\xEF\xBF\xBD\xEF\xBF\xBDz");
  CHECK(utf8_text("").empty());
}
