// SPDX-License-Identifier: MIT
// Intervals of steps, as in flags, records and transformers' Trainer.
#include "lib/core/field.h"

#include "tests/support/test.hpp"

using namespace tessera;

namespace {

// Text after parsing and printing; "refused" if parsing fails.
std::string again(const std::string& text) {
  StepInterval interval{.steps = 7};
  const FieldRef field = field_of(interval);
  if (!set_text(field, text)) return text_of(field) == "7" ? "refused" : "changed";
  return text_of(field);
}

TEST_CASE("intervals of steps: whole numbers stay whole, shares are below one") {
  CHECK(again("0") == "0");
  CHECK(again("-1") == "-1");
  CHECK(again("500") == "500");
  CHECK(again("9223372036854775807") == "9223372036854775807");
  CHECK(again("1.0") == "1");
  CHECK(again("20.0") == "20");
  CHECK(again("2e1") == "20");
  CHECK(again("0.0") == "0");
  CHECK(again("0.1") == "0.1");
  CHECK(again("1e-3") == "0.001");
  for (const char* text :
       {"2.5", "-0.5", "1.5", "nan", "inf", "1e400", "1e17", "", "0.1x", "ten"}) {
    CHECK(again(text) == "refused");
  }
  StepInterval interval;
  CHECK_FALSE(is_text(field_of(interval)));
}

// math.ceil(max_steps * share) of transformers' TrainerState.compute_steps().
TEST_CASE("intervals of steps: a share is rounded up, as transformers does") {
  const auto steps = [](double share, int64_t all) { return StepInterval{.share = share}.of(all); };
  CHECK(steps(0.1, 100) == 10);
  CHECK(steps(0.1, 101) == 11);
  CHECK(steps(0.07, 100) == 8);  // 7.000000000000001
  CHECK(steps(0.29, 100) == 29);
  CHECK(steps(0.3, 8) == 3);
  CHECK(steps(0.5, 1) == 1);
  CHECK(steps(0.001, 20) == 1);
  CHECK(steps(0.999, 3) == 3);
  CHECK(StepInterval{.steps = 5}.of(100) == 5);
  CHECK(StepInterval{.steps = -1}.is_never());
  CHECK_FALSE(StepInterval{.share = 0.5}.is_never());
  CHECK_FALSE(StepInterval{}.is_never());
}

}  // namespace
