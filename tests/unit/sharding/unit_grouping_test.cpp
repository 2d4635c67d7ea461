// SPDX-License-Identifier: MIT
#include "lib/sharding/unit_grouping.h"

#include <ATen/ATen.h>

#include "tests/support/test.hpp"

using namespace tessera;

namespace {

Parameter parameter(const std::string& name, int64_t numel, bool frozen = false) {
  Parameter result{name, at::zeros({numel})};
  result.placement.frozen = frozen;
  return result;
}

// "index: names" of every unit, in order of completion.
struct Listed {
  std::vector<std::string> units;
  UnitGrouping grouping;

  explicit Listed(int64_t unit_numel, int64_t message_numel = 0)
      : grouping({.unit_numel = unit_numel, .message_numel = message_numel},
                 [this](const UnitMembers& members) {
                   std::string text = std::to_string(members.gather_group) + ":";
                   for (const Parameter& p : members.parameters) text += " " + p.name;
                   if (members.frozen()) text += " frozen";
                   if (members.apart) text += " apart";
                   units.push_back(text);
                   CHECK(members.block_of.size() == members.parameters.size());
                 }) {}
};

}  // namespace

TEST_CASE("a block's parameters form a unit of what is trained and one of what is frozen") {
  Listed of(0);
  of.grouping.add(0, parameter("a", 5), false);
  of.grouping.add(0, parameter("b", 5, /*frozen=*/true), false);
  of.grouping.add(0, parameter("c", 5), false);
  of.grouping.end_block(false);
  of.grouping.end_block(false);  // a block without parameters counts too
  of.grouping.add(2, parameter("d", 5), false);
  of.grouping.end_block(false);
  CHECK(of.units == std::vector<std::string>{"0: a c", "0: b frozen", "2: d"});
}

TEST_CASE("frozen parameters in 8 bits form a unit of their own, with their scales") {
  std::vector<std::string> units;
  UnitGrouping grouping({}, [&](const UnitMembers& members) {
    std::string text;
    for (const Parameter& p : members.parameters) text += p.name;
    for (const at::Tensor& scale : members.scales) text += std::to_string(scale.item<int>());
    units.push_back(text);
  });
  grouping.add(0, parameter("a", 5, /*frozen=*/true), false);
  grouping.add(0, parameter("b", 5, true), false, at::full({}, 2, at::kFloat));
  grouping.add(0, parameter("c", 5), false);
  grouping.add(0, parameter("d", 5, true), false, at::full({}, 4, at::kFloat));
  grouping.add(0, parameter("e", 5, true), /*apart=*/true, at::full({}, 8, at::kFloat));
  grouping.end_block(false);
  CHECK(units == std::vector<std::string>{"e", "c", "a", "bd24"});
}

TEST_CASE("trained matrices that are gathered as codes form units of their own, by their rule") {
  std::vector<std::string> units;
  UnitGrouping grouping({}, [&](const UnitMembers& members) {
    std::string text;
    for (const Parameter& p : members.parameters) text += p.name;
    for (const size_t product : members.products) text += std::to_string(product);
    units.push_back(text);
  });
  Parameter whole = parameter("d", 5);
  whole.rule.whole_matrix = true;
  grouping.add(0, parameter("a", 5), false, {}, 7);
  grouping.add(0, parameter("b", 5), false);
  grouping.add(0, parameter("c", 5), false, {}, 8);
  grouping.add(0, whole, false, {}, 9);
  grouping.add(0, parameter("e", 5), /*apart=*/true, {}, 6);
  grouping.end_block(false);
  CHECK(units == std::vector<std::string>{"e", "b", "ac78", "d9"});
}

TEST_CASE("consecutive blocks share a unit until it is large enough or told to end") {
  Listed of(20);
  for (size_t block = 0; block < 6; ++block) {
    of.grouping.add(block, parameter(std::to_string(block), 10, block == 1), false);
    of.grouping.end_block(/*ends_unit=*/block == 2 || block == 5);
  }
  CHECK(of.units == std::vector<std::string>{"0: 0", "0: 1 frozen", "1: 2", "2: 3 4", "3: 5"});
}

TEST_CASE(
    "what several places use is a unit of its own, complete at once, whose size counts for no "
    "other") {
  Listed of(20);
  of.grouping.add(0, parameter("a", 10), false);
  of.grouping.add(0, parameter("table", 100), true);
  CHECK(of.units == std::vector<std::string>{"0: table apart"});
  of.grouping.end_block(false);
  of.grouping.add(1, parameter("b", 10), false);
  of.grouping.end_block(false);
  CHECK(of.units == std::vector<std::string>{"0: table apart", "0: a b"});
}

TEST_CASE("units of consecutive blocks take a gather_group together until it is large enough") {
  Listed of(0, /*message_numel=*/20);
  for (size_t block = 0; block < 7; ++block) {
    of.grouping.add(block, parameter(std::to_string(block), 10, block == 1), false);
    if (block == 3) of.grouping.add(block, parameter("table", 100), true);
    of.grouping.end_block(/*ends_unit=*/block == 2 || block == 6);
  }
  CHECK(of.units == std::vector<std::string>{"0: 0", "0: 1 frozen", "1: 2", "2: table apart",
                                             "2: 3", "2: 4", "3: 5", "3: 6"});
}

TEST_CASE("gather_groups hold whole units, however large these are") {
  Listed of(20, /*message_numel=*/30);
  for (size_t block = 0; block < 6; ++block) {
    of.grouping.add(block, parameter(std::to_string(block), 10), false);
    of.grouping.end_block(/*ends_unit=*/block == 5);
  }
  CHECK(of.units == std::vector<std::string>{"0: 0 1", "0: 2 3", "1: 4 5"});
}
