// SPDX-License-Identifier: MIT
// One test for each kind of invalid safetensors header; every message names the byte.
#include "tessera/checkpoint/safetensors.h"
#include "tessera/core/error.h"
#include "tests/support/test.hpp"
#include "tests/unit/checkpoint/safetensors_bytes.h"

using namespace tessera;

namespace {

SafetensorsHeader parse(const std::string& file) {
  const auto size = static_cast<int64_t>(file.size());
  const int64_t length = safetensors_header_length(file.substr(0, 8), size, "x.safetensors");
  return parse_safetensors_header(std::string_view(file).substr(8, static_cast<size_t>(length)),
                                  size, "x.safetensors");
}

void check_refused(const std::string& file, const std::string& message) {
  try {
    parse(file);
    FAIL("accepted; expected: " << message);
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kDataLoss);
    CHECK_THAT(error.what(), test::starts_with("x.safetensors"));
    CHECK_THAT(error.what(), test::contains("byte "));
    CHECK_THAT(error.what(), test::contains(message));
  }
}

std::string tensor(const std::string& name, const std::string& dtype, const std::string& shape,
                   const std::string& offsets) {
  return concat("\"", name, "\":{\"dtype\":\"", dtype, "\",\"shape\":", shape,
                ",\"data_offsets\":", offsets, "}");
}
const std::string kGood = tensor("a", "F32", "[2,3]", "[0,24]");

void check_header_refused(const std::string& members, size_t data, const std::string& message) {
  check_refused(safetensors_bytes(concat("{", members, "}"), data), message);
}

}  // namespace

TEST_CASE("a well-formed header gives its tensors in the order of their bytes") {
  const auto header = parse(safetensors_bytes(concat("{", tensor("b", "BF16", "[4]", "[24,32]"),
                                                     ",", kGood, R"(,"__metadata__":{"k":"v"}})"),
                                              32));
  REQUIRE(header.entries.size() == 2);
  CHECK(header.entries[0].name == "a");
  CHECK(header.entries[0].shape == std::vector<int64_t>{2, 3});
  CHECK(header.entries[1].dtype == at::kBFloat16);
  CHECK(header.entries[1].end - header.entries[1].begin == 8);
  CHECK(header.metadata.at("k") == "v");
}

TEST_CASE("empty shapes, scalars, empty metadata, padding and an empty file are legal") {
  const auto header = parse(safetensors_bytes(
      concat("{", tensor("none", "F32", "[0]", "[0,0]"), ",", tensor("one", "F32", "[]", "[0,4]"),
             ",", tensor("wide", "F16", "[0,7]", "[4,4]"), R"(,"__metadata__":{}}    )"),
      4));
  CHECK(header.entries.size() == 3);
  CHECK(header.metadata.empty());
  CHECK(parse(safetensors_bytes("{}", 0)).entries.empty());
}

