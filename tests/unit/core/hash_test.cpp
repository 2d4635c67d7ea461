// SPDX-License-Identifier: MIT
#include "lib/core/hash.h"

#include "tests/support/temp_dir.hpp"
#include "tests/support/test.hpp"

using namespace tessera;

TEST_CASE("SHA-256 gives the values of FIPS 180-4 and of long inputs at every padding length") {
  CHECK(sha256_hex("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(sha256_hex("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(sha256_hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq") ==
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK(sha256_hex(std::string(1000000, 'a')) ==
        "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  // The hash of the concatenated hashes of "a" * n, n = 0..130 (from Python's hashlib).
  std::string all;
  for (size_t n = 0; n <= 130; ++n) all += sha256_hex(std::string(n, 'a'));
  CHECK(sha256_hex(all) == "5eee4c50e1b5ec4f1a47f34c25ca988850b49da7904f5ab1b3abc5cc0ae66ef9");
  const TempDir dir;
  CHECK(sha256_file_hex(dir.write("abc", "abc")) == sha256_hex("abc"));
  const std::string large((size_t{9} << 20) + 17, 'b');  // several pieces
  const std::string file = dir.write("large", large);
  CHECK(sha256_file_hex(file) == sha256_hex(large));
  CHECK(hash_file(file) == xxh3_128(large.data(), large.size()));
}

TEST_CASE("HMAC-SHA-256 gives the values of RFC 4231") {
  struct Vector {
    std::string key, message, mac;
  };
  std::string counted;
  for (char byte = 1; byte <= 25; ++byte) counted += byte;
  const Vector vectors[] = {
      {std::string(20, '\x0b'), "Hi There",
       "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"},
      {"Jefe", "what do ya want for nothing?",
       "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"},
      {std::string(20, '\xaa'), std::string(50, '\xdd'),
       "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe"},
      {counted, std::string(50, '\xcd'),
       "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b"},
      {std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First",
       "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"},
      {std::string(131, '\xaa'),
       "This is a test using a larger than block-size key and a larger than block-size data. The "
       "key needs to be hashed before being used by the HMAC algorithm.",
       "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2"}};
  for (const Vector& each : vectors) CHECK(hmac_sha256_hex(each.key, each.message) == each.mac);
}

TEST_CASE("XXH3 gives the published values, and streams give the hash of the whole") {
  CHECK(hex64(xxh3_64("", 0)) == "2d06800538d394c2");
  CHECK(xxh3_128("", 0).hex() == "99aa06d3014798d86001c324468d497f");
  std::string bytes(5000, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 7 % 251);
  for (const size_t size : {1, 16, 17, 128, 240, 241, 256, 1024, 4999}) {
    for (const size_t step : {1, 63, 257, 5000}) {
      Xxh3Stream stream;
      for (size_t at = 0; at < size; at += step) {
        stream.update(bytes.data() + at, std::min(step, size - at));
      }
      CHECK(stream.digest64() == xxh3_64(bytes.data(), size));
      CHECK(stream.digest128() == xxh3_128(bytes.data(), size));
    }
  }
  CHECK(xxh3_64("abc", 3, 1) != xxh3_64("abc", 3));
}
