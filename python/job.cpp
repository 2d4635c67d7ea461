// SPDX-License-Identifier: MIT
#include "python/job.h"

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "lib/core/failure.h"
#include "python/errors.h"
#include "python/modes.h"
#include "tessera/core/device.h"
#include "tessera/core/error.h"
#include "tessera/core/log.h"

namespace tessera::python {
namespace {

constexpr int kPythonFailed = 1;  // exit status of a program that ends with an exception

std::string text_of(nb::handle object) { return nb::str(object).c_str(); }

// Innermost line: " (train.py:12)".
std::string place_of(nb::handle traceback) {
  if (traceback.is_none()) return "";
  nb::object last = nb::borrow(traceback);
  while (!last.attr("tb_next").is_none()) last = last.attr("tb_next");
  const std::string file = text_of(last.attr("tb_frame").attr("f_code").attr("co_filename"));
  return concat(" (", file.substr(file.rfind('/') + 1), ":", text_of(last.attr("tb_lineno")), ")");
}

// Exit status for an exception that leaves the job's block; for SystemExit, its own.
ExitStatus ending_of_python(nb::handle type, nb::handle value, nb::handle traceback) {
  const auto is = [&](PyObject* kind) {
    return PyErr_GivenExceptionMatches(type.ptr(), kind) != 0;
  };
  if (is_tessera_error(value)) {
    return {nb::cast<int>(value.attr("exit_code")), nb::cast<std::string>(value.attr("code")),
            text_of(value)};
  }
  if (is(PyExc_SystemExit)) {
    const nb::object code = value.attr("code");
    if (code.is_none()) return {};
    int status = kPythonFailed;
    if (nb::try_cast(code, status)) return {status & 255, "exit", concat("sys.exit(", status, ")")};
    return {kPythonFailed, "exit", text_of(code)};
  }
  if (is(PyExc_KeyboardInterrupt)) return {130, "interrupted", "by Ctrl-C"};
  if (is(PyExc_MemoryError)) {
    return exit_status_of(ErrorCode::kResourceExhausted,
                          "the host has no memory left" + place_of(traceback));
  }
  return {kPythonFailed, nb::type_name(type).c_str(), text_of(value) + place_of(traceback)};
}

}  // namespace

Job::Job(std::string transport, bool debug_collectives)
    : options_{.transport = std::move(transport), .debug_collectives = debug_collectives} {}

Job::~Job() { close(); }

void Job::enter() {
  check(process_ == nullptr, ErrorCode::kInvalidArgument, "this job has begun already");
  const nb::gil_scoped_release released;
  auto process = std::make_unique<ProcessJob>();
  try {
    process->connect(options_);
  } catch (...) {
    process->conclude(current_exception_status());
    throw;
  }
  process_ = std::move(process);
}

std::optional<ExitStatus> Job::end_of_data() {
  const nb::gil_scoped_release released;
  wait_for_calls();
  try {
    const OwnModes modes;
    for (const auto& resident : residents_) resident->end_of_data();
  } catch (...) {
    return current_exception_status();
  }
  return std::nullopt;
}

void Job::exit(nb::handle type, nb::handle value, nb::handle traceback) {
  ProcessJob& job = process();
  ending_ = true;
  ExitStatus mine = type.is_none() ? ExitStatus() : ending_of_python(type, value, traceback);
  const bool alone = world().size() == 1;
  if (mine.code == 0) {
    if (const auto failed = end_of_data()) mine = *failed;
  } else if (!alone && !is_tessera_error(value) && mine.kind != "exit") {
    PyErr_Display(type.ptr(), value.ptr(), traceback.ptr());  // traceback of this program
  }
  int status = mine.code;
  if (!alone || mine.code == 0) {
    const nb::gil_scoped_release released;
    status = job.conclude(mine);
  }
  close();
  if (status == 0 || alone) return;  // a single rank rethrows the exception
  const nb::object exit = nb::borrow(PyExc_SystemExit)(status);
  if (!value.is_none()) exit.attr("__cause__") = value;
  PyErr_SetObject(PyExc_SystemExit, exit.ptr());
  throw nb::python_error();
}

// Waits for calls of other threads, which throw once a rank has failed.
void Job::wait_for_calls() {
  while (const char* call = in_call_.load()) in_call_.wait(call);
}

void Job::remove(const Resident* resident) {
  std::erase_if(residents_, [&](const auto& one) { return one.get() == resident; });
}

void Job::close() {
  const nb::gil_scoped_release released;
  wait_for_calls();
  for (const auto& resident : residents_) resident->close();
  residents_.clear();
  process_.reset();
}

ProcessJob& Job::process() {
  check(
      process_ != nullptr, ErrorCode::kInvalidArgument,
      "the job has ended or not begun; ranks are connected inside of `with tessera.Job() as job:`");
  return *process_;
}

const LaunchInfo& Job::launch() { return process().bootstrap().launch(); }
Communicator& Job::world() { return process().world(); }
ControlChannel& Job::control() { return process().bootstrap(); }

void Job::barrier() {
  const Turn turn(*this, "barrier");
  const nb::gil_scoped_release released;
  world().barrier();
}

std::vector<std::string> Job::exchange(const std::string& text) {
  const Turn turn(*this, "exchange");
  const nb::gil_scoped_release released;
  return control().exchange(text);
}

Job::Turn::Turn(Job& job, const char* call) : job_(job) {
  job.process();
  check(!job.ending_, ErrorCode::kInvalidArgument, call,
        "() while the job ends: another thread has left its `with` block");
  const char* other = job.in_call_;
  check(other == nullptr, ErrorCode::kInvalidArgument, call, "() while another thread is in ",
        other == nullptr ? "" : other, "(): one thread at a time works with a job");
  check_default_dtype();
  set_current_device(job.world().device());
  job.in_call_ = call;
}

Job::Turn::~Turn() {
  job_.in_call_ = nullptr;
  job_.in_call_.notify_all();
}

void bind_job(nb::module_& module) {
  nb::class_<Job>(
      module, "Job",
      "The ranks that mpirun, srun or torchrun started, or this process alone: with "
      "tessera.Job() as job: ...\n\nA rank that an exception ends ends all: one line says "
      "which and why, and every process exits with the code of the cause. Alone, the "
      "exception goes on as it is.")
      .def(nb::init<std::string, bool>(), nb::arg("transport") = "auto",
           nb::arg("debug_collectives") = false)
      .def(
          "__enter__",
          [](Job& self) -> Job& {
            self.enter();
            return self;
          },
          nb::rv_policy::reference)
      .def(
          "__exit__",
          [](Job& self, nb::handle type, nb::handle value, nb::handle traceback) {
            self.exit(type, value, traceback);
          },
          nb::arg("type").none(), nb::arg("value").none(), nb::arg("traceback").none())
      .def_prop_ro("rank", [](Job& self) { return self.launch().rank; })
      .def_prop_ro("world_size", [](Job& self) { return self.launch().world_size; })
      .def_prop_ro("local_rank", [](Job& self) { return self.launch().local_rank; })
      .def_prop_ro("launcher", [](Job& self) { return self.launch().launcher; })
      .def_prop_ro("device", &Job::device, "\"cpu\" or \"cuda:0\"")
      .def_prop_ro("transport", &Job::transport)
      .def("barrier", &Job::barrier, "Returns when every rank has called it.")
      .def("exchange", &Job::exchange, nb::arg("text"), "Every rank's text, by rank. Collective.");
}

}  // namespace tessera::python
