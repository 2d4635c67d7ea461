// SPDX-License-Identifier: MIT
#pragma once
// What a Python program has set for its own computations, kept away from ours.
#include <ATen/core/grad_mode.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "tessera/core/error.h"

namespace tessera::python {

// For as long as it lives this thread computes as a program's does, whatever torch.no_grad(),
// torch.inference_mode() and torch.autocast() say.
class OwnModes {
  c10::InferenceMode ordinary_{false};
  at::AutoGradMode with_gradients_{true};
  c10::impl::ExcludeDispatchKeyGuard without_autocast_{c10::autocast_dispatch_keyset};
};

// The default dtype belongs to the process, other threads of which compute with it: it is not ours
// to change.
inline void check_default_dtype() {
  const at::ScalarType dtype = c10::get_default_dtype_as_scalartype();
  check(dtype == at::kFloat, ErrorCode::kInvalidArgument, "torch's default dtype is ",
        c10::toString(dtype),
        ", with which a strategy would give other numbers; call "
        "torch.set_default_dtype(torch.float32), and name the dtype of a strategy with dtype=");
}

}  // namespace tessera::python
