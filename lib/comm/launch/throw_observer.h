// SPDX-License-Identifier: MIT
#pragma once
// Observes an exception where it is thrown, before unwinding.
#include <exception>
#include <functional>

namespace tessera {

// Runs fn. For an exception that will leave fn, calls `about` at the throw, before any destructor
// runs; null: not a std::exception. The function that `about` returns then runs on another thread,
// so that no lock of the thrower can block it. It is joined before the exception leaves this
// function. Exceptions caught inside fn, and those of other threads, are not observed.
void run_with_throw_observer(
    const std::function<void()>& fn,
    const std::function<std::function<void()>(const std::exception* error)>& about);

}  // namespace tessera