TEST_CASE("a file shorter than its header length is refused") {
  check_refused("", "has 0 bytes");
  check_refused("1234567", "has 7 bytes");
}
TEST_CASE("a header length of zero is refused") {
  check_refused(little_endian(0) + "{}", "length is zero");
}
TEST_CASE("a header length over the limit is refused") {
  check_refused(little_endian(100'000'001) + "{}", "over the limit of 100000000");
}
TEST_CASE("a header length past the end of the file is refused") {
  check_refused(little_endian(3) + "{}", "reaches past the end of the file (10 bytes)");
}
TEST_CASE("a header length that overflows is refused") {
  check_refused(little_endian(~uint64_t{0} - 3) + "{}", "overflows");
}
TEST_CASE("a header that is not UTF-8 is refused") {
  check_refused(safetensors_bytes("{\"\xff\":1}", 0), "byte 10: the header is not UTF-8");
}
TEST_CASE("a header that does not start with a brace is refused") {
  check_refused(safetensors_bytes(" {}", 0), "byte 8: the header must start with '{'");
  check_refused(safetensors_bytes("[]", 0), "must start with '{'");
}
TEST_CASE("anything but spaces after the header's object is refused") {
  check_refused(safetensors_bytes("{}  \n", 0), "byte 12: only spaces");
  check_refused(safetensors_bytes("{}{}", 0), "byte 10: only spaces");
  check_refused(safetensors_bytes(std::string("{}\0", 3), 0), "byte 10: only spaces");
}
TEST_CASE("a header that is not JSON is refused") {
  check_header_refused("\"a\"", 0, "header, from byte 8");
  check_header_refused("\"a\":{", 0, "header, from byte 8");
  check_header_refused(kGood + ",", 24, "header, from byte 8");
  check_refused(safetensors_bytes("{\"a", 0), "header, from byte 8");
}
TEST_CASE("nesting deeper than four levels is refused") {
  check_header_refused(tensor("a", "F32", "[[[1]]]", "[0,4]"), 4, "deeper than 4");
}
TEST_CASE("duplicate tensor names are refused") {
  check_header_refused(concat(kGood, ",", kGood), 24, "appears twice");
}
TEST_CASE("duplicate keys of a tensor are refused") {
  check_header_refused(R"("a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]})", 4,
                       "appears twice");
}
TEST_CASE("negative numbers are refused") {
  check_header_refused(tensor("a", "F32", "[-1]", "[0,4]"), 4, "shape[0]");
  check_header_refused(tensor("a", "F32", "[1]", "[-4,0]"), 4, "data_offsets[0]");
  check_header_refused(tensor("a", "F32", "[1]", "[-0,4]"), 4, "-0 is no size");
}
TEST_CASE("fractions are refused") {
  check_header_refused(tensor("a", "F32", "[1.0]", "[0,4]"), 4, "shape[0]");
  check_header_refused(tensor("a", "F32", "[1]", "[0,4.5]"), 4, "data_offsets[1]");
}
TEST_CASE("exponents are refused") {
  check_header_refused(tensor("a", "F32", "[1e0]", "[0,4]"), 4, "shape[0]");
}
TEST_CASE("integers over 2^63 - 1 are refused") {
  check_header_refused(tensor("a", "U8", "[9223372036854775808]", "[0,4]"), 4, "shape[0]");
  check_header_refused(tensor("a", "U8", "[1]", "[0,18446744073709551617]"), 4, "data_offsets[1]");
}
TEST_CASE("data_offsets are two numbers") {
  check_header_refused(tensor("a", "F32", "[1]", "[4]"), 4, "must be two numbers, found 1");
  check_header_refused(tensor("a", "F32", "[1]", "[0,4,8]"), 4, "must be two numbers, found 3");
  check_header_refused(tensor("a", "F32", "[1]", "4"), 4, "data_offsets");
}
TEST_CASE("an unknown dtype is refused") {
  check_header_refused(tensor("a", "F33", "[1]", "[0,4]"), 4, "unknown dtype \"F33\"");
  check_header_refused(R"("a":{"dtype":4,"shape":[1],"data_offsets":[0,4]})", 4, "dtype");
}
TEST_CASE("an unknown key of a tensor is refused") {
  check_header_refused(R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"strides":[1]})", 4,
                       "unknown key \"strides\"");
}
TEST_CASE("a missing key of a tensor is refused") {
  check_header_refused(R"("a":{"dtype":"F32","data_offsets":[0,4]})", 4, "\"shape\" is missing");
}
TEST_CASE("a tensor that is no object is refused") {
  check_header_refused(R"("a":[0,4])", 4, "must be an object");
}
TEST_CASE("a shape whose product overflows is refused") {
  check_header_refused(tensor("a", "F32", "[4294967296,4294967296]", "[0,4]"), 4, "overflows");
  check_header_refused(tensor("a", "F64", "[2305843009213693952]", "[0,4]"), 4, "overflows");
  // No bytes, but impossible strides.
  check_header_refused(tensor("a", "F32", "[0,4294967296,4294967296]", "[0,0]"), 0, "overflows");
}
TEST_CASE("an end before the begin is refused") {
  check_header_refused(tensor("a", "F32", "[1]", "[8,4]"), 8, "end at 4 before they begin at 8");
}
TEST_CASE("a size that differs from the shape's is refused") {
  check_header_refused(tensor("a", "F32", "[2]", "[0,4]"), 4,
                       "span 4 bytes, but dtype and shape need 8");
}
TEST_CASE("data past the end of the file is refused") {
  check_header_refused(kGood, 23, "the file is truncated");
}
TEST_CASE("overlapping tensors are refused with both names") {
  check_header_refused(concat(kGood, ",", tensor("b", "F32", "[2]", "[20,28]")), 28,
                       "tensor \"b\" overlaps tensor \"a\"");
}
TEST_CASE("a hole between tensors is refused") {
  check_header_refused(concat(kGood, ",", tensor("b", "F32", "[1]", "[28,32]")), 32,
                       "4 bytes before tensor \"b\" belong to no tensor");
  check_header_refused(tensor("a", "F32", "[1]", "[4,8]"), 8, "belong to no tensor");
}
TEST_CASE("bytes after the last tensor are refused") {
  check_header_refused(kGood, 25, "1 bytes follow the last tensor");
  check_refused(safetensors_bytes("{}", 1), "byte 10: 1 bytes follow");
}
TEST_CASE("metadata that does not map strings to strings is refused") {
  check_header_refused(R"("__metadata__":{"a":1})", 0, "must be a string, found integer");
  check_header_refused(R"("__metadata__":{"a":null})", 0, "must be a string");
  check_header_refused(R"("__metadata__":[])", 0, "must be an object");
}
TEST_CASE("too many tensors are refused") {
  std::string members;
  for (int i = 0; i <= 100'001; ++i) {
    members += concat(i == 0 ? "" : ",", tensor(concat("t", i), "F32", "[0]", "[0,0]"));
  }
  check_header_refused(members, 0, "at most 100000");
}
TEST_CASE("a name of more than a kibibyte is refused") {
  check_header_refused(tensor(std::string(1025, 'n'), "F32", "[0]", "[0,0]"), 0, "1025 bytes");
  CHECK(parse(safetensors_bytes(
                  concat("{", tensor(std::string(1024, 'n'), "F32", "[0]", "[0,0]"), "}"), 0))
            .entries.size() == 1);
}
TEST_CASE("more than eight dimensions are refused") {
  check_header_refused(tensor("a", "F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]"), 4, "9 dimensions");
  CHECK(parse(safetensors_bytes(concat("{", tensor("a", "F32", "[1,1,1,1,1,1,1,1]", "[0,4]"), "}"),
                                4))
            .entries.size() == 1);
}
