// SPDX-License-Identifier: MIT
#pragma once
// Isolation from modes that a Python program has set for its own computations.
#include <ATen/core/grad_mode.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "tessera/core/error.h"

namespace tessera::python {

// Scope in which this thread ignores torch.no_grad(), torch.inference_mode() and torch.autocast().
class OwnModes {
  c10::InferenceMode ordinary_{false};
  at::AutoGradMode with_gradients_{true};
  c10::impl::ExcludeDispatchKeyGuard without_autocast_{c10::autocast_dispatch_keyset};
};

// Throws unless the default dtype is fp32: it is process-wide, so it must not be changed here.
inline void check_default_dtype() {
  const at::ScalarType dtype = c10::get_default_dtype_as_scalartype();
  check(dtype == at::kFloat, ErrorCode::kInvalidArgument, "torch's default dtype is ",
        c10::toString(dtype),
        ", with which a strategy would give other numbers; call "
        "torch.set_default_dtype(torch.float32), and name the dtype of a strategy with dtype=");
}

}  // namespace tessera::python
