// SPDX-License-Identifier: MIT
#include "python/schedule.h"

#include <nanobind/stl/string.h>

#include "tessera/core/error.h"
#include "tessera/optim/lr_schedule.h"

namespace tessera::python {

namespace nb = nanobind;

void bind_schedule(nb::module_& module) {
  nb::class_<LrSchedule>(
      module, "LrSchedule",
      "A learning rate over time, by the programs' flags (--lr_scheduler_type and its "
      "kin): schedule.at(strategy.updates).")
      .def(
          "__init__",
          [](LrSchedule* self, double learning_rate, int64_t total_steps, const std::string& type,
             int64_t warmup_steps, const std::string& options) {
            const LrScheduleKind kind = parse_lr_schedule(type);
            check(kind != LrScheduleKind::kReduceOnPlateau, ErrorCode::kInvalidArgument,
                  "reduce_lr_on_plateau follows a metric, which a schedule of steps does not see; "
                  "lower "
                  "the rate in your loop");
            LrSchedule schedule{.kind = kind,
                                .peak = learning_rate,
                                .warmup_steps = warmup_steps,
                                .total_steps = total_steps,
                                .options = parse_lr_schedule_options(kind, options)};
            schedule.validate();
            new (self) LrSchedule(schedule);
          },
          nb::arg("learning_rate"), nb::arg("total_steps"), nb::kw_only(),
          nb::arg("lr_scheduler_type") = "linear", nb::arg("warmup_steps") = 0,
          nb::arg("lr_scheduler_kwargs") = "")
      .def("at", &LrSchedule::at, nb::arg("updates"), "The rate after so many updates.");
}

}  // namespace tessera::python
