// SPDX-License-Identifier: MIT
// What rows of the table of optimizers say is what their optimizers do.
#include "lib/optim/optimizer_table.h"

#include <set>

#include "tests/support/test.hpp"

using namespace tessera;

namespace {

std::string described(const OptimizerRow& row, const OptimizerSettings& settings) {
  return describe(row.make(settings));
}

OptimizerSettings settings_of(const OptimizerRow& row) {
  return {.learning_rate = 1e-3, .moments = row.moments.value_or(MomentsDtype::kFloat32)};
}

}  // namespace

TEST_CASE("a row of optimizers reads the settings that it names, and no others") {
  for (const OptimizerRow& row : optimizer_table()) {
    INFO(row.name);
    const OptimizerSettings usual = settings_of(row);
    const std::string text = described(row, usual);
    const auto reads = [&](auto change) {
      OptimizerSettings other = usual;
      change(other);
      return described(row, other) != text;
    };
    CHECK(reads([](auto& s) { s.beta1 = 0.5; }) == row.betas);
    CHECK(reads([](auto& s) { s.beta2 = 0.5; }) == row.betas);
    CHECK(reads([](auto& s) { s.epsilon = 1e-3; }) == row.epsilon);
    CHECK(reads([](auto& s) { s.moments = MomentsDtype::kBFloat16; }) == row.moments.has_value());
    CHECK(reads([](auto& s) { s.weight_decay = 0.5; }));
  }
}

TEST_CASE("optimizers take the arguments that their help names, and refuse others") {
  for (const OptimizerRow& row : optimizer_table()) {
    INFO(row.name);
    OptimizerSettings settings = settings_of(row);
    settings.arguments = {"no_such=1"};
    CHECK_THROWS_WITH(row.make(settings), test::contains("\"no_such=1\" is no argument of " +
                                                         std::string(row.name) + "; it takes "));
    const std::string text = row.arguments;
    const std::string first = text.substr(0, text.find_first_of(", "));
    settings.arguments.clear();
    if (!first.empty()) {
      settings.arguments = {first};
      CHECK_NOTHROW(row.make(settings));
      const std::string key = first.substr(0, first.find('='));
      settings.arguments = {key + "=x"};
      CHECK_THROWS_WITH(row.make(settings), test::contains("\"x\" is no value of " + key));
    }
  }
}

TEST_CASE("names of optimizers lead to one row each") {
  std::set<std::string> names, types;
  for (const OptimizerRow& row : optimizer_table()) {
    CHECK(find_optimizer(row.name) == &row);
    CHECK(names.insert(row.name).second);
    for (const char* alias : row.aliases) {
      CHECK(find_optimizer(alias) == &row);
      CHECK(names.insert(alias).second);
    }
    for (const char* type : row.deepspeed.types) CHECK(types.insert(type).second);
    const OptimizerRow* chosen = nullptr;
    CHECK(set_text(field_of(chosen), row.name));
    CHECK(chosen == &row);
    CHECK(text_of(field_of(chosen)) == row.name);
  }
  CHECK(find_optimizer("adafactor") == nullptr);
}
