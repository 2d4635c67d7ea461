// SPDX-License-Identifier: MIT
#include "tessera/core/async_scalars.h"

#include <ATen/ATen.h>

#include "tests/support/test.hpp"

using namespace tessera;

TEST_CASE("late values come in their order, whatever their dtypes") {
  const int64_t large = (int64_t{1} << 40) + 1;  // not representable in fp32
  AsyncScalars values({at::tensor(0.5F), at::tensor({large}, at::kLong), at::full({1}, 2.25F),
                       at::ones({}, at::kBool), at::tensor(0.1, at::kDouble),
                       at::tensor({7}, at::kLong)});
  CHECK(values.read() == std::vector<double>{0.5, double(large), 2.25, 1, 0.1, 7});
  CHECK(AsyncScalars(std::vector<at::Tensor>()).read().empty());
  const int64_t no_update = -(int64_t{1} << 40);
  CHECK(AsyncScalars(at::tensor({no_update, int64_t{7}}, at::kLong)).read() ==
        std::vector<double>{static_cast<double>(no_update), 7});
}
