// SPDX-License-Identifier: MIT
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "python/errors.h"
#include "python/job.h"
#include "python/model.h"
#include "python/schedule.h"
#include "python/strategy.h"

NB_MODULE(_tessera, module) {
  using namespace tessera::python;
  bind_errors(module);
  bind_job(module);
  bind_model(module);
  bind_schedule(module);
  bind_strategy(module);
}
